//! Checks that the application receives exactly the client's bytes if no session matches, for all inputs and all ways to
//! split them into writes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use splitter::{
    BoxFuture, BoxStream, Claim, ConnectionMeta, Destination, Filter, Mode, NoticeHandler,
    OnConflict, Port, Protocol, Settings, detect,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

/// Sends the bytes in pieces of the given sizes, repeatedly, and checks what the application receives.
pub(crate) fn check(bytes: &[u8], pieces: &[usize]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("the runtime can be built");
    let seen = runtime.block_on(send(bytes, pieces));
    // HTTP/2 is encoded again, so its bytes differ. It is enough that nothing panics.
    if detect(bytes, false) == Some(Protocol::Http2) {
        return;
    }
    // An empty connection is opened in case the application speaks first.
    let seen: Vec<_> = seen.iter().filter(|seen| !seen.is_empty()).collect();
    let expected: Vec<_> = [bytes]
        .into_iter()
        .filter(|bytes| !bytes.is_empty())
        .collect();
    assert_eq!(
        seen,
        expected,
        "the application received something other than {:?}",
        String::from_utf8_lossy(bytes)
    );
}

/// Compiling a pattern takes longer than all the rest, so it is done once.
static UNMATCHED: LazyLock<Filter> =
    LazyLock::new(|| Filter::header("^x-never-sent: ever$").expect("the pattern is valid"));

/// The bytes that the application receives on each connection.
async fn send(bytes: &[u8], pieces: &[usize]) -> Vec<Vec<u8>> {
    let (streams, mut opened) = mpsc::unbounded_channel();
    let port = Arc::new(Port::new(
        Arc::new(ApplicationStreams(streams)),
        Settings::default(),
    ));
    let _guard = port
        .claims()
        .claim(
            Claim {
                holder: "other".to_owned(),
                owner: None,
                age: Duration::ZERO,
                mode: Mode::Steal,
                filter: Some(UNMATCHED.clone()),
                takes_probes: true,
                response_timeout: None,
                tls: None,
                on_notice: NoticeHandler::default(),
                destination: Arc::new(RefusingSession),
            },
            OnConflict::Abort,
        )
        .expect("there is no other claim");
    let application = tokio::spawn(async move {
        let mut readers = tokio::task::JoinSet::new();
        while let Some(mut stream) = opened.recv().await {
            readers.spawn(async move {
                let mut seen = Vec::new();
                let _ = stream.read_to_end(&mut seen).await;
                seen
            });
        }
        readers.join_all().await
    });
    let (mut client, served) = tokio::io::duplex(1024);
    let serving = tokio::spawn(async move {
        let meta = ConnectionMeta {
            client: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
            server: SocketAddr::from((Ipv4Addr::LOCALHOST, 2)),
            tls: None,
        };
        port.serve(Box::new(served), meta).await;
    });
    let mut rest = bytes;
    let mut sizes = pieces.iter().copied().cycle();
    while !rest.is_empty() {
        let size = sizes.next().unwrap_or(rest.len()).clamp(1, rest.len());
        if client.write_all(&rest[..size]).await.is_err() {
            break;
        }
        rest = &rest[size..];
        tokio::task::yield_now().await;
    }
    let _ = client.shutdown().await;
    serving.await.expect("serving does not panic");
    drop(client);
    drop(_guard);
    application.await.unwrap_or_default()
}

/// An application whose streams are sent to the check.
struct ApplicationStreams(mpsc::UnboundedSender<tokio::io::DuplexStream>);

impl Destination for ApplicationStreams {
    fn open<'a>(&'a self, _: &'a ConnectionMeta) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async {
            let (ours, theirs) = tokio::io::duplex(1024);
            let _ = self.0.send(theirs);
            Ok(Box::new(ours) as BoxStream)
        })
    }
}

struct RefusingSession;

impl Destination for RefusingSession {
    fn open<'a>(&'a self, _: &'a ConnectionMeta) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) })
    }
}
