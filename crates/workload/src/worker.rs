//! The worker: one line of JSON says what to do, one line answers how long it took or why it failed.
//!
//! It is written as most programs are: threads that wait for what they ask for.

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

/// What can be asked for. Times are in milliseconds here and in seconds in answers.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Order {
    /// Opens, reads and closes files `small-N` of a folder, each once.
    OpenReadClose {
        folder: PathBuf,
        from: usize,
        count: usize,
    },
    /// Asks for the metadata of files `small-N` of a folder: each once, and then the last one again.
    Metadata {
        folder: PathBuf,
        from: usize,
        count: usize,
    },
    /// Opens a file, reads some, and measures further small reads.
    FurtherReads {
        path: PathBuf,
        count: usize,
    },
    /// Reads a file from open to end.
    WholeFile {
        path: PathBuf,
    },
    /// Opens and closes a file of a folder of this machine, named in several ways.
    OpenLocal {
        folder: PathBuf,
        count: usize,
    },
    /// Sends messages on a stream within this machine.
    Messages {
        milliseconds: u64,
    },
    /// Starts a program and waits for its end.
    Start {
        program: PathBuf,
        arguments: Vec<String>,
        count: usize,
    },
    /// Connects, sends a byte, reads it back and closes.
    ConnectAndEcho {
        address: SocketAddr,
        count: usize,
    },
    /// Sends a byte and reads it back, on one connection.
    RoundTrip {
        address: SocketAddr,
        count: usize,
    },
    /// Sends on as many connections at once.
    Send {
        address: SocketAddr,
        milliseconds: u64,
        streams: usize,
    },
    /// Receives on as many connections at once.
    Receive {
        address: SocketAddr,
        milliseconds: u64,
        streams: usize,
    },
    /// Fetches as many bytes over HTTP/2.
    Http2 {
        address: SocketAddr,
        length: usize,
    },
    /// Sends numbered requests on as many connections at once.
    Requests {
        address: SocketAddr,
        milliseconds: u64,
        connections: usize,
        first: u64,
    },
    /// Works while another thread waits in `connect`.
    Beside {
        full: SocketAddr,
        folder: PathBuf,
        echo: SocketAddr,
        milliseconds: u64,
    },
    /// Asks for the addresses of names: for each once, and then for the last one again.
    Resolve {
        names: Vec<String>,
        again: usize,
    },
    /// Opens as many connections, and keeps them until `let_go`.
    Hold {
        address: SocketAddr,
        count: usize,
    },
    /// Opens as many connections, makes a request on each, and keeps them until `let_go`.
    HoldRequests {
        address: SocketAddr,
        from: String,
        count: usize,
    },
    LetGo,
    /// Makes HTTP requests on as many connections.
    Load(load::Load),
}

/// Numbers by name.
pub(crate) type Numbers = BTreeMap<&'static str, Vec<f64>>;

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Done(Numbers),
    Failed(String),
}

pub(crate) fn run() -> Result<()> {
    let mut held = Vec::new();
    obey_input(|order| obey(order, &mut held))
}

/// Does what each line of the input says, to its end.
pub(crate) fn obey_input<Order: DeserializeOwned>(
    mut obey: impl FnMut(Order) -> Result<Numbers>,
) -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    for line in std::io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?)
            .map_err(anyhow::Error::from)
            .and_then(&mut obey)
        {
            Ok(numbers) => Answer::Done(numbers),
            Err(error) => Answer::Failed(format!("{error:#}")),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&answer)?)?;
        out.flush()?;
    }
    Ok(())
}

fn obey(order: Order, held: &mut Vec<std::net::TcpStream>) -> Result<Numbers> {
    let milliseconds = Duration::from_millis;
    match order {
        Order::OpenReadClose {
            folder,
            from,
            count,
        } => files::open_read_close(&folder, from, count),
        Order::Metadata {
            folder,
            from,
            count,
        } => files::metadata(&folder, from, count),
        Order::FurtherReads { path, count } => files::further_reads(&path, count),
        Order::WholeFile { path } => files::whole_file(&path),
        Order::OpenLocal { folder, count } => local::open(&folder, count),
        Order::Messages { milliseconds: time } => local::messages(milliseconds(time)),
        Order::Start {
            program,
            arguments,
            count,
        } => local::start(&program, &arguments, count),
        Order::ConnectAndEcho { address, count } => connections::connect_and_echo(address, count),
        Order::RoundTrip { address, count } => connections::round_trip(address, count),
        Order::Send {
            address,
            milliseconds: time,
            streams,
        } => connections::send(address, milliseconds(time), streams),
        Order::Receive {
            address,
            milliseconds: time,
            streams,
        } => connections::receive(address, milliseconds(time), streams),
        Order::Http2 { address, length } => connections::http2(address, length),
        Order::Requests {
            address,
            milliseconds: time,
            connections,
            first,
        } => faults::requests(address, milliseconds(time), connections, first),
        Order::Beside {
            full,
            folder,
            echo,
            milliseconds: time,
        } => faults::beside(full, &folder, echo, milliseconds(time)),
        Order::Resolve { names, again } => connections::resolve(&names, again),
        Order::Hold { address, count } => connections::hold(address, count, held),
        Order::HoldRequests {
            address,
            from,
            count,
        } => load::hold_requests(address, &from, count, held),
        Order::Load(order) => load::load(&order),
        Order::LetGo => {
            held.clear();
            Ok(Numbers::new())
        }
    }
}

/// How long each of `count` tries takes, in seconds.
fn time_each(count: usize, mut action: impl FnMut(usize) -> Result<()>) -> Result<Vec<f64>> {
    let mut seconds = Vec::with_capacity(count);
    for number in 0..count {
        let start = Instant::now();
        action(number)?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(seconds)
}
