//! The target: a tree of files that only it sees, and servers.
//!
//! | port | what it does with a connection |
//! |---|---|
//! | `ECHO` | sends everything back |
//! | `SINK` | reads to the last byte, which is `LAST`, or to the end, and responds with their count |
//! | `SOURCE` | reads how many milliseconds, sends for that long, ends |
//! | `TALLY` | responds to each number with that number and how often it was seen |
//! | `FULL` | nothing: its accept queue is full, so `connect` blocks |
//! | `HTTP2` | responds with a body of the length in the path |

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

/// The last byte of a sender to `SINK`. It is needed because not every proxy passes a half-close on.
pub(crate) const LAST: u8 = 0;

const BLOCK: usize = 256 * 1024;
/// The content of files. It is not zero, so that files have no holes, which are read faster.
const FILLING: u8 = 7;

#[derive(Debug, Args)]
pub(crate) struct TargetArguments {
    /// The mount point of the tree. The process must have its own mount namespace
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
        create_tree(tree, arguments).context("cannot create the tree")?;
    }
    let _queue = fill_queue().context("cannot create a full accept queue")?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        serve(ECHO, echo).await?;
        serve(SINK, sink).await?;
        serve(SOURCE, source).await?;
        let seen = Arc::new(Mutex::new(HashMap::new()));
        serve(TALLY, move |stream| tally(stream, Arc::clone(&seen))).await?;
        serve(HTTP2, http2::serve).await?;
        println!("ready");
        // Until the parent process closes our standard input.
        tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink())).await??;
        Ok(())
    })
}

/// Creates the files in a new tmpfs, which no other process sees.
fn create_tree(tree: &Path, arguments: &TargetArguments) -> Result<()> {
    let none: Option<&Path> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("tmpfs"), tree, Some("tmpfs"), MsFlags::empty(), none)?;
    for number in 0..arguments.small {
        let path = tree.join(format!("small-{number}"));
        fs::write(path, vec![FILLING; 4096])?;
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
            // A client may disconnect early.
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
        let mut response = [0; 16];
        response[..8].copy_from_slice(&number.to_be_bytes());
        response[8..].copy_from_slice(&times.to_be_bytes());
        stream.write_all(&response).await?;
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
