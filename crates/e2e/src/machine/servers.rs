//! The servers beside a target.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::routing::get;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::network::{ECHO, HTTP, RESET, SERVER, SERVER6, SINK, SOURCE, SOURCE_BYTES};

const PART: usize = 64 * 1024;

/// What clients have told the servers, in the order in which it arrived.
type Ledger = Arc<Mutex<Vec<String>>>;

#[derive(Clone, Copy, Debug)]
enum Service {
    Echo,
    Sink,
    Source,
    Reset,
}

pub(super) async fn start() -> Result<()> {
    let ledger = Ledger::default();
    for address in [SERVER, SERVER6] {
        tokio::spawn(echo_datagrams(UdpSocket::bind((address, ECHO)).await?));
        for (port, service) in [
            (ECHO, Service::Echo),
            (SINK, Service::Sink),
            (SOURCE, Service::Source),
            (RESET, Service::Reset),
        ] {
            let listener = TcpListener::bind((address, port)).await?;
            tokio::spawn(serve(listener, service, Arc::clone(&ledger)));
        }
        serve_http(address, Arc::clone(&ledger)).await?;
    }
    Ok(())
}

async fn serve(listener: TcpListener, service: Service, ledger: Ledger) {
    while let Ok((stream, _)) = listener.accept().await {
        let ledger = Arc::clone(&ledger);
        tokio::spawn(async move {
            match service {
                Service::Echo => echo(stream).await,
                Service::Sink => sink(stream).await,
                Service::Source => source(stream, &ledger).await,
                Service::Reset => reset(stream).await,
            }
        });
    }
}

async fn echo_datagrams(socket: UdpSocket) {
    let mut datagram = vec![0; PART];
    loop {
        // Where nobody listens any more, the next call says so; that is no reason to stop.
        if let Ok((length, from)) = socket.recv_from(&mut datagram).await {
            let _ = socket.send_to(&datagram[..length], from).await;
        }
    }
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let (mut from, mut to) = stream.split();
    tokio::io::copy(&mut from, &mut to).await?;
    to.shutdown().await
}

async fn sink(mut stream: TcpStream) -> io::Result<()> {
    let mut sum = Sha256::new();
    let mut count = 0;
    let mut part = vec![0; PART];
    loop {
        let length = stream.read(&mut part).await?;
        if length == 0 {
            break;
        }
        count += length;
        sum.update(&part[..length]);
    }
    let answer = format!("{count} {:x}\n", sum.finalize());
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

async fn source(mut stream: TcpStream, ledger: &Ledger) -> io::Result<()> {
    let mut sum = Sha256::new();
    let mut state = 1_u64;
    for _ in 0..SOURCE_BYTES / PART {
        let part = noise(&mut state);
        sum.update(&part);
        stream.write_all(&part).await?;
    }
    stream.shutdown().await?;
    let mut opinion = String::new();
    stream.read_to_string(&mut opinion).await?;
    let right = opinion.trim() == format!("{SOURCE_BYTES} {:x}", sum.finalize());
    let line = format!("source {}", if right { "right" } else { "wrong" });
    note(ledger, line);
    Ok(())
}

async fn reset(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(b"some").await?;
    stream.read_u8().await?;
    // Closed with bytes that nobody has read, a connection is reset.
    stream.readable().await
}

/// Bytes in which every part differs from every other, so that lost and swapped ones are noticed.
fn noise(state: &mut u64) -> Vec<u8> {
    let mut part = Vec::with_capacity(PART);
    while part.len() < PART {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        part.extend_from_slice(&state.to_le_bytes());
    }
    part
}

/// `GET /` says who asks. `POST /ledger` notes the body and gives it back; `GET /ledger` gives all that was noted.
async fn serve_http(address: &str, ledger: Ledger) -> Result<()> {
    let router = Router::new()
        .route("/", get(greet))
        .route("/ledger", get(read_ledger).post(write_ledger))
        .with_state(ledger)
        .into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind((address, HTTP)).await?;
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(())
}

async fn greet(ConnectInfo(from): ConnectInfo<SocketAddr>) -> String {
    format!("hello {}\n", from.ip())
}

async fn read_ledger(State(ledger): State<Ledger>) -> String {
    let lines = ledger.lock().unwrap_or_else(PoisonError::into_inner);
    lines.iter().map(|line| format!("{line}\n")).collect()
}

async fn write_ledger(State(ledger): State<Ledger>, line: String) -> String {
    note(&ledger, line.clone());
    line
}

fn note(ledger: &Ledger, line: String) {
    ledger
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(line);
}
