//! The grant is enforced for all operations.

use std::fs;
use std::net::SocketAddr;

use agent::Agent;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use protocol::failure::Failure;
use protocol::grant::{FilesGrant, Grant, OutgoingGrant};
use protocol::outgoing::{Datagram, DatagramDecoder, TCP, TcpConnect, UDP, UdpOpen, UdpPeer};
use protocol::rpc::{
    AccessMode, FileRef, LinkRequest, ListEnvRequest, MakeDirectoryRequest, OpenRequest,
    RenameRequest, SetModeRequest, StatRequest, SymbolicLinkRequest, UnlinkRequest,
};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tonic::Status;

use crate::client::{Client, errno};
use crate::environment::{Target, target};
use crate::outgoing::{LOOPBACK_LOAD, datagram, frame, next_datagram};

async fn client_with_grant(target: &Target, grant: &Grant) -> Client {
    let agent = Agent::for_process_with_grant(target.pid, grant).unwrap();
    let client = Client::connect(agent).await;
    client.hello("").await.unwrap();
    client
}

async fn open(client: &Client, path: &str, mode: AccessMode) -> Result<u64, Status> {
    let request = OpenRequest {
        path: path.to_owned().into(),
        access_mode: mode.into(),
        ..OpenRequest::default()
    };
    client.open(request).await.map(|opened| opened.handle)
}

#[tokio::test]
#[ignore = "needs root"]
async fn hidden_variables_are_not_readable() {
    let target = target();
    let grant = Grant {
        hidden_variables: vec!["GREET*".to_owned()],
        ..Grant::default()
    };
    let client = client_with_grant(&target, &grant).await;
    let listed = client.env().list(ListEnvRequest {}).await.unwrap();
    let variables = listed.into_inner().variables;
    let has = |name: &str| variables.iter().any(|variable| variable.name == name);
    assert!(has("PATH") && !has("GREETING"));
    let environ = open(&client, "/proc/1/environ", AccessMode::Read).await;
    assert_eq!(errno(environ), libc::ENOENT);
}

#[tokio::test]
#[ignore = "needs root"]
async fn hidden_files_are_not_reachable_by_any_path() {
    let target = target();
    let grant = Grant {
        files: FilesGrant {
            hidden: vec!["^/etc/greeting$".to_owned()],
            read_only: Vec::new(),
        },
        ..Grant::default()
    };
    let client = client_with_grant(&target, &grant).await;
    // By its path, by links of the target, by equivalent paths, and by /proc.
    for path in [
        "/etc/greeting",
        "/etc//./greeting",
        "/srv/../etc/greeting",
        "/srv/absolute",
        "/srv/upward",
        "/proc/1/root/etc/greeting",
    ] {
        let opened = open(&client, path, AccessMode::Read).await;
        assert_eq!(errno(opened), libc::ENOENT, "{path}");
        let file_ref = Some(FileRef::path(path));
        let stat = client.files().stat(StatRequest { file: file_ref }).await;
        assert_eq!(errno(stat), libc::ENOENT, "{path}");
    }
    // By a link that the session creates.
    let link = SymbolicLinkRequest {
        path: "/srv/data/link".into(),
        target: "/etc/greeting".into(),
    };
    client.files().symbolic_link(link).await.unwrap();
    let opened = open(&client, "/srv/data/link", AccessMode::Read).await;
    assert_eq!(errno(opened), libc::ENOENT);
    // Other files are readable.
    assert!(open(&client, "/etc/hosts", AccessMode::Read).await.unwrap() > 0);
}

