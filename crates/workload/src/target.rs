//! The target: a tree of files that only it sees, and servers.
//!
//! | port | what it does with a connection |
//! |---|---|
//! | `ECHO` | sends everything back |
//! | `SINK` | reads to the last byte, which is `LAST`, or to the end, and answers how many there were |
//! | `SOURCE` | reads how many milliseconds, sends for that long, ends |
//! | `TALLY` | answers each number with that number and how often it was seen |
//! | `FULL` | nothing: its queue is full, so whoever connects waits |
//! | `HTTP2` | answers a request with a body as long as its path says |

use std::collections::HashMap;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::{Context, Result};
use clap::Args;
use nix::mount::{MsFlags, mount};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrIn};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::http2;

pub(crate) const ECHO: u16 = 7001;
pub(crate) const SINK: u16 = 7002;
pub(crate) const SOURCE: u16 = 7003;
pub(crate) const TALLY: u16 = 7004;
pub(crate) const FULL: u16 = 7005;
pub(crate) const HTTP2: u16 = 7006;

/// By which whoever sends to `SINK` says that it is done: half a connection cannot be closed through everything.
pub(crate) const LAST: u8 = 0;

const BLOCK: usize = 256 * 1024;
/// What a file is filled with, so that no hole in it is read faster than bytes.
const FILLING: u8 = 7;

#[derive(Debug, Args)]
pub(crate) struct TargetArguments {
    /// Where a tree is mounted. The process must have a mount namespace of its own
    #[arg(long)]
    tree: Option<std::path::PathBuf>,
    /// How many small files there are
    #[arg(long, default_value_t = 0)]
    small: usize,
    /// The size of the large file, in MiB
    #[arg(long, default_value_t = 0)]
    large: usize,
}

pub(crate) fn run(arguments: &TargetArguments) -> Result<()> {
    if let Some(tree) = &arguments.tree {
        plant(tree, arguments).context("the tree cannot be made")?;
    }
    let _queue = fill_queue().context("a full queue cannot be made")?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        serve(ECHO, echo).await?;
        serve(SINK, sink).await?;
        serve(SOURCE, source).await?;
        let seen = Arc::new(Mutex::new(HashMap::new()));
        serve(TALLY, move |stream| tally(stream, Arc::clone(&seen))).await?;
        serve(HTTP2, http2::serve).await?;
        println!("ready");
        // Until whoever started us closes our standard input.
        tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink())).await??;
        Ok(())
    })
}

/// Puts the files on a file system of their own, which nobody else sees.
fn plant(tree: &Path, arguments: &TargetArguments) -> Result<()> {
    let nothing: Option<&Path> = None;
    mount(
        nothing,
        "/",
        nothing,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        nothing,
    )?;
    mount(
        Some("tmpfs"),
        tree,
        Some("tmpfs"),
        MsFlags::empty(),
        nothing,
    )?;
    for number in 0..arguments.small {
        let place = tree.join(format!("small-{number}"));
        fs::write(place, vec![FILLING; 4096])?;
    }
    fs::write(tree.join("large"), vec![FILLING; arguments.large << 20])?;
    Ok(())
}

async fn serve<F>(port: u16, handle: impl Fn(TcpStream) -> F + Send + 'static) -> Result<()>
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let listener = TcpListener::bind(address).await?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            // A client that leaves early is no news.
            tokio::spawn(handle(stream));
        }
    });
    Ok(())
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 1024];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..count]).await?;
    }
}

async fn sink(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; BLOCK];
    let mut total = 0_u64;
    loop {
        let count = stream.read(&mut buffer).await?;
        total += count as u64;
        if matches!(buffer[..count].last(), None | Some(&LAST)) {
            return stream.write_all(&total.to_be_bytes()).await;
        }
    }
}

async fn source(mut stream: TcpStream) -> io::Result<()> {
    let time = Duration::from_millis(stream.read_u64().await?);
    let block = vec![FILLING; BLOCK];
    let start = Instant::now();
    while start.elapsed() < time {
        stream.write_all(&block).await?;
    }
    stream.shutdown().await
}

async fn tally(mut stream: TcpStream, seen: Arc<Mutex<HashMap<u64, u64>>>) -> io::Result<()> {
    loop {
        let number = match stream.read_u64().await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            number => number?,
        };
        let times = {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            let times = seen.entry(number).or_insert(0);
            *times += 1;
            *times
        };
        let mut answer = [0; 16];
        answer[..8].copy_from_slice(&number.to_be_bytes());
        answer[8..].copy_from_slice(&times.to_be_bytes());
        stream.write_all(&answer).await?;
    }
}

/// A listener that never accepts, with as many connections as its queue holds.
fn fill_queue() -> Result<(StdListener, Vec<std::net::TcpStream>)> {
    let socket = nix::sys::socket::socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let any = SockaddrIn::new(0, 0, 0, 0, FULL);
    nix::sys::socket::bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &any)?;
    nix::sys::socket::listen(&socket, Backlog::new(0)?)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, FULL));
    let mut queued = Vec::new();
    while let Ok(stream) =
        std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200))
    {
        queued.push(stream);
    }
    Ok((StdListener::from(socket), queued))
}
