//! Addresses that a session must not connect to.

use std::net::{IpAddr, SocketAddr};

use bytes::{Bytes, BytesMut};
use protocol::grant::{Grant, OutgoingGrant};
use protocol::outgoing::{Datagram, TCP, TcpConnect, UDP, UdpOpen, UdpPeer};
use protocol::rpc::{Family, LookupRequest};
use tokio::net::UdpSocket;

use super::{Report, session, texts};
use crate::client::Client;
use crate::environment::{Target, target};

pub(super) async fn run(report: &mut Report) {
    let target = target();
    let _listening = [
        target.listen("127.0.0.1:7101"),
        target.listen("10.9.0.1:7101"),
        target.listen("10.9.0.1:7100"),
        target.listen("[::1]:7101"),
        target.listen("[fd00:9::1]:7101"),
    ];
    blocked(&target, report).await;
    allowed_only(&target, report).await;
    datagrams(&target, report).await;
}

fn outgoing(only: &[&str], none_of: &[&str]) -> Grant {
    Grant {
        outgoing: OutgoingGrant {
            only: match only {
                [] => Vec::new(),
                only => vec![texts(only)],
            },
            none_of: texts(none_of),
        },
        ..Grant::default()
    }
}

async fn can_connect(client: &Client, address: &str, bind: Option<&str>) -> bool {
    let connect = TcpConnect {
        address: address.parse().unwrap(),
        bind: bind.map(|bind| bind.parse().unwrap()),
    };
    let connected = client.connect_stream(TCP, connect.to_headers()).await;
    connected.is_ok()
}

async fn blocked(target: &Target, report: &mut Report) {
    let grant = outgoing(
        &[],
        &["127.0.0.0/8", "10.9.0.1:7101", "::1", "tcp://[fd00:9::/64]"],
    );
    let (_agent, client) = session(target, &grant).await;
    for (address, bind) in [
        ("127.0.0.1:7101", None),
        ("[::ffff:127.0.0.1]:7101", None),
        ("0.0.0.0:7101", None),
        ("[::ffff:0.0.0.0]:7101", None),
        ("[::]:7101", None),
        ("[::1]:7101", None),
        ("10.9.0.1:7101", None),
        ("[::ffff:10.9.0.1]:7101", None),
        ("0.0.0.0:7101", Some("10.9.0.1:0")),
        ("[fd00:9::1]:7101", None),
    ] {
        let connected = can_connect(&client, address, bind).await;
        report.attempt(
            format!("connecting to {address}, bound to {bind:?}"),
            connected,
        );
    }
    // The address of a DNS name is judged, wherever the name comes from.
    let lookup = LookupRequest {
        name: "localhost".to_owned(),
        family: Family::Ipv4.into(),
    };
    let found = client.dns().lookup(lookup).await.unwrap().into_inner();
    let ip: [u8; 4] = found.addresses[0].address[..].try_into().unwrap();
    let address = SocketAddr::new(IpAddr::from(ip), 7101).to_string();
    report.attempt(
        "connecting to a DNS name",
        can_connect(&client, &address, None).await,
    );
    report.control(
        "connecting to another port",
        can_connect(&client, "10.9.0.1:7100", None).await,
    );
    // Loopback is allowed here.
    let (_agent, client) = session(target, &outgoing(&[], &["10.9.0.1"])).await;
    report.attempt(
        "connecting to the socket's own address",
        can_connect(&client, "0.0.0.0:7101", Some("10.9.0.1:0")).await,
    );
    report.control(
        "connecting to loopback",
        can_connect(&client, "0.0.0.0:7101", None).await,
    );
}

async fn allowed_only(target: &Target, report: &mut Report) {
    let (_agent, client) = session(target, &outgoing(&["10.9.0.0/16"], &[])).await;
    for address in [
        "127.0.0.1:7101",
        "0.0.0.0:7101",
        "[::1]:7101",
        "[fd00:9::1]:7101",
    ] {
        let connected = can_connect(&client, address, None).await;
        report.attempt(
            format!("connecting to {address}, which no rule allows"),
            connected,
        );
    }
    for (address, bind) in [
        ("10.9.0.1:7101", None),
        ("0.0.0.0:7101", Some("10.9.0.1:0")),
    ] {
        let connected = can_connect(&client, address, bind).await;
        report.control(
            format!("connecting to {address}, which is allowed"),
            connected,
        );
    }
}

async fn datagrams(target: &Target, report: &mut Report) {
    // Datagrams are not dropped meanwhile.
    let _load = crate::outgoing::LOOPBACK_LOAD.read().await;
    let grant = outgoing(&[], &["udp://127.0.0.0/8", "udp://10.9.0.1:7202"]);
    let (_agent, client) = session(target, &grant).await;
    let (loopback, blocked, allowed) = (
        target.udp("127.0.0.1:7201"),
        target.udp("10.9.0.1:7202"),
        target.udp("10.9.0.1:7203"),
    );
    for address in [
        "127.0.0.1:7201",
        "10.9.0.1:7202",
        "[::ffff:10.9.0.1]:7202",
        "0.0.0.0:7201",
    ] {
        let open = UdpOpen {
            peer: UdpPeer::Connected(address.parse().unwrap()),
            bind: None,
        };
        let opened = client.connect_stream(UDP, open.to_headers()).await;
        report.attempt(
            format!("a UDP socket connected to {address}"),
            opened.is_ok(),
        );
    }
    for (peer, addresses) in [
        (
            UdpPeer::AnyIpv4,
            ["127.0.0.1:7201", "0.0.0.0:7201", "10.9.0.1:7202"],
        ),
        (
            UdpPeer::AnyIpv6,
            [
                "[::ffff:127.0.0.1]:7201",
                "[::ffff:0.0.0.0]:7201",
                "[::ffff:10.9.0.1]:7202",
            ],
        ),
    ] {
        for to in addresses {
            // A datagram to an allowed address follows on the same socket, so nothing else can still be on its path.
            let open = UdpOpen { peer, bind: None };
            let opened = client.connect_stream(UDP, open.to_headers()).await;
            let (to_peers, _from_peers) = opened.unwrap();
            let last = match peer {
                UdpPeer::AnyIpv6 => "[::ffff:10.9.0.1]:7203",
                _ => "10.9.0.1:7203",
            };
            for to in [to, last] {
                to_peers.send(datagram(to)).await.unwrap();
            }
            let arrived = allowed.recv(&mut [0; 16]).await;
            report.control(format!("a datagram after one to {to}"), arrived.is_ok());
            let has_passed = has_datagram(&loopback) || has_datagram(&blocked);
            report.attempt(format!("a datagram to {to}"), has_passed);
        }
    }
}

fn datagram(to: &str) -> Bytes {
    let mut frame = BytesMut::new();
    let datagram = Datagram::Payload {
        address: Some(to.parse().unwrap()),
        payload: Bytes::from_static(b"hello"),
    };
    datagram.encode(&mut frame);
    frame.freeze()
}

fn has_datagram(socket: &UdpSocket) -> bool {
    // Without the runtime's readiness, which may be late.
    let socket = rustix::net::recv(socket, &mut [0; 16][..], rustix::net::RecvFlags::DONTWAIT);
    socket.is_ok()
}
