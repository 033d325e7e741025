use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use tower_service::Service;

use super::network::{Network, stream};
use crate::http2::{self, Client, Windows};
use crate::{Buffers, Link};

/// Echoes every body. A body sent to `/stall` is not read, and gets no response body.
#[derive(Clone)]
struct Echo;

impl Service<Request<Incoming>> for Echo {
    type Response = Response<
        http_body_util::Either<Incoming, http_body_util::channel::Channel<Bytes, hyper::Error>>,
    >;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        if request.uri().path() == "/stall" {
            let (sender, body) = http_body_util::channel::Channel::new(1);
            let stalled = request.into_body();
            tokio::spawn(async move {
                let _held = (sender, stalled);
                std::future::pending::<()>().await;
            });
            return ready(Ok(Response::new(http_body_util::Either::Right(body))));
        }
        ready(Ok(Response::new(http_body_util::Either::Left(
            request.into_body(),
        ))))
    }
}

async fn client_of_echo(client: Link, server: Link) -> Client {
    client_with(Windows::default(), client, server).await
}

async fn client_with(windows: Windows, client: Link, server: Link) -> Client {
    tokio::spawn(http2::serve(server, windows, Echo, std::future::pending()));
    Client::start(client, windows).await.unwrap()
}

/// Sends bytes in parts, and collects the response.
async fn echo(mut client: Client, path: &str, bytes: Vec<u8>) -> Bytes {
    let (mut sender, body) = http2::body(4);
    tokio::spawn(async move {
        for part in bytes.chunks(30_000) {
            sender
                .send_data(Bytes::copy_from_slice(part))
                .await
                .unwrap();
        }
    });
    let response = client
        .send(Request::post(path).body(body).unwrap())
        .await
        .unwrap();
    response.into_body().collect().await.unwrap().to_bytes()
}

#[tokio::test(start_paused = true)]
async fn requests_survive_lost_connections() {
    let (network, client, server) = Network::connected(Buffers::default(), 20_000).await;
    let client = client_of_echo(client, server).await;
    network.set_budgets((1..200).map(|number| 10_000 + number * 997).collect());
    network.cut().await;
    let requests: Vec<_> = (0..50)
        .map(|number| {
            let text = stream(number, 20_000 + usize::from(number) * 3000);
            let echoed = echo(client.clone(), "/", text.clone());
            tokio::spawn(async move { assert!(echoed.await == text) })
        })
        .collect();
    for request in requests {
        request.await.unwrap();
    }
    assert!(network.dial_count() > 20, "{}", network.dial_count());
}

#[tokio::test(start_paused = true)]
async fn stalled_streams_do_not_stop_others() {
    let (_network, client, server) = Network::connected(Buffers::default(), 100_000).await;
    // Small windows, so that the stalled streams have used theirs up.
    let windows = Windows {
        stream: 200_000,
        ..Windows::default()
    };
    let client = client_with(windows, client, server).await;
    for number in 0..100 {
        tokio::spawn(echo(client.clone(), "/stall", stream(number, 300_000)));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let text = stream(3, 1_000_000);
    let echoed = tokio::time::timeout(Duration::from_secs(10), echo(client, "/", text.clone()));
    assert!(echoed.await.unwrap() == text);
}

#[tokio::test(start_paused = true)]
async fn a_server_shutdown_finishes_the_link() {
    let (network, client, server) = Network::connected(Buffers::default(), 20_000).await;
    let status = server.status();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = async { drop(stopped.await) };
    let serving = tokio::spawn(http2::serve(server, Windows::default(), Echo, stopped));
    let mut client = Client::start(client, Windows::default()).await.unwrap();
    let response = client.send(Request::get("/").body(Empty::<Bytes>::new()).unwrap());
    assert!(response.await.unwrap().status().is_success());
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    drop(client);
    let mut status = status;
    drop(
        status
            .wait_for(|status| matches!(status, crate::Status::Finished))
            .await
            .unwrap(),
    );
    while network.server().links() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Generated gRPC clients require this trait.
#[test]
fn a_client_is_a_grpc_service() {
    fn check<T: tonic::client::GrpcService<tonic::body::Body>>() {}
    check::<Client>();
}