#[tokio::test]
#[ignore = "needs root"]
async fn read_only_files_cannot_be_changed() {
    let target = target();
    let folder = target.path("/srv/data/kept");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("file"), "as it was").unwrap();
    for path in [folder.clone(), folder.join("file")] {
        std::os::unix::fs::chown(path, Some(1234), Some(1235)).unwrap();
    }
    let grant = Grant {
        files: FilesGrant {
            read_only: vec!["^/srv/data/kept(/|$)".to_owned()],
            hidden: Vec::new(),
        },
        ..Grant::default()
    };
    let client = client_with_grant(&target, &grant).await;
    let file = "/srv/data/kept/file";
    let handle = open(&client, file, AccessMode::Read).await.unwrap();
    for mode in [AccessMode::Write, AccessMode::ReadWrite] {
        assert_eq!(errno(open(&client, file, mode).await), libc::EROFS);
    }
    let new = OpenRequest {
        path: "/srv/data/kept/new".into(),
        access_mode: AccessMode::Write.into(),
        create: true,
        mode: 0o600,
        ..OpenRequest::default()
    };
    assert_eq!(errno(client.open(new).await), libc::EROFS);
    let mut files = client.files();
    let path = || Bytes::from_static(b"/srv/data/kept/file");
    assert_eq!(
        errno(files.unlink(UnlinkRequest { path: path() }).await),
        libc::EROFS
    );
    let rename = RenameRequest {
        from: "/srv/data/kept".into(),
        to: "/srv/data/moved".into(),
        ..RenameRequest::default()
    };
    assert_eq!(errno(files.rename(rename).await), libc::EROFS);
    // A hard link would be writable.
    let link = LinkRequest {
        from: Some(FileRef::path(file)),
        to: "/srv/data/second".into(),
    };
    assert_eq!(errno(files.link(link).await), libc::EROFS);
    for file_ref in [FileRef::path(file), FileRef::handle(handle)] {
        let request = SetModeRequest {
            file: Some(file_ref),
            mode: 0o777,
        };
        assert_eq!(errno(files.set_mode(request).await), libc::EROFS);
    }
    let request = MakeDirectoryRequest {
        path: "/srv/data/kept/folder".into(),
        mode: 0o700,
    };
    assert_eq!(errno(files.make_directory(request).await), libc::EROFS);
    assert_eq!(fs::read(folder.join("file")).unwrap(), b"as it was");
    // Other files can be changed.
    let other = OpenRequest {
        path: "/srv/data/other".into(),
        access_mode: AccessMode::Write.into(),
        create: true,
        mode: 0o600,
        ..OpenRequest::default()
    };
    assert!(client.open(other).await.unwrap().handle > 0);
}

