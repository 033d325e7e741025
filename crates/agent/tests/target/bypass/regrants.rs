//! What is open when a policy forbids it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use protocol::failure::Failure;
use protocol::files::{READ, ReadRange};
use protocol::grant::{FilesGrant, Grant, OutgoingGrant};
use protocol::outgoing::{Datagram, DatagramDecoder, TCP, TcpConnect, UDP, UdpOpen, UdpPeer};
use protocol::rpc::{AccessMode, FileRef, LinkRequest, SetModeRequest, TruncateRequest};
use tonic::body::Body;

use super::files::{create_tree, path_request};
use super::requests::{Stealing, application, header, send, with_header};
use super::{Report, session, texts};
use crate::environment::target;
use crate::outgoing::{LOOPBACK_LOAD, datagram, frame, next_datagram};

/// How long something that must end may take. Without its guard it would never end.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn run(report: &mut Report) {
    open_files(report).await;
    running_reads(report).await;
    connections(report).await;
    datagrams(report).await;
    subscriptions(report).await;
}

async fn open_files(report: &mut Report) {
    let target = target();
    create_tree(
        &target,
        &[
            "/srv/data/a",
            "/srv/data/b",
            "/srv/data/kept",
            "/srv/data/moved",
            "/srv/data/left",
        ],
    );
    let link = target.path("/srv/data/link");
    symlink("a", &link).unwrap();
    let (agent, client) = session(&target, &Grant::default()).await;
    let open = async |path: &str, mode| client.open(path_request(path, mode)).await.unwrap().handle;
    let by_path = open("/srv/data/a", AccessMode::Read).await;
    let by_link = open("/srv/data/link", AccessMode::Read).await;
    let other = open("/srv/data/b", AccessMode::Read).await;
    let moved = open("/srv/data/moved", AccessMode::Read).await;
    let left = open("/srv/data/left", AccessMode::Read).await;
    let kept_for_reading = open("/srv/data/kept", AccessMode::Read).await;
    let kept_for_writing = open("/srv/data/kept", AccessMode::Write).await;
    let environ = open("/proc/1/environ", AccessMode::Read).await;
    // The link leads to another file now, and the file has another path.
    fs::remove_file(&link).unwrap();
    symlink("b", &link).unwrap();
    for (from, to) in [("moved", "hidden"), ("left", "other")] {
        let path = |name: &str| target.path(&format!("/srv/data/{name}"));
        fs::rename(path(from), path(to)).unwrap();
    }
    let grant = Grant {
        hidden_variables: texts(&["GREET*"]),
        files: FilesGrant {
            hidden: texts(&["^/srv/data/(a|hidden|left)$"]),
            read_only: texts(&["^/srv/data/kept$"]),
        },
        ..Grant::default()
    };
    assert!(agent.regrant(&grant).await.unwrap());
    for (name, handle) in [
        ("by its path", by_path),
        ("by a link that has changed", by_link),
        ("by its former path", moved),
        ("by a hidden path that it has left", left),
        ("with the environment", environ),
    ] {
        let read = client.read(handle, 0, 10).await;
        report.attempt(format!("reading an open file, opened {name}"), read.is_ok());
    }
    let written = client.write(kept_for_writing, 0, "changed").await;
    report.attempt("writing to an open file", written.is_ok());
    let file = || Some(FileRef::handle(kept_for_reading));
    let mut files = client.files();
    let changed = files
        .set_mode(SetModeRequest {
            file: file(),
            mode: 0o777,
        })
        .await;
    report.attempt("changing the mode of an open file", changed.is_ok());
    let linked = files
        .link(LinkRequest {
            from: file(),
            to: "/srv/data/second".into(),
        })
        .await;
    report.attempt("a hard link to an open file", linked.is_ok());
    let file = Some(FileRef::handle(kept_for_writing));
    let truncated = files.truncate(TruncateRequest { file, size: 0 }).await;
    report.attempt("truncating an open file", truncated.is_ok());
    for (name, handle) in [("another", other), ("a read-only", kept_for_reading)] {
        let read = client.read(handle, 0, 10).await;
        report.control(format!("reading {name} open file"), read.is_ok());
    }
    let mode = fs::metadata(target.path("/srv/data/kept"))
        .unwrap()
        .permissions();
    report.control("its mode is as it was", mode.mode() & 0o777 != 0o777);
}

