//! A plain relay through the API server: forwards connections in the cluster over one WebSocket to the developer's machine.
//!
//! The API server treats the carrier as an aggregated API server, like an operator. The carrier forwards each connection
//! on a channel that the far end opened in advance. Nothing is parsed, encrypted twice or resumed.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use clap::Args;
use http::header::{
    CONNECTION, CONTENT_TYPE, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    UPGRADE,
};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use link::channels::{Channel, Channels, Event, websocket_config};
use link::tls::Identity;
use link::websocket::{Role, Upgrade, WebSocketStream, accept_key};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc};

use crate::http1::until_input_ends;

const PROTOCOL: &str = "relay";
/// The API group that the carrier registers.
const GROUP: &str = "/apis/relay.bench/v1";
/// The size of the copy buffers, as in an operator.
const BUFFER: usize = 128 * 1024;

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct CarrierArguments {
    /// The address for the API server
    #[arg(long)]
    listen_for_api: SocketAddr,
    /// The address for the connections to forward
    #[arg(long)]
    listen: SocketAddr,
}

#[derive(Debug, Args)]
pub(crate) struct FarEndArguments {
    #[arg(long)]
    kubeconfig: PathBuf,
    #[arg(long)]
    context: String,
    /// The upstream of the connections
    #[arg(long)]
    to: SocketAddr,
    /// How many connections can be open at the same time
    #[arg(long)]
    connections: usize,
}

/// From the far end to incoming connections: channels that are not used yet.
type ChannelPool = Arc<Mutex<mpsc::UnboundedReceiver<Channel>>>;

pub(crate) fn run(arguments: CarrierArguments) -> Result<()> {
    until_input_ends(async move {
        let (free, pool) = mpsc::unbounded_channel();
        let connections = TcpListener::bind(arguments.listen).await?;
        tokio::spawn(accept(connections, Arc::new(Mutex::new(pool))));
        let api = TcpListener::bind(arguments.listen_for_api).await?;
        let acceptor = link::tls::acceptor(&Identity::generate()?)?;
        println!("ready");
        loop {
            let (stream, _) = api.accept().await?;
            let (acceptor, free) = (acceptor.clone(), free.clone());
            tokio::spawn(async move {
                link::set_tcp_options(&stream)?;
                let stream = acceptor.accept(stream).await?;
                let service = service_fn(|request| {
                    let free = free.clone();
                    async move { Ok::<_, Infallible>(respond(request, free)) }
                });
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades()
                    .await?;
                anyhow::Ok(())
            });
        }
    })
}

async fn accept(listener: TcpListener, pool: ChannelPool) -> Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let pool = Arc::clone(&pool);
        tokio::spawn(async move {
            let channel = pool.lock().await.recv().await;
            let mut channel = channel.context("no far end is connected")?;
            copy_bidirectional_with_sizes(&mut stream, &mut channel, BUFFER, BUFFER).await?;
            anyhow::Ok(())
        });
    }
}

/// Responds to the API server's discovery request, and to WebSocket upgrades.
fn respond(
    mut request: Request<Incoming>,
    free: mpsc::UnboundedSender<Channel>,
) -> Response<Full<Bytes>> {
    let key = request.headers().get(SEC_WEBSOCKET_KEY);
    let Some(key) = key.and_then(|key| key.to_str().ok()).map(str::to_owned) else {
        let text = r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"relay.bench/v1","resources":[]}"#;
        let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        return response;
    };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let socket = TokioIo::new(upgrade.await?);
        let socket =
            WebSocketStream::from_raw_socket(socket, Role::Server, Some(websocket_config())).await;
        let (_channels, mut events, driver) = Channels::over(socket);
        let collect_channels = async {
            while let Some(event) = events.recv().await {
                if let Event::Opened { channel, .. } = event {
                    let _ = free.send(channel);
                }
            }
        };
        tokio::join!(driver, collect_channels).0?;
        anyhow::Ok(())
    });
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    if let Ok(accept) = HeaderValue::from_str(&accept_key(&key)) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

pub(crate) fn run_far_end(arguments: FarEndArguments) -> Result<()> {
    until_input_ends(async move {
        let (channels, driver) = connect(&arguments).await?;
        for _ in 0..arguments.connections {
            tokio::spawn(forward(channels.clone(), arguments.to));
        }
        println!("ready");
        driver.await?.context("the WebSocket has ended")
    })
}

type Driver = tokio::task::JoinHandle<std::io::Result<()>>;

async fn connect(arguments: &FarEndArguments) -> Result<(Channels, Driver)> {
    let client = crate::clients::client(&arguments.kubeconfig, &arguments.context).await?;
    let upgrade = Upgrade::to(PROTOCOL);
    // The API server has no timeout for the subresource `proxy`.
    let request = upgrade.add_headers(Request::get(format!("{GROUP}/proxy/relay")));
    let response = client
        .send(request.body(kube::client::Body::empty())?)
        .await?;
    ensure!(
        response.status() == StatusCode::SWITCHING_PROTOCOLS,
        "the API server responded with {}",
        response.status()
    );
    let socket = TokioIo::new(hyper::upgrade::on(response).await?);
    let socket =
        WebSocketStream::from_raw_socket(socket, Role::Client, Some(websocket_config())).await;
    let (channels, mut events, driver) = Channels::over(socket);
    tokio::spawn(async move { while events.recv().await.is_some() {} });
    Ok((channels, tokio::spawn(driver)))
}

/// Serves one connection after the other, each with its own upstream connection.
async fn forward(channels: Channels, to: SocketAddr) -> Result<()> {
    loop {
        let mut channel = channels.open(0);
        let mut stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        // Each connection ends when its client disconnects.
        let _ = copy_bidirectional_with_sizes(&mut channel, &mut stream, BUFFER, BUFFER).await;
    }
}
