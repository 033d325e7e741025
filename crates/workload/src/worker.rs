//! The worker: each line of standard input is a request in JSON. The response is one line with the durations or the error.
//!
//! It is written like most programs: with threads that block in system calls.

mod connections;
mod faults;
mod files;
mod load;
mod local;

use std::collections::BTreeMap;
use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A request to the worker. Times are in milliseconds here and in seconds in responses.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// Opens, reads and closes files `small-N` of a folder, each once.
    OpenReadClose {
        folder: PathBuf,
        from: usize,
        count: usize,
    },
    /// Reads the metadata of files `small-N` of a folder: each once, and then the last one repeatedly.
    Metadata {
        folder: PathBuf,
        from: usize,
        count: usize,
    },
    /// Opens a file, reads a block, and measures further small reads.
    FurtherReads { path: PathBuf, count: usize },
    /// Opens a file and reads all of it.
    WholeFile { path: PathBuf },
    /// Opens and closes a file of a folder of this machine, by absolute path, relative path and symbolic link.
    OpenLocal { folder: PathBuf, count: usize },
    /// Sends messages on a stream within this machine.
    Messages { milliseconds: u64 },
    /// Starts a program and waits until it exits.
    Start {
        program: PathBuf,
        arguments: Vec<String>,
        count: usize,
    },
    /// Connects, sends a byte, reads it back and closes.
    ConnectAndEcho { address: SocketAddr, count: usize },
    /// Sends a byte and reads it back, on one connection.
    RoundTrip { address: SocketAddr, count: usize },
    /// Sends on `streams` connections in parallel.
    Send {
        address: SocketAddr,
        milliseconds: u64,
        streams: usize,
    },
    /// Receives on `streams` connections in parallel.
    Receive {
        address: SocketAddr,
        milliseconds: u64,
        streams: usize,
    },
    /// Fetches `length` bytes over HTTP/2.
    Http2 { address: SocketAddr, length: usize },
    /// Sends numbered requests on several connections in parallel.
    Requests {
        address: SocketAddr,
        milliseconds: u64,
        connections: usize,
        first: u64,
    },
    /// Measures files and connections while another thread blocks in `connect`.
    Beside {
        full: SocketAddr,
        folder: PathBuf,
        echo: SocketAddr,
        milliseconds: u64,
    },
    /// Resolves DNS names: each once, and then the last one repeatedly.
    Resolve { names: Vec<String>, again: usize },
    /// Opens connections and keeps them open until `release`.
    Hold { address: SocketAddr, count: usize },
    /// Opens connections, sends a request on each, and keeps them open until `release`.
    HoldRequests {
        address: SocketAddr,
        from: String,
        count: usize,
    },
    /// Opens HTTP/2 connections and streams on each, fills all windows, and keeps them open until `release`.
    Stall {
        address: SocketAddr,
        clients: usize,
        streams: usize,
    },
    /// Sends requests over HTTP/2, each on a connection of its own.
    Http2Each { address: SocketAddr, count: usize },
    /// Closes the connections of `hold`, `hold_requests` and `stall`.
    Release,
    /// Sends HTTP requests on several connections.
    Load(load::Load),
}

/// Measured values by name.
pub(crate) type Numbers = BTreeMap<&'static str, Vec<f64>>;

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Response {
    Done(Numbers),
    Failed(String),
}

/// What is kept open until `release`.
#[derive(Default)]
struct Open {
    connections: Vec<std::net::TcpStream>,
    /// The tasks of stalled clients.
    stalled: Vec<tokio::runtime::Runtime>,
}

pub(crate) fn run() -> Result<()> {
    let mut open = Open::default();
    serve_stdin(|request| handle(request, &mut open))
}

/// Executes each request of standard input until it ends.
pub(crate) fn serve_stdin<T: DeserializeOwned>(
    mut handle: impl FnMut(T) -> Result<Numbers>,
) -> Result<()> {
    let (_, hard_limit) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard_limit, hard_limit)?;
    for line in std::io::stdin().lock().lines() {
        let response = match serde_json::from_str(&line?)
            .map_err(anyhow::Error::from)
            .and_then(&mut handle)
        {
            Ok(numbers) => Response::Done(numbers),
            Err(error) => Response::Failed(format!("{error:#}")),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&response)?)?;
        out.flush()?;
    }
    Ok(())
}

fn handle(request: Request, open: &mut Open) -> Result<Numbers> {
    let milliseconds = Duration::from_millis;
    match request {
        Request::OpenReadClose {
            folder,
            from,
            count,
        } => files::open_read_close(&folder, from, count),
        Request::Metadata {
            folder,
            from,
            count,
        } => files::metadata(&folder, from, count),
        Request::FurtherReads { path, count } => files::further_reads(&path, count),
        Request::WholeFile { path } => files::whole_file(&path),
        Request::OpenLocal { folder, count } => local::open(&folder, count),
        Request::Messages { milliseconds: time } => local::messages(milliseconds(time)),
        Request::Start {
            program,
            arguments,
            count,
        } => local::start(&program, &arguments, count),
        Request::ConnectAndEcho { address, count } => connections::connect_and_echo(address, count),
        Request::RoundTrip { address, count } => connections::round_trip(address, count),
        Request::Send {
            address,
            milliseconds: time,
            streams,
        } => connections::send(address, milliseconds(time), streams),
        Request::Receive {
            address,
            milliseconds: time,
            streams,
        } => connections::receive(address, milliseconds(time), streams),
        Request::Http2 { address, length } => connections::http2(address, length),
        Request::Requests {
            address,
            milliseconds: time,
            connections,
            first,
        } => faults::requests(address, milliseconds(time), connections, first),
        Request::Beside {
            full,
            folder,
            echo,
            milliseconds: time,
        } => faults::beside(full, &folder, echo, milliseconds(time)),
        Request::Resolve { names, again } => connections::resolve(&names, again),
        Request::Hold { address, count } => {
            connections::hold(address, count, &mut open.connections)
        }
        Request::HoldRequests {
            address,
            from,
            count,
        } => load::hold_requests(address, &from, count, &mut open.connections),
        Request::Load(request) => load::load(&request),
        Request::Stall {
            address,
            clients,
            streams,
        } => {
            let runtime = connections::stall(address, clients, streams)?;
            open.stalled.push(runtime);
            Ok(Numbers::new())
        }
        Request::Http2Each { address, count } => connections::http2_each(address, count),
        Request::Release => {
            open.connections.clear();
            for runtime in open.stalled.drain(..) {
                runtime.shutdown_background();
            }
            Ok(Numbers::new())
        }
    }
}

/// The duration of each of `count` calls, in seconds.
fn time_each(count: usize, mut action: impl FnMut(usize) -> Result<()>) -> Result<Vec<f64>> {
    let mut seconds = Vec::with_capacity(count);
    for number in 0..count {
        let start = Instant::now();
        action(number)?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(seconds)
}
