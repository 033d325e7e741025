use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use link::http2::{self, Client, Windows};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tower_service::Service;

use super::*;

const MIB: u64 = 1 << 20;

/// An agent's connections: `/echo` sends back, `/flood` sends without end, `/swallow` never reads, `/reset` fails.
#[derive(Clone, Default)]
struct Target {
    flooded: Arc<AtomicU64>,
}

/// A body that always has data and counts the bytes.
struct Flood(Arc<AtomicU64>);

impl Body for Flood {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        const PIECE: &[u8] = &[7; 64 * 1024];
        self.0.fetch_add(PIECE.len() as u64, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(PIECE)))))
    }
}

impl Service<Request<Incoming>> for Target {
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let path = request.uri().path().to_owned();
        let body = match path.as_str() {
            "/echo" => request.into_body().map_err(BoxError::from).boxed_unsync(),
            "/flood" => Flood(Arc::clone(&self.flooded)).boxed_unsync(),
            "/reset" => {
                let failure = Failure::from_errno(nix::errno::Errno::ECONNRESET as i32, "reset");
                let headers: HeaderMap = failure.to_headers();
                let trailers = async move { Some(Ok(headers)) };
                let data = http_body_util::Full::new(Bytes::from_static(b"last bytes"));
                data.map_err(|never: Infallible| match never {})
                    .with_trailers(trailers)
                    .boxed_unsync()
            }
            _ => {
                let unread = request.into_body();
                let (sender, body) = http2::body(1);
                tokio::spawn(async move {
                    let _unread = (unread, sender);
                    std::future::pending::<()>().await;
                });
                body.boxed_unsync()
            }
        };
        std::future::ready(Ok(Response::new(body)))
    }
}

async fn client(target: Target) -> Client {
    let (near, far) = tokio::io::duplex(256 * 1024);
    let windows = Windows::default();
    tokio::spawn(http2::serve(far, windows, target, std::future::pending()));
    Client::start(near, windows).await.unwrap()
}

/// The application's end of a connection to `path`.
async fn connect(client: &Client, path: &str) -> TcpStream {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let application = TcpStream::connect(listener.local_addr().unwrap());
    let (application, accepted) = tokio::join!(application, listener.accept());
    let proxy_end = OwnedFd::from(accepted.unwrap().0.into_std().unwrap());
    let (stream_sender, body) = ApplicationBody::new();
    let request = Request::post(path).body(body).unwrap();
    let response = client.clone().send(request).await.unwrap();
    let stream = Arc::new(LocalStream::new(Transport::Tcp, proxy_end, ()).unwrap());
    // If the server does not read the body, it is already dropped.
    let _ = stream_sender.send(Arc::clone(&stream));
    tokio::spawn(copy_to_application(stream, response.into_body()));
    application.unwrap()
}

/// Enough other traffic on the same link that any transfer without backpressure makes progress.
async fn other_traffic(client: &Client) {
    for _ in 0..20 {
        let mut application = connect(client, "/echo").await;
        let text = vec![3; 300_000];
        let (mut read, mut write) = application.split();
        let mut back = Vec::new();
        let send = async {
            write.write_all(&text).await.unwrap();
            write.shutdown().await.unwrap();
        };
        let (_, read) = tokio::join!(send, read.read_to_end(&mut back));
        read.unwrap();
        assert!(back == text);
    }
}

#[tokio::test]
async fn a_slow_application_throttles_only_its_own_stream() {
    let target = Target::default();
    let flooded = Arc::clone(&target.flooded);
    let client = client(target).await;
    let mut stalled = Vec::new();
    for _ in 0..10 {
        let mut application = connect(&client, "/flood").await;
        application.read_exact(&mut [0; 1000]).await.unwrap();
        stalled.push(application);
    }
    other_traffic(&client).await;
    // The stream's window, the sender's queue, and the kernel's buffers of two sockets.
    let each = flooded.load(Ordering::Relaxed) / stalled.len() as u64;
    assert!(each < 16 * MIB, "{each} bytes for each");
    // The stream continues as soon as the application reads.
    let mut buffer = vec![0; 1 << 20];
    for _ in 0..64 {
        stalled[0].read_exact(&mut buffer).await.unwrap();
    }
}

#[tokio::test]
async fn a_slow_target_throttles_only_its_own_stream() {
    let client = client(Target::default()).await;
    let application = connect(&client, "/swallow").await;
    let mut taken = 0;
    // The buffers are full when no more bytes are accepted although other streams made progress.
    loop {
        let before = taken;
        while let Ok(count) = application.try_write(&[7; 64 * 1024]) {
            taken += count as u64;
        }
        other_traffic(&client).await;
        assert!(taken < 16 * MIB, "{taken} bytes");
        if taken == before {
            return;
        }
    }
}

#[tokio::test]
async fn a_reset_at_the_target_resets_the_application_after_the_last_bytes() {
    let client = client(Target::default()).await;
    let mut application = connect(&client, "/reset").await;
    let mut text = Vec::new();
    let error = application.read_to_end(&mut text).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(text, b"last bytes");
}
