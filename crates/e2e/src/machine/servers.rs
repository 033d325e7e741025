//! The servers of a target's peer network.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::routing::get;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::network::{ECHO, HTTP, RESET, SERVER, SERVER6, SINK, SOURCE, SOURCE_BYTES};

const CHUNK_SIZE: usize = 64 * 1024;

/// Lines that clients have reported to the servers, in the order in which they were received.
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
    let mut datagram = vec![0; CHUNK_SIZE];
    loop {
        // After a response to a closed port the next call returns an error, and the server must continue.
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
    let mut chunk = vec![0; CHUNK_SIZE];
    loop {
        let length = stream.read(&mut chunk).await?;
        if length == 0 {
            break;
        }
        count += length;
        sum.update(&chunk[..length]);
    }
    let response = format!("{count} {:x}\n", sum.finalize());
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}

async fn source(mut stream: TcpStream, ledger: &Ledger) -> io::Result<()> {
    let mut sum = Sha256::new();
    let mut state = 1_u64;
    for _ in 0..SOURCE_BYTES / CHUNK_SIZE {
        let chunk = noise(&mut state);
        sum.update(&chunk);
        stream.write_all(&chunk).await?;
    }
    stream.shutdown().await?;
    let mut report = String::new();
    stream.read_to_string(&mut report).await?;
    let right = report.trim() == format!("{SOURCE_BYTES} {:x}", sum.finalize());
    let line = format!("source {}", if right { "right" } else { "wrong" });
    record(ledger, line);
    Ok(())
}

async fn reset(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(b"some").await?;
    stream.read_u8().await?;
    // The kernel resets a connection that is closed with unread bytes.
    stream.readable().await
}

/// Pseudo-random bytes. Every chunk differs from every other, so that the checksum reveals lost and swapped chunks.
fn noise(state: &mut u64) -> Vec<u8> {
    let mut chunk = Vec::with_capacity(CHUNK_SIZE);
    while chunk.len() < CHUNK_SIZE {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        chunk.extend_from_slice(&state.to_le_bytes());
    }
    chunk
}

/// `GET /` returns the client's address. `POST /ledger` records the body and returns it; `GET /ledger` returns all
/// records.
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
    let lines = ledger.lock();
    lines.iter().map(|line| format!("{line}\n")).collect()
}

async fn write_ledger(State(ledger): State<Ledger>, line: String) -> String {
    record(&ledger, line.clone());
    line
}

fn record(ledger: &Ledger, line: String) {
    ledger.lock().push(line);
}
