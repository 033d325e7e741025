//! HTTP load: many requests on many connections. Measures the throughput and the latency, and checks who responds.
//!
//! Without a rate, each connection sends its next request after the previous response: the maximum throughput. With a
//! rate, each request has a due time, and its latency counts from then even if it is sent later. So a slow response also
//! delays the requests that were due meanwhile, as it does for real clients (no coordinated omission).

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
    /// A header line that identifies the requests.
    #[serde(default)]
    header: Option<String>,
    connections: usize,
    milliseconds: u64,
    /// Requests per second on all connections together; unlimited if not set.
    #[serde(default)]
    rate: Option<f64>,
    /// After so many requests a client closes its connection and opens another.
    #[serde(default)]
    requests_each: Option<usize>,
    /// The application that must respond.
    from: String,
}

/// The responses of one or more connections.
#[derive(Debug, Default)]
struct LoadResult {
    /// Responses, by the second in which they were complete.
    per_second: Vec<u64>,
    /// A histogram of latencies, in steps of one percent.
    times: Vec<u64>,
}

impl LoadResult {
    fn add(&mut self, at: Duration, time: Duration) {
        count(&mut self.per_second, at.as_secs() as usize, 1);
        let step = (time.as_nanos().max(1) as f64).ln() / STEP.ln();
        count(&mut self.times, step as usize, 1);
    }

    fn merge(&mut self, other: &Self) {
        for (second, responses) in other.per_second.iter().enumerate() {
            count(&mut self.per_second, second, *responses);
        }
        for (step, responses) in other.times.iter().enumerate() {
            count(&mut self.times, step, *responses);
        }
    }

    /// A quantile of the latencies, in seconds.
    fn time(&self, part: f64) -> f64 {
        let all: u64 = self.times.iter().sum();
        let rank = (all as f64 * part).ceil() as u64;
        let mut seen = 0;
        let step = self.times.iter().position(|responses| {
            seen += responses;
            seen >= rank
        });
        STEP.powf(step.unwrap_or_default() as f64 + 0.5) / 1e9
    }
}

/// The ratio of one histogram bucket to the next.
const STEP: f64 = 1.01;

fn count(counts: &mut Vec<u64>, index: usize, more: u64) {
    if counts.len() <= index {
        counts.resize(index + 1, 0);
    }
    counts[index] += more;
}

/// Runs a load to its end.
pub(super) fn load(load: &Load) -> Result<Numbers> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let seen = runtime.block_on(run(load))?;
    let responses: u64 = seen.per_second.iter().sum();
    ensure!(responses > 0, "no request got a response");
    let seconds = load.milliseconds as f64 / 1e3;
    let whole_seconds = (load.milliseconds / 1000) as usize;
    let per_second = seen.per_second.iter().take(whole_seconds);
    Ok(Numbers::from([
        ("all", vec![responses as f64 / seconds]),
        ("p50", vec![seen.time(0.5)]),
        ("p99", vec![seen.time(0.99)]),
        (
            "per_second",
            per_second.map(|count| *count as f64).collect(),
        ),
    ]))
}

async fn run(load: &Load) -> Result<LoadResult> {
    let start = Instant::now();
    let clients: Vec<_> = (0..load.connections)
        .map(|number| {
            let load = load.clone();
            tokio::task::spawn(async move { client(&load, number, start).await })
        })
        .collect();
    let mut seen = LoadResult::default();
    for client in clients {
        seen.merge(&client.await??);
    }
    Ok(seen)
}

async fn client(load: &Load, number: usize, start: Instant) -> Result<LoadResult> {
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
    let mut seen = LoadResult::default();
    let mut connection = Connection::open(load.address).await?;
    let mut next_due = every.map(|every| every.mul_f64(number as f64 / load.connections as f64));
    let mut sent = 0;
    while start.elapsed() < duration {
        let mut due_at = Instant::now();
        if let (Some(due), Some(every)) = (next_due, every) {
            if start.elapsed() < due {
                // A late wake-up by the timer is not the fault of what is measured.
                tokio::time::sleep_until((start + due).into()).await;
                due_at = Instant::now();
            } else {
                due_at = start + due;
            }
            next_due = Some(due + every);
        }
        if load
            .requests_each
            .is_some_and(|limit| sent % limit == limit - 1)
        {
            connection = Connection::open(load.address).await?;
        }
        connection
            .send_request(request.as_bytes(), &load.from)
            .await?;
        sent += 1;
        let now = Instant::now();
        seen.add(now - start, now - due_at);
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

    /// Sends a request and reads its response.
    async fn send_request(&mut self, request: &[u8], from: &str) -> Result<()> {
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
        ensure!(name == Some(from), "{name:?} responded, not {from}: {head}");
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
    let length = header(head, "content-length").context("a response has no length")?;
    Ok(length.parse()?)
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// Opens connections, sends a request on each, and keeps them open.
pub(super) fn hold_requests(
    address: SocketAddr,
    from: &str,
    count: usize,
    open_connections: &mut Vec<std::net::TcpStream>,
) -> Result<Numbers> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        for _ in 0..count {
            let mut connection = Connection::open(address).await?;
            let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\n\r\n");
            connection.send_request(request.as_bytes(), from).await?;
            open_connections.push(connection.stream.into_std()?);
        }
        Ok(Numbers::new())
    })
}
