//! Connections from the target's network.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr as UnixSocketAddr, UnixDatagram, UnixListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, thread};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use protocol::failure::Failure;
use protocol::outgoing::{
    Connected, Datagram, DatagramDecoder, TCP, TcpConnect, UDP, UdpOpen, UdpPeer, UnixAddress,
    UnixConnect, UnixKind,
};
use protocol::rpc::RouteRequest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::RwLock;

use crate::client::{Client, errno, next_data};
use crate::environment::target;

/// Thousands of connections fill the kernel's loopback queues, which all network namespaces share, and then datagrams are
/// dropped. A test with many connections takes the write lock, a test that depends on datagrams a read lock.
pub(crate) static LOOPBACK_LOAD: RwLock<()> = RwLock::const_new(());

fn to(address: &str) -> http::HeaderMap {
    let connect = TcpConnect {
        address: address.parse().unwrap(),
        bind: None,
    };
    connect.to_headers()
}

/// Echoes what it receives, and closes its direction when the client has closed the other.
fn echo(listener: TcpListener) {
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
}

async fn connect_errno(client: &Client, path: &'static str, headers: http::HeaderMap) -> i32 {
    let failure = client.connect_stream(path, headers).await.unwrap_err();
    failure.number().unwrap()
}

#[tokio::test]
#[ignore = "needs root"]
async fn directions_are_relayed_and_closed_separately() {
    let target = target();
    let client = target.client().await;
    for address in ["10.9.0.1:7000", "[fd00:9::1]:7000"] {
        echo(target.listen(address));
        let (to_peer, response) = client.connect_stream(TCP, to(address)).await.unwrap();
        let addresses = Connected::from_headers(response.headers()).unwrap();
        assert_eq!(addresses.peer, Some(address.parse().unwrap()));
        assert_eq!(addresses.local.ip(), addresses.peer.unwrap().ip());
        let mut body = response.into_body();
        to_peer.send("hello".into()).await.unwrap();
        assert_eq!(next_data(&mut body).await.unwrap(), "hello");
        // After the client has closed its direction, it still receives the echo and then the end.
        to_peer.send("last".into()).await.unwrap();
        drop(to_peer);
        let rest = body.collect().await.unwrap();
        assert!(rest.trailers().is_none());
        assert_eq!(rest.to_bytes(), "last");
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_peer_may_close_its_direction_first() {
    let target = target();
    let listener = target.listen("127.0.0.1:7000");
    let client = target.client().await;
    let (to_peer, response) = client
        .connect_stream(TCP, to("127.0.0.1:7000"))
        .await
        .unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(b"greeting").await.unwrap();
    stream.shutdown().await.unwrap();
    let received = response.into_body().collect().await.unwrap();
    assert_eq!(received.to_bytes(), "greeting");
    to_peer.send("thanks".into()).await.unwrap();
    drop(to_peer);
    let mut thanks = String::new();
    stream.read_to_string(&mut thanks).await.unwrap();
    assert_eq!(thanks, "thanks");
}

#[tokio::test]
#[ignore = "needs root"]
async fn failures_have_the_errno_of_the_target() {
    let target = target();
    let client = target.client().await;
    // The port is open in the network of this test, but not in the target's.
    let listener_here = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener_here.local_addr().unwrap().to_string();
    assert_eq!(
        connect_errno(&client, TCP, to(&here)).await,
        libc::ECONNREFUSED
    );
    assert_eq!(
        connect_errno(&client, TCP, to("192.0.2.1:80")).await,
        libc::ENETUNREACH
    );
    assert_eq!(
        connect_errno(&client, TCP, to("255.255.255.255:80")).await,
        libc::ENETUNREACH
    );
    let bound = TcpConnect {
        address: "127.0.0.1:80".parse().unwrap(),
        bind: Some("192.0.2.9:0".parse().unwrap()),
    };
    let headers = bound.to_headers();
    assert_eq!(
        connect_errno(&client, TCP, headers).await,
        libc::EADDRNOTAVAIL
    );
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_bound_address_is_used() {
    let target = target();
    let listener = target.listen("127.0.0.1:7000");
    let client = target.client().await;
    let connect = TcpConnect {
        address: "127.0.0.1:7000".parse().unwrap(),
        bind: Some("10.9.0.1:7777".parse().unwrap()),
    };
    let _open = client
        .connect_stream(TCP, connect.to_headers())
        .await
        .unwrap();
    let (_, from) = listener.accept().await.unwrap();
    assert_eq!(from, connect.bind.unwrap());
}

#[tokio::test]
#[ignore = "needs root"]
async fn resets_are_relayed_in_both_directions() {
    let target = target();
    let listener = target.listen("127.0.0.1:7000");
    let client = target.client().await;
    let (_to_peer, response) = client
        .connect_stream(TCP, to("127.0.0.1:7000"))
        .await
        .unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    stream.set_zero_linger().unwrap();
    drop(stream);
    let received = response.into_body().collect().await.unwrap();
    let failure = Failure::from_headers(received.trailers().unwrap()).unwrap();
    assert_eq!(failure.number(), Some(libc::ECONNRESET));

    let (to_peer, response) = client
        .connect_stream(TCP, to("127.0.0.1:7000"))
        .await
        .unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    to_peer.send(Bytes::new()).await.unwrap();
    let error = stream.read(&mut [0; 10]).await.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
    drop(response);
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_lost_client_closes_its_connections() {
    let target = target();
    let listener = target.listen("127.0.0.1:7000");
    let client = target.client().await;
    let open = client
        .connect_stream(TCP, to("127.0.0.1:7000"))
        .await
        .unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    drop((open, client));
    // Closed or reset: the connection has ended.
    assert!(matches!(stream.read(&mut [0; 10]).await, Ok(0) | Err(_)));
}

/// Sends zeros as fast as possible, and counts them.
fn flood(listener: TcpListener) -> Arc<AtomicU64> {
    let sent = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&sent);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let counter = Arc::clone(&counter);
            tokio::spawn(async move {
                let zeros = vec![0; 64 * 1024];
                while let Ok(count) = stream.write(&zeros).await {
                    counter.fetch_add(count as u64, Ordering::Relaxed);
                }
            });
        }
    });
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn slow_readers_slow_down_only_their_own_stream() {
    const STALLED: u64 = 40;
    const MIB: u64 = 1024 * 1024;
    let target = target();
    let sent = flood(target.listen("127.0.0.1:7000"));
    let other_sent = flood(target.listen("127.0.0.1:7001"));
    let client = target.client().await;
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        let mut open = client
            .connect_stream(TCP, to("127.0.0.1:7000"))
            .await
            .unwrap();
        next_data(open.1.body_mut()).await.unwrap();
        stalled.push(open);
    }
    let (_to_peer, response) = client
        .connect_stream(TCP, to("127.0.0.1:7001"))
        .await
        .unwrap();
    let mut body = response.into_body();
    let mut received = 0;
    while received < 128 * MIB {
        received += next_data(&mut body).await.unwrap().len() as u64;
    }
    assert!(other_sent.load(Ordering::Relaxed) >= 128 * MIB);
    // The stalled streams have only filled their windows and the kernel's buffers, which are bounded.
    let sent_each = sent.load(Ordering::Relaxed) / STALLED;
    assert!(
        sent_each < 12 * MIB,
        "{sent_each} bytes for each stalled reader"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn a_slow_peer_slows_down_the_client() {
    const CHUNK: usize = 64 * 1024;
    let target = target();
    let listener = target.listen("127.0.0.1:7000");
    let client = target.client().await;
    let (to_peer, _response) = client
        .connect_stream(TCP, to("127.0.0.1:7000"))
        .await
        .unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    let sent = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&sent);
    let sending = tokio::spawn(async move {
        for _ in 0..1024 {
            to_peer.send(Bytes::from_static(&[0; CHUNK])).await.unwrap();
            counter.fetch_add(CHUNK as u64, Ordering::Relaxed);
        }
    });
    // Takes long enough for an unbounded sender to send everything.
    echo(target.listen("127.0.0.1:7001"));
    for _ in 0..500 {
        let (to_peer, response) = client
            .connect_stream(TCP, to("127.0.0.1:7001"))
            .await
            .unwrap();
        to_peer.send("x".into()).await.unwrap();
        drop(to_peer);
        assert_eq!(
            response.into_body().collect().await.unwrap().to_bytes(),
            "x"
        );
    }
    assert!(sent.load(Ordering::Relaxed) < 16 * 1024 * 1024);
    // The peer receives everything as soon as it reads.
    let mut received = 0;
    let mut buffer = vec![0; CHUNK];
    while received < 1024 * CHUNK {
        received += stream.read(&mut buffer).await.unwrap();
    }
    sending.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn connections_need_no_threads() {
    const CONNECTIONS: usize = 2000;
    let _exclusive = LOOPBACK_LOAD.write().await;
    let target = target();
    admission::raise_descriptor_limit().unwrap();
    echo(target.listen("127.0.0.1:7000"));
    let client = target.client().await;
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS {
        open.push(
            client
                .connect_stream(TCP, to("127.0.0.1:7000"))
                .await
                .unwrap(),
        );
    }
    for (to_peer, response) in &mut open {
        to_peer.send("x".into()).await.unwrap();
        assert_eq!(next_data(response.body_mut()).await.unwrap(), "x");
    }
    let named = |name: &str| {
        let names = fs::read_dir("/proc/self/task").unwrap();
        names
            .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .filter(|comm| comm.trim() == name)
            .count()
    };
    // Other tests of this process have agents, too.
    assert!(named("sockets") < 50);
}

#[tokio::test]
#[ignore = "needs root"]
async fn udp_connected() {
    let _no_load = LOOPBACK_LOAD.read().await;
    let target = target();
    let client = target.client().await;
    for address in ["10.9.0.1:7000", "[fd00:9::1]:7000"] {
        let peer = target.udp(address);
        let open = UdpOpen {
            peer: UdpPeer::Connected(address.parse().unwrap()),
            bind: None,
        };
        let (to_peer, response) = client.connect_stream(UDP, open.to_headers()).await.unwrap();
        let addresses = Connected::from_headers(response.headers()).unwrap();
        let mut body = response.into_body();
        to_peer.send(frame(None, b"ping")).await.unwrap();
        let mut buffer = [0; 100];
        let (length, from) = peer.recv_from(&mut buffer).await.unwrap();
        assert_eq!((&buffer[..length], from), (&b"ping"[..], addresses.local));
        peer.send_to(b"pong", from).await.unwrap();
        peer.send_to(b"", from).await.unwrap();
        let mut decoder = DatagramDecoder::default();
        assert_eq!(
            next_datagram(&mut body, &mut decoder).await,
            datagram(None, b"pong")
        );
        assert_eq!(
            next_datagram(&mut body, &mut decoder).await,
            datagram(None, b"")
        );
        // The peer's socket is closed: the next datagram is refused, and the error is reported.
        drop(peer);
        to_peer.send(frame(None, b"ping again")).await.unwrap();
        let refused = Datagram::Failed(libc::ECONNREFUSED);
        assert_eq!(next_datagram(&mut body, &mut decoder).await, refused);
        // The end of the request closes the socket.
        drop(to_peer);
        assert!(body.collect().await.unwrap().to_bytes().is_empty());
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn udp_unconnected() {
    let _no_load = LOOPBACK_LOAD.read().await;
    let target = target();
    let client = target.client().await;
    let open = UdpOpen {
        peer: UdpPeer::AnyIpv4,
        bind: Some("10.9.0.1:5555".parse().unwrap()),
    };
    let (to_peers, response) = client.connect_stream(UDP, open.to_headers()).await.unwrap();
    let mut body = response.into_body();
    let mut decoder = DatagramDecoder::default();
    for port in [7001, 7002] {
        let address = format!("127.0.0.1:{port}");
        let peer = target.udp(&address);
        let large = vec![7; 60_000];
        to_peers.send(frame(Some(&address), &large)).await.unwrap();
        let mut buffer = vec![0; 65_536];
        let (length, from) = peer.recv_from(&mut buffer).await.unwrap();
        assert_eq!((&buffer[..length], from.port()), (&large[..], 5555));
        peer.send_to(&large, from).await.unwrap();
        let received = next_datagram(&mut body, &mut decoder).await;
        assert_eq!(received, datagram(Some(&address), &large));
    }
    // A datagram that is too long fails, and the socket stays open.
    to_peers
        .send(frame(Some("127.0.0.1:7001"), &[0; 70_000]))
        .await
        .unwrap();
    let failed = next_datagram(&mut body, &mut decoder).await;
    assert_eq!(failed, Datagram::Failed(libc::EMSGSIZE));
}

pub(crate) fn datagram(address: Option<&str>, payload: &[u8]) -> Datagram {
    Datagram::Payload {
        address: address.map(|text| text.parse().unwrap()),
        payload: Bytes::copy_from_slice(payload),
    }
}

pub(crate) fn frame(address: Option<&str>, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    datagram(address, payload).encode(&mut frame);
    frame.freeze()
}

pub(crate) async fn next_datagram(
    body: &mut hyper::body::Incoming,
    decoder: &mut DatagramDecoder,
) -> Datagram {
    loop {
        if let Some(datagram) = decoder.next_datagram().unwrap() {
            return datagram;
        }
        decoder.push(&next_data(body).await.expect("a datagram"));
    }
}

fn unix(address: UnixAddress, kind: UnixKind) -> UnixConnect {
    UnixConnect { address, kind }
}

#[tokio::test]
#[ignore = "needs root"]
async fn unix_streams_by_path_and_by_abstract_name() {
    let target = target();
    let client = target.client().await;
    let path = target.path("/run/open.sock");
    let by_path = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let by_name = target.inside(|| {
        let name = <UnixSocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(
            b"only-there",
        );
        UnixListener::bind_addr(&name.unwrap()).unwrap()
    });
    let addresses = [
        (by_path, UnixAddress::Path(b"/run/open.sock".into())),
        (by_name, UnixAddress::Abstract(b"only-there".into())),
    ];
    for (listener, address) in addresses {
        let served = thread::spawn(move || {
            let (mut from, _) = listener.accept().unwrap();
            let mut to = from.try_clone().unwrap();
            std::io::copy(&mut from, &mut to).unwrap();
        });
        let connect = unix(address, UnixKind::Stream);
        let (to_peer, response) = client
            .connect_stream(connect.path(), connect.to_headers())
            .await
            .unwrap();
        to_peer.send("over unix".into()).await.unwrap();
        drop(to_peer);
        let received = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(received, "over unix");
        served.join().unwrap();
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn unix_sockets_fail_with_the_errno_of_the_target() {
    let target = target();
    let client = target.client().await;
    let check = async |path: &str, expected: i32| {
        let connect = unix(UnixAddress::Path(path.into()), UnixKind::Stream);
        let number = connect_errno(&client, connect.path(), connect.to_headers()).await;
        assert_eq!(number, expected, "{path}");
    };
    // Only root may write to it.
    let _listener = UnixListener::bind(target.path("/run/closed.sock")).unwrap();
    fs::set_permissions(
        target.path("/run/closed.sock"),
        fs::Permissions::from_mode(0o600),
    )
    .unwrap();
    check("/run/closed.sock", libc::EACCES).await;
    check("/run/missing.sock", libc::ENOENT).await;
    check("/etc/greeting", libc::EACCES).await;
    fs::set_permissions(
        target.path("/etc/greeting"),
        fs::Permissions::from_mode(0o666),
    )
    .unwrap();
    check("/etc/greeting", libc::ECONNREFUSED).await;
    let connect = unix(UnixAddress::Abstract(b"missing".into()), UnixKind::Stream);
    let number = connect_errno(&client, connect.path(), connect.to_headers()).await;
    assert_eq!(number, libc::ECONNREFUSED);
}

#[tokio::test]
#[ignore = "needs root"]
async fn unix_datagrams_are_relayed() {
    let target = target();
    let client = target.client().await;
    let path = target.path("/run/log");
    let log = UnixDatagram::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    // A stream cannot connect to a datagram socket.
    let connect = unix(UnixAddress::Path(b"/run/log".into()), UnixKind::Stream);
    let number = connect_errno(&client, connect.path(), connect.to_headers()).await;
    assert_eq!(number, libc::EPROTOTYPE);
    let connect = unix(UnixAddress::Path(b"/run/log".into()), UnixKind::Datagram);
    let (to_peer, _response) = client
        .connect_stream(connect.path(), connect.to_headers())
        .await
        .unwrap();
    to_peer.send(frame(None, b"a line")).await.unwrap();
    let received = tokio::task::spawn_blocking(move || {
        let mut buffer = [0; 100];
        let length = log.recv(&mut buffer).unwrap();
        buffer[..length].to_vec()
    });
    assert_eq!(received.await.unwrap(), b"a line");
}

#[tokio::test]
#[ignore = "needs root"]
async fn routes_are_those_of_the_target() {
    let target = target();
    let client = target.client().await;
    let route = async |address: &str| {
        let address = address.to_owned();
        let response = client.outgoing().route(RouteRequest { address }).await;
        response.map(|response| response.into_inner().local_address)
    };
    assert_eq!(route("10.9.0.1:80").await.unwrap(), "10.9.0.1:0");
    assert_eq!(route("[::1]:80").await.unwrap(), "[::1]:0");
    assert_eq!(errno(route("192.0.2.1:80").await), libc::ENETUNREACH);
}
