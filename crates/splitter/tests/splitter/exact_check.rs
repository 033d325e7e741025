//! Whatever a client sends, in whatever pieces, the application sees exactly that when nobody wants it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use splitter::{
    Arrival, BoxFuture, BoxStream, Claim, Destination, Filter, Mode, Notices, OnConflict, Port,
    Protocol, Settings, detect,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

/// Sends the bytes in pieces of the given sizes, over and over, and checks what the application sees.
pub(crate) fn check(bytes: &[u8], pieces: &[usize]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime can be had");
    let seen = runtime.block_on(send(bytes, pieces));
    // HTTP/2 is put together anew, so its bytes are not those that were sent. It is enough that nothing panics.
    if detect(bytes, false) == Some(Protocol::Http2) {
        return;
    }
    // A connection on which nothing was sent is made in case the application speaks first.
    let seen: Vec<_> = seen.iter().filter(|seen| !seen.is_empty()).collect();
    let expected: Vec<_> = [bytes]
        .into_iter()
        .filter(|bytes| !bytes.is_empty())
        .collect();
    assert_eq!(
        seen,
        expected,
        "the application sees something else than {:?}",
        String::from_utf8_lossy(bytes)
    );
}

/// Reading a pattern takes longer than all the rest, so it is done once.
static NOBODYS: LazyLock<Filter> =
    LazyLock::new(|| Filter::header("^x-nobody-sends-this: ever$").expect("it is a pattern"));

/// What the application sees on each connection.
async fn send(bytes: &[u8], pieces: &[usize]) -> Vec<Vec<u8>> {
    let (streams, mut opened) = mpsc::unbounded_channel();
    let port = Arc::new(Port::new(Arc::new(Opened(streams)), Settings::default()));
    let _guard = port
        .claims()
        .claim(
            Claim {
                holder: "nobody".to_owned(),
                owner: None,
                held_for: Duration::ZERO,
                mode: Mode::Steal,
                filter: Some(NOBODYS.clone()),
                takes_probes: true,
                answer_within: None,
                tls: None,
                notices: Notices::default(),
                destination: Arc::new(Nowhere),
            },
            OnConflict::Abort,
        )
        .expect("nobody else claims it");
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
        let arrival = Arrival {
            client: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
            server: SocketAddr::from((Ipv4Addr::LOCALHOST, 2)),
            tls: None,
        };
        port.serve(Box::new(served), arrival).await;
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
    serving.await.expect("whatever comes, nothing panics");
    drop(client);
    drop(_guard);
    application.await.unwrap_or_default()
}

/// Streams whose other ends are handed out.
struct Opened(mpsc::UnboundedSender<tokio::io::DuplexStream>);

impl Destination for Opened {
    fn open<'a>(&'a self, _: &'a Arrival) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async {
            let (ours, theirs) = tokio::io::duplex(1024);
            let _ = self.0.send(theirs);
            Ok(Box::new(ours) as BoxStream)
        })
    }
}

struct Nowhere;

impl Destination for Nowhere {
    fn open<'a>(&'a self, _: &'a Arrival) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) })
    }
}