/// A read of a large file that has begun.
async fn running_reads(report: &mut Report) {
    const SIZE: usize = 32 << 20;
    let target = target();
    for path in ["/srv/data/large", "/srv/data/other"] {
        fs::write(target.path(path), vec![b'x'; SIZE]).unwrap();
        fs::set_permissions(target.path(path), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let (agent, client) = session(&target, &Grant::default()).await;
    let mut bodies = Vec::new();
    for path in ["/srv/data/large", "/srv/data/other"] {
        let handle = client
            .open(path_request(path, AccessMode::Read))
            .await
            .unwrap()
            .handle;
        let range = ReadRange {
            handle,
            offset: 0,
            length: SIZE as u64,
        };
        let response = client.raw(READ, range.to_headers(), Body::empty()).await;
        bodies.push(response.unwrap().into_body());
    }
    let grant = Grant {
        files: FilesGrant {
            hidden: texts(&["^/srv/data/large$"]),
            ..FilesGrant::default()
        },
        ..Grant::default()
    };
    assert!(agent.regrant(&grant).await.unwrap());
    let mut lengths = Vec::new();
    for body in bodies {
        lengths.push(body.collect().await.unwrap().to_bytes().len());
    }
    report.attempt("the rest of a running read", lengths[0] == SIZE);
    report.control("the rest of another running read", lengths[1] == SIZE);
}

async fn connections(report: &mut Report) {
    let target = target();
    let _listening = [
        target.listen("127.0.0.1:7101"),
        target.listen("10.9.0.1:7101"),
    ];
    let (agent, client) = session(&target, &Grant::default()).await;
    let mut open = Vec::new();
    for address in ["127.0.0.1:7101", "0.0.0.0:7101", "10.9.0.1:7101"] {
        let connect = TcpConnect {
            address: address.parse().unwrap(),
            bind: None,
        };
        let connected = client.connect_stream(TCP, connect.to_headers()).await;
        open.push((address, connected.unwrap()));
    }
    let grant = Grant {
        outgoing: OutgoingGrant {
            none_of: texts(&["127.0.0.0/8"]),
            ..OutgoingGrant::default()
        },
        ..Grant::default()
    };
    assert!(agent.regrant(&grant).await.unwrap());
    let (_, (to_allowed, _allowed)) = open.pop().unwrap();
    let sent = to_allowed.send(Bytes::from_static(b"hello")).await;
    report.control("an open connection to another address", sent.is_ok());
    for (address, (_to_peer, response)) in open {
        // Without the reset, this would wait for the peer.
        let ended = tokio::time::timeout(TIMEOUT, response.into_body().collect());
        let was_reset = match ended.await {
            Ok(Ok(ended)) => ended.trailers().and_then(Failure::from_headers).is_some(),
            Ok(Err(_)) => true,
            Err(_) => false,
        };
        report.attempt(format!("an open connection to {address}"), !was_reset);
    }
}

/// The peers send datagrams after the policy. Nothing else is on the path, so what is received first was sent first.
async fn datagrams(report: &mut Report) {
    const FORBIDDEN: &str = "10.9.0.1:7302";
    const ALLOWED: &str = "10.9.0.1:7303";
    let _load = LOOPBACK_LOAD.read().await;
    let target = target();
    let (agent, client) = session(&target, &Grant::default()).await;
    let (forbidden, allowed) = (target.udp(FORBIDDEN), target.udp(ALLOWED));
    let mut bodies = Vec::new();
    let mut sockets = Vec::new();
    let connected = UdpPeer::Connected(FORBIDDEN.parse().unwrap());
    for (peer, to) in [(connected, None), (UdpPeer::AnyIpv4, Some(FORBIDDEN))] {
        let open = UdpOpen { peer, bind: None };
        let opened = client.connect_stream(UDP, open.to_headers()).await;
        let (to_peers, response) = opened.unwrap();
        to_peers.send(frame(to, b"before")).await.unwrap();
        let (_, socket) = forbidden.recv_from(&mut [0; 16]).await.unwrap();
        sockets.push((to_peers, socket));
        bodies.push(response.into_body());
    }
    let grant = Grant {
        outgoing: OutgoingGrant {
            none_of: texts(&[FORBIDDEN]),
            ..OutgoingGrant::default()
        },
        ..Grant::default()
    };
    assert!(agent.regrant(&grant).await.unwrap());
    for (_, socket) in &sockets {
        forbidden.send_to(b"after", socket).await.unwrap();
    }
    allowed.send_to(b"after", sockets[1].1).await.unwrap();
    let mut first = async || {
        let mut decoder = DatagramDecoder::default();
        next_datagram(&mut bodies.remove(0), &mut decoder).await
    };
    let received = first().await;
    let is_received = matches!(received, Datagram::Payload { .. });
    report.attempt(
        "a datagram from the peer of an open UDP socket",
        is_received,
    );
    let received = first().await;
    let is_received = received != datagram(Some(ALLOWED), b"after");
    report.attempt(
        "a datagram to an open UDP socket without a peer",
        is_received,
    );
}

async fn subscriptions(report: &mut Report) {
    const SESSION: &str = "served by the session";
    let request = |headers: &str| {
        format!("GET / HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n{headers}\r\n")
    };
    let target = target();
    let _application = application(&target);
    let (agent, client) = session(&target, &Grant::default()).await;
    let wide = || Some(header("^x-"));
    let mut stealing = Stealing::start(&client, wide()).await.unwrap();
    let response = send(&target, &request("x-team: blue\r\n")).await;
    report.control("a request before the policy", response.contains(SESSION));
    assert!(agent.regrant(&with_header("^x-user: ")).await.unwrap());
    // The subscription ends. The session may have another one, which the policy limits.
    let ended = tokio::time::timeout(TIMEOUT, async {
        while let Ok(Some(_)) = stealing.events.message().await {}
    });
    let is_open = ended.await.is_err();
    report.attempt("a subscription from before the policy", is_open);
    if is_open {
        stealing.end(&client).await;
    }
    let response = send(&target, &request("x-team: blue\r\n")).await;
    report.attempt(
        "a filter from before the policy",
        response.contains(SESSION),
    );
    let stealing = Stealing::start(&client, wide()).await.unwrap();
    let response = send(&target, &request("x-team: blue\r\n")).await;
    report.attempt(
        "the same filter after the policy",
        response.contains(SESSION),
    );
    let response = send(&target, &request("x-user: eve\r\n")).await;
    report.control(
        "a request that the policy allows",
        response.contains(SESSION),
    );
    stealing.end(&client).await;
}
