//! The application that the target itself runs: the original that local programs replace.

use std::net::SocketAddr;
use std::thread;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::Uri;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::network::{APPLICATION, DATAGRAMS, GREETER};

/// Starts the application in the caller's network namespace. Returns when all ports are open.
pub(super) fn start() -> Result<()> {
    let (ready, ready_receiver) = oneshot::channel();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    thread::spawn(move || {
        runtime.block_on(async {
            let _ = ready.send(serve().await);
            std::future::pending::<()>().await;
        });
    });
    ready_receiver
        .blocking_recv()
        .context("the application has ended")?
}

async fn serve() -> Result<()> {
    let router = Router::new().fallback(respond);
    let router = router.into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind(("::", APPLICATION)).await?;
    tokio::spawn(async move { axum::serve(listener, router).await });
    tokio::spawn(greet_all(TcpListener::bind(("::", GREETER)).await?));
    tokio::spawn(respond_to_datagrams(
        UdpSocket::bind(("::", DATAGRAMS)).await?,
    ));
    Ok(())
}

async fn respond(ConnectInfo(client): ConnectInfo<SocketAddr>, uri: Uri) -> String {
    format!("original {} {}\n", uri.path(), client.ip().to_canonical())
}

async fn greet_all(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(greet(stream));
    }
}

async fn greet(mut stream: TcpStream) -> Result<()> {
    let (mut from, mut to) = stream.split();
    to.write_all(b"original\n").await?;
    tokio::io::copy(&mut from, &mut to).await?;
    Ok(to.shutdown().await?)
}

async fn respond_to_datagrams(socket: UdpSocket) {
    let mut datagram = vec![0; 1500];
    while let Ok((length, from)) = socket.recv_from(&mut datagram).await {
        let response = [b"original ".as_slice(), &datagram[..length]].concat();
        let _ = socket.send_to(&response, from).await;
    }
}
