//! Many requests on many connections: how many are answered, by whom, and how long each takes.
//!
//! Without a rate each connection sends its next request when the last is answered: as many as can be. With a rate each
//! request has its moment, and one that has to wait for the one before has been waiting since then: an answer that comes
//! late makes all requests late that should have been sent meanwhile, as it does for real clients.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Numbers;
use crate::http1::FROM;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Load {
    address: SocketAddr,
    /// A header line that says whose the requests are.
    #[serde(default)]
    header: Option<String>,
    connections: usize,
    milliseconds: u64,
    /// Requests per second on all connections. As many as can be, if it is not said.
    #[serde(default)]
    rate: Option<f64>,
    /// After so many requests a client closes its connection, and makes another.
    #[serde(default)]
    requests_each: Option<usize>,
    /// Who must answer.
    from: String,
}

/// What a connection has seen.
#[derive(Debug, Default)]
struct Seen {
    /// Answers, by the second in which they were complete.
    per_second: Vec<u64>,
    /// How many took how long, in steps of a hundredth.
    times: Vec<u64>,
}

impl Seen {
    fn add(&mut self, at: Duration, time: Duration) {
        count(&mut self.per_second, at.as_secs() as usize, 1);
        let step = (time.as_nanos().max(1) as f64).ln() / STEP.ln();
        count(&mut self.times, step as usize, 1);
    }

    fn merge(&mut self, other: &Self) {
        for (second, answers) in other.per_second.iter().enumerate() {
            count(&mut self.per_second, second, *answers);
        }
        for (step, answers) in other.times.iter().enumerate() {
            count(&mut self.times, step, *answers);
        }
    }

    /// The seconds within which this part of all answers came.
    fn time(&self, part: f64) -> f64 {
        let all: u64 = self.times.iter().sum();
        let wanted = (all as f64 * part).ceil() as u64;
        let mut seen = 0;
        let step = self.times.iter().position(|answers| {
            seen += answers;
            seen >= wanted
        });
        STEP.powf(step.unwrap_or_default() as f64 + 0.5) / 1e9
    }
}

/// From one step of times to the next.
const STEP: f64 = 1.01;

fn count(counts: &mut Vec<u64>, place: usize, more: u64) {
    if counts.len() <= place {
        counts.resize(place + 1, 0);
    }
    counts[place] += more;
}

/// Runs a load to its end.
pub(super) fn load(load: &Load) -> Result<Numbers> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let seen = runtime.block_on(run(load))?;
    let answers: u64 = seen.per_second.iter().sum();
    ensure!(answers > 0, "nothing was answered");
    let seconds = load.milliseconds as f64 / 1e3;
    let whole_seconds = (load.milliseconds / 1000) as usize;
    let per_second = seen.per_second.iter().take(whole_seconds);
    Ok(Numbers::from([
        ("all", vec![answers as f64 / seconds]),
        ("p50", vec![seen.time(0.5)]),
        ("p99", vec![seen.time(0.99)]),
        (
            "per_second",
            per_second.map(|count| *count as f64).collect(),
        ),
    ]))
}

async fn run(load: &Load) -> Result<Seen> {
    let start = Instant::now();
    let clients: Vec<_> = (0..load.connections)
        .map(|number| {
            let load = load.clone();
            tokio::task::spawn(async move { client(&load, number, start).await })
        })
        .collect();
    let mut seen = Seen::default();
    for client in clients {
        seen.merge(&client.await??);
    }
    Ok(seen)
}

async fn client(load: &Load, number: usize, start: Instant) -> Result<Seen> {
    let header = load
        .header
        .as_ref()
        .map_or(String::new(), |header| format!("{header}\r\n"));
    let request = format!(
        "GET /items?page=7 HTTP/1.1\r\nHost: {}\r\nUser-Agent: load/1\r\nAccept: */*\r\n{header}\r\n",
        load.address
    );
    let duration = Duration::from_millis(load.milliseconds);
    let every = load
        .rate
        .map(|rate| Duration::from_secs_f64(load.connections as f64 / rate));
    let mut seen = Seen::default();
    let mut connection = Connection::open(load.address).await?;
    let mut moment = every.map(|every| every.mul_f64(number as f64 / load.connections as f64));
    let mut sent = 0;
    while start.elapsed() < duration {
        let mut asked = Instant::now();
        if let (Some(due), Some(every)) = (moment, every) {
            if start.elapsed() < due {
                // That the clock wakes us late is not the fault of what is measured.
                tokio::time::sleep_until((start + due).into()).await;
                asked = Instant::now();
            } else {
                asked = start + due;
            }
            moment = Some(due + every);
        }
        if load
            .requests_each
            .is_some_and(|most| sent % most == most - 1)
        {
            connection = Connection::open(load.address).await?;
        }
        connection.ask(request.as_bytes(), &load.from).await?;
        sent += 1;
        let now = Instant::now();
        seen.add(now - start, now - asked);
    }
    Ok(seen)
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await;
        let stream = stream.with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: Vec::with_capacity(4096),
        })
    }

    /// Sends a request, and reads its answer.
    async fn ask(&mut self, request: &[u8], from: &str) -> Result<()> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let (head, length) = loop {
            if let Some(head) = end_of_head(&self.buffer) {
                break (head, content_length(&self.buffer[..head])?);
            }
            self.more().await?;
        };
        while self.buffer.len() < head + length {
            self.more().await?;
        }
        let head = std::str::from_utf8(&self.buffer[..head])?;
        let name = header(head, FROM);
        ensure!(name == Some(from), "{name:?} answered, not {from}: {head}");
        Ok(())
    }

    async fn more(&mut self) -> Result<()> {
        let count = self.stream.read_buf(&mut self.buffer).await?;
        let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
        ensure!(count > 0, ended());
        Ok(())
    }
}

fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    Some(end + 4)
}

fn content_length(head: &[u8]) -> Result<usize> {
    let head = std::str::from_utf8(head)?;
    let length = header(head, "content-length").context("an answer has no length")?;
    Ok(length.parse()?)
}

fn header<'a>(head: &'a str, wanted: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case(wanted).then(|| value.trim())
    })
}

/// Opens as many connections, makes a request on each, and keeps them.
pub(super) fn hold_requests(
    address: SocketAddr,
    from: &str,
    count: usize,
    held: &mut Vec<std::net::TcpStream>,
) -> Result<Numbers> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        for _ in 0..count {
            let mut connection = Connection::open(address).await?;
            let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\n\r\n");
            connection.ask(request.as_bytes(), from).await?;
            held.push(connection.stream.into_std()?);
        }
        Ok(Numbers::new())
    })
}