#[tokio::test]
#[ignore = "needs root"]
async fn connections_to_forbidden_addresses_are_refused() {
    let target = target();
    let _listening = [
        target.listen("10.9.0.1:7100"),
        target.listen("10.9.0.1:7101"),
    ];
    let grant = Grant {
        outgoing: OutgoingGrant {
            only: vec![vec!["10.9.0.0/16".to_owned()]],
            none_of: vec![":7101".to_owned()],
        },
        ..Grant::default()
    };
    let client = client_with_grant(&target, &grant).await;
    let tcp = async |address: &str| {
        let connect = TcpConnect {
            address: address.parse().unwrap(),
            bind: None,
        };
        let connected = client.connect_stream(TCP, connect.to_headers()).await;
        connected.map(drop).map_err(|failure| failure.number())
    };
    assert_eq!(tcp("10.9.0.1:7100").await, Ok(()));
    assert_eq!(tcp("10.9.0.1:7101").await, Err(Some(libc::EPERM)));
    assert_eq!(tcp("[::ffff:10.9.0.1]:7101").await, Err(Some(libc::EPERM)));
    assert_eq!(tcp("127.0.0.1:7100").await, Err(Some(libc::EPERM)));
    let open = UdpOpen {
        peer: UdpPeer::Connected("127.0.0.1:53".parse().unwrap()),
        bind: None,
    };
    let connected = client.connect_stream(UDP, open.to_headers()).await;
    let refused = connected.map(drop).map_err(|failure| failure.number());
    assert_eq!(refused, Err(Some(libc::EPERM)));
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_changed_grant_closes_forbidden_resources() {
    let target = target();
    let _listening = [
        target.listen("10.9.0.1:7100"),
        target.listen("10.9.0.1:7101"),
    ];
    let agent = Agent::for_process_with_grant(target.pid, &Grant::default()).unwrap();
    let client = Client::connect(agent.clone()).await;
    client.hello("").await.unwrap();
    let hidden = open(&client, "/srv/absolute", AccessMode::Read)
        .await
        .unwrap();
    let seen = open(&client, "/etc/hosts", AccessMode::Read).await.unwrap();
    let mut bodies = Vec::new();
    for address in ["10.9.0.1:7100", "10.9.0.1:7101"] {
        let connect = TcpConnect {
            address: address.parse().unwrap(),
            bind: None,
        };
        let connected = client.connect_stream(TCP, connect.to_headers()).await;
        bodies.push(connected.map_err(|failure| failure.number()).unwrap());
    }
    let grant = Grant {
        hidden_variables: vec!["GREET*".to_owned()],
        files: FilesGrant {
            hidden: vec!["^/etc/greeting$".to_owned()],
            read_only: Vec::new(),
        },
        outgoing: OutgoingGrant {
            only: Vec::new(),
            none_of: vec![":7101".to_owned()],
        },
        ..Grant::default()
    };
    assert!(agent.regrant(&grant).await.unwrap());
    assert!(!agent.regrant(&grant).await.unwrap(), "unchanged");
    // The hidden file is closed, also if it was opened by another path. Other files stay open.
    let read = client
        .read(hidden, 0, 10)
        .await
        .map_err(|failure| failure.number());
    assert_eq!(read, Err(Some(libc::EBADF)));
    assert!(client.read(seen, 0, 10).await.is_ok());
    let listed = client.env().list(ListEnvRequest {}).await.unwrap();
    let variables = listed.into_inner().variables;
    assert!(!variables.iter().any(|variable| variable.name == "GREETING"));
    let (_to_reset, reset) = bodies.pop().unwrap();
    let ended = reset.into_body().collect().await.unwrap();
    let failure = ended.trailers().and_then(Failure::from_headers);
    assert_eq!(failure.unwrap().number(), Some(libc::ECONNRESET));
    let (to_kept, _kept) = bodies.pop().unwrap();
    assert!(to_kept.send(Bytes::from_static(b"still")).await.is_ok());
    // A malformed rule changes nothing.
    let wrong = Grant {
        files: FilesGrant {
            hidden: vec!["(".to_owned()],
            read_only: Vec::new(),
        },
        ..Grant::default()
    };
    assert!(agent.regrant(&wrong).await.is_err());
    let opened = open(&client, "/etc/greeting", AccessMode::Read).await;
    assert_eq!(errno(opened), libc::ENOENT);
    // Without the rules, the file is readable again.
    assert!(agent.regrant(&Grant::default()).await.unwrap());
    assert!(
        open(&client, "/etc/greeting", AccessMode::Read)
            .await
            .is_ok()
    );
}

/// An open UDP socket at the agent.
struct Udp {
    to_peers: mpsc::Sender<Bytes>,
    from_peers: Incoming,
    decoder: DatagramDecoder,
}

impl Udp {
    async fn open(client: &Client, peer: UdpPeer) -> Self {
        let open = UdpOpen { peer, bind: None };
        let opened = client.connect_stream(UDP, open.to_headers()).await;
        let (to_peers, response) = opened.unwrap();
        Self {
            to_peers,
            from_peers: response.into_body(),
            decoder: DatagramDecoder::default(),
        }
    }

    async fn next(&mut self) -> Datagram {
        next_datagram(&mut self.from_peers, &mut self.decoder).await
    }

    /// Sends a datagram and receives one. Returns the address of the socket.
    async fn exchange(&mut self, to: Option<&str>, peer: &UdpSocket) -> SocketAddr {
        self.to_peers.send(frame(to, b"ping")).await.unwrap();
        let (_, from) = peer.recv_from(&mut [0; 16]).await.unwrap();
        peer.send_to(b"before", from).await.unwrap();
        assert_eq!(self.next().await, datagram(to, b"before"));
        from
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn nothing_is_received_from_a_forbidden_udp_peer() {
    const FORBIDDEN: &str = "10.9.0.1:7300";
    const KEPT: &str = "10.9.0.1:7301";
    let _no_load = LOOPBACK_LOAD.read().await;
    let target = target();
    let agent = Agent::for_process_with_grant(target.pid, &Grant::default()).unwrap();
    let client = Client::connect(agent.clone()).await;
    client.hello("").await.unwrap();
    let (forbidden, kept) = (target.udp(FORBIDDEN), target.udp(KEPT));
    let connected = |address: &str| UdpPeer::Connected(address.parse().unwrap());
    let mut to_forbidden = Udp::open(&client, connected(FORBIDDEN)).await;
    let mut to_kept = Udp::open(&client, connected(KEPT)).await;
    let mut unconnected = Udp::open(&client, UdpPeer::AnyIpv4).await;
    let first = to_forbidden.exchange(None, &forbidden).await;
    let second = to_kept.exchange(None, &kept).await;
    let third = unconnected.exchange(Some(FORBIDDEN), &forbidden).await;
    assert_eq!(unconnected.exchange(Some(KEPT), &kept).await, third);
    let grant = Grant {
        outgoing: OutgoingGrant {
            only: Vec::new(),
            none_of: vec![format!("udp://{FORBIDDEN}")],
        },
        ..Grant::default()
    };
    assert!(agent.regrant(&grant).await.unwrap());
    for (peer, socket) in [
        (&forbidden, first),
        (&kept, second),
        (&forbidden, third),
        (&kept, third),
    ] {
        peer.send_to(b"after", socket).await.unwrap();
    }
    assert_eq!(to_forbidden.next().await, Datagram::Failed(libc::EPERM));
    let rest = to_forbidden.from_peers.collect().await.unwrap();
    assert!(rest.to_bytes().is_empty(), "the socket has ended");
    assert_eq!(to_kept.next().await, datagram(None, b"after"));
    // The datagram of the forbidden peer was sent before this one.
    assert_eq!(unconnected.next().await, datagram(Some(KEPT), b"after"));
}
