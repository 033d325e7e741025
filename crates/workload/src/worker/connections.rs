//! Connection operations, as programs use them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::{Numbers, time_each};
use crate::target::LAST;

const BLOCK: usize = 256 * 1024;
/// A request without a response in this time has failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn connect_and_echo(address: SocketAddr, count: usize) -> Result<Numbers> {
    let seconds = time_each(count, |_| echo(&mut TcpStream::connect(address)?))?;
    Ok(Numbers::from([("seconds", seconds)]))
}

pub(super) fn resolve(names: &[String], again: usize) -> Result<Numbers> {
    let resolve = |name: &str| -> Result<()> {
        let mut addresses = (name, 0).to_socket_addrs()?;
        ensure!(addresses.next().is_some(), "{name} has no address");
        Ok(())
    };
    let last = names.last().context("no DNS name was given")?;
    let first = time_each(names.len(), |number| resolve(&names[number]))?;
    let again = time_each(again, |_| resolve(last))?;
    Ok(Numbers::from([("first", first), ("again", again)]))
}

pub(super) fn round_trip(address: SocketAddr, count: usize) -> Result<Numbers> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let seconds = time_each(count, |_| echo(&mut stream))?;
    Ok(Numbers::from([("seconds", seconds)]))
}

pub(super) fn echo(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(&[7])?;
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    ensure!(byte == [7], "the server echoed another byte");
    Ok(())
}

/// The bytes that a stream transferred, and in which time.
type Transferred = (u64, Duration);

pub(super) fn send(address: SocketAddr, time: Duration, streams: usize) -> Result<Numbers> {
    in_parallel(
        streams,
        move |mut stream| {
            let block = vec![7; BLOCK];
            let start = Instant::now();
            let mut sent = 0;
            while start.elapsed() < time {
                stream.write_all(&block)?;
                sent += BLOCK as u64;
            }
            stream.write_all(&[LAST])?;
            sent += 1;
            let mut response = [0; 8];
            stream.read_exact(&mut response)?;
            let received = u64::from_be_bytes(response);
            ensure!(received == sent, "{received} of {sent} bytes were received");
            Ok((sent, start.elapsed()))
        },
        address,
    )
}

pub(super) fn receive(address: SocketAddr, time: Duration, streams: usize) -> Result<Numbers> {
    in_parallel(
        streams,
        move |mut stream| {
            let mut block = vec![0; BLOCK];
            let start = Instant::now();
            let milliseconds = u64::try_from(time.as_millis())?;
            stream.write_all(&milliseconds.to_be_bytes())?;
            let mut received = 0;
            loop {
                match stream.read(&mut block)? {
                    0 => return Ok((received, start.elapsed())),
                    count => received += count as u64,
                }
            }
        },
        address,
    )
}

/// Runs `work` on several connections in parallel, after all of them are established. The result is in bytes per second.
fn in_parallel(
    streams: usize,
    work: impl Fn(TcpStream) -> Result<Transferred> + Send + Sync + Copy + 'static,
    address: SocketAddr,
) -> Result<Numbers> {
    let connected: Vec<TcpStream> = (0..streams)
        .map(|_| TcpStream::connect(address))
        .collect::<Result<_, _>>()?;
    let start = Instant::now();
    let threads: Vec<_> = connected
        .into_iter()
        .map(|stream| thread::spawn(move || work(stream)))
        .collect();
    let mut each = Vec::new();
    let mut total = 0;
    for thread in threads {
        let (bytes, time) = thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        total += bytes;
        each.push(bytes as f64 / time.as_secs_f64());
    }
    let all = total as f64 / start.elapsed().as_secs_f64();
    Ok(Numbers::from([("all", vec![all]), ("each", each)]))
}

pub(super) fn http2(address: SocketAddr, length: usize) -> Result<Numbers> {
    let runtime = tokio::runtime::Runtime::new()?;
    let seconds = runtime.block_on(crate::http2::fetch(address, length))?;
    Ok(Numbers::from([("seconds", vec![seconds])]))
}

/// Each takes as long as it takes to connect and to receive a response.
pub(super) fn http2_each(address: SocketAddr, count: usize) -> Result<Numbers> {
    let runtime = tokio::runtime::Runtime::new()?;
    let seconds = time_each(count, |_| {
        runtime.block_on(crate::http2::get(address, REQUEST_TIMEOUT))
    })?;
    Ok(Numbers::from([("seconds", seconds)]))
}

/// Returns when all clients are stalled. They are, until the runtime ends.
pub(super) fn stall(
    address: SocketAddr,
    clients: usize,
    streams: usize,
) -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(crate::http2::stall(address, clients, streams))?;
    Ok(runtime)
}

pub(super) fn hold(
    address: SocketAddr,
    count: usize,
    open_connections: &mut Vec<TcpStream>,
) -> Result<Numbers> {
    for number in 0..count {
        let mut stream = TcpStream::connect(address)
            .with_context(|| format!("connection {number} of {count}"))?;
        echo(&mut stream)?;
        open_connections.push(stream);
    }
    Ok(Numbers::new())
}
