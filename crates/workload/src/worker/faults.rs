//! Requests while connections are reset, and operations while another one blocks.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

use super::connections::echo;
use super::{Numbers, files};

/// Requests that are in flight on a connection at the same time.
const PIPELINED: u64 = 4;
/// How many request numbers a connection has.
const NUMBERS: u64 = 1 << 32;

#[derive(Debug, Default)]
struct Outcome {
    answered: u64,
    failed: u64,
    duplicated: u64,
    reordered: u64,
    longest: Duration,
}

/// Each connection sends numbers that were not sent before. The server must return them in order, each seen once.
pub(super) fn requests(
    address: SocketAddr,
    time: Duration,
    connections: usize,
    first: u64,
) -> Result<Numbers> {
    let start = Instant::now();
    let threads: Vec<_> = (0..connections as u64)
        .map(|connection| {
            let first = (first + connection) * NUMBERS;
            thread::spawn(move || {
                let mut outcome = Outcome::default();
                let mut number = first;
                while start.elapsed() < time {
                    // A broken connection counts as a failure, and the next connection continues.
                    if one_connection(address, start, time, &mut number, &mut outcome).is_err() {
                        outcome.failed += 1;
                        number += NUMBERS / 1024;
                    }
                }
                outcome
            })
        })
        .collect();
    let mut all = Outcome::default();
    for thread in threads {
        let one = thread.join().map_err(|_| anyhow!("a thread panicked"))?;
        all.answered += one.answered;
        all.failed += one.failed;
        all.duplicated += one.duplicated;
        all.reordered += one.reordered;
        all.longest = all.longest.max(one.longest);
    }
    Ok(Numbers::from([
        ("answered", vec![all.answered as f64]),
        ("failed", vec![all.failed as f64]),
        ("duplicated", vec![all.duplicated as f64]),
        ("reordered", vec![all.reordered as f64]),
        ("longest", vec![all.longest.as_secs_f64()]),
    ]))
}

fn one_connection(
    address: SocketAddr,
    start: Instant,
    time: Duration,
    number: &mut u64,
    outcome: &mut Outcome,
) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    while start.elapsed() < time {
        let sent_at = Instant::now();
        let sent: Vec<u8> = (*number..*number + PIPELINED)
            .flat_map(u64::to_be_bytes)
            .collect();
        stream.write_all(&sent)?;
        for _ in 0..PIPELINED {
            let mut response = [0; 16];
            stream.read_exact(&mut response)?;
            let (returned, times) = response.split_at(8);
            outcome.reordered += u64::from(returned != number.to_be_bytes());
            outcome.duplicated += u64::from(times != 1_u64.to_be_bytes());
            outcome.answered += 1;
            *number += 1;
        }
        outcome.longest = outcome.longest.max(sent_at.elapsed());
    }
    Ok(())
}

/// Measures files and connections: for some time alone, and for the same time while another thread blocks in `connect`.
pub(super) fn beside(
    full: SocketAddr,
    folder: &Path,
    echoing: SocketAddr,
    time: Duration,
) -> Result<Numbers> {
    let alone = work_until(folder, echoing, {
        let end = Instant::now() + time;
        move || Instant::now() >= end
    })?;
    let done = Arc::new(AtomicBool::new(false));
    let waiting = thread::spawn({
        let done = Arc::clone(&done);
        move || {
            let waited = wait_in_connect(full, time);
            done.store(true, Ordering::Release);
            waited
        }
    });
    let beside = work_until(folder, echoing, || done.load(Ordering::Acquire))?;
    let waited = waiting.join().map_err(|_| anyhow!("a thread panicked"))??;
    Ok(Numbers::from([
        ("alone", alone),
        ("beside", beside),
        ("waited", vec![waited.as_secs_f64()]),
    ]))
}

fn work_until(folder: &Path, echoing: SocketAddr, ended: impl Fn() -> bool) -> Result<Vec<f64>> {
    let mut seconds = Vec::new();
    let mut number = 0;
    while !ended() {
        let start = Instant::now();
        files::open_read_close(folder, number % 16, 1)?;
        echo(&mut TcpStream::connect(echoing)?)?;
        seconds.push(start.elapsed().as_secs_f64());
        number += 1;
    }
    Ok(seconds)
}

/// Blocks in `connect` until its timeout.
fn wait_in_connect(full: SocketAddr, time: Duration) -> Result<Duration> {
    let socket = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let limit = TimeVal::milliseconds(i64::try_from(time.as_millis())?);
    setsockopt(&socket, sockopt::SendTimeout, &limit)?;
    let start = Instant::now();
    let address = SockaddrStorage::from(full);
    // It is expected to time out.
    let _ = connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &address);
    Ok(start.elapsed())
}
