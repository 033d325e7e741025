//! UDP: which server gets which datagram, and the source of the replies.

use std::net::SocketAddr;
use std::sync::Arc;

use agent::incoming::redirect::{Port, Redirect};
use tokio::net::UdpSocket;

use crate::environment::{
    FROM_INSIDE, FROM_OUTSIDE, Network, TARGET_IPV4, environment, socket_address,
};
use crate::programs::with_timeout;

/// More than one packet can carry.
const LARGE: usize = 20_000;

fn socket(network: &Network, address: SocketAddr) -> UdpSocket {
    let socket = network.inside(|| std::net::UdpSocket::bind(address).expect("the port is free"));
    socket.set_nonblocking(true).expect("it is a socket");
    UdpSocket::from_std(socket).expect("there is a runtime")
}

/// A client that accepts replies only from the address that it sends to.
pub(crate) async fn client(network: &Network, to: SocketAddr) -> UdpSocket {
    let any = if to.is_ipv4() { "0.0.0.0" } else { "::" };
    let socket = socket(network, socket_address(any, 0));
    socket.connect(to).await.expect("a route");
    socket
}

/// Starts an application that replies with its name and the datagram.
pub(crate) fn start_application(network: &Network, port: u16) {
    for any in ["0.0.0.0", "::"] {
        // As most applications do, it binds to all addresses, without SO_REUSEADDR.
        let network_socket = network.inside(|| match any {
            "::" => {
                let socket = rustix::net::socket(
                    rustix::net::AddressFamily::INET6,
                    rustix::net::SocketType::DGRAM,
                    None,
                )
                .expect("there is IPv6");
                rustix::net::sockopt::set_ipv6_v6only(&socket, true).expect("it is a socket");
                rustix::net::bind(&socket, &socket_address(any, port)).expect("the port is free");
                std::net::UdpSocket::from(socket)
            }
            _ => std::net::UdpSocket::bind(socket_address(any, port)).expect("the port is free"),
        });
        network_socket
            .set_nonblocking(true)
            .expect("it is a socket");
        let socket = UdpSocket::from_std(network_socket).expect("there is a runtime");
        tokio::spawn(async move {
            let mut buffer = vec![0; 65_535];
            while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
                let response = [b"application:", &buffer[..length]].concat();
                let _ = socket.send_to(&response, peer).await;
            }
        });
    }
}

pub(crate) async fn exchange(client: &UdpSocket, payload: &[u8]) -> Vec<u8> {
    client.send(payload).await.expect("it is sent");
    let mut buffer = vec![0; 65_535];
    let length = with_timeout(client.recv(&mut buffer))
        .await
        .expect("a reply");
    buffer.truncate(length);
    buffer
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_redirected_port_reaches_the_agent_and_replies_have_the_right_source() {
    let environment = environment();
    start_application(&environment.target, 53);
    let redirect = environment.redirect().await;
    redirect.add_port(Port::udp(53)).await.unwrap();
    let outside = FROM_OUTSIDE.map(|address| (&environment.client, address));
    let inside = FROM_INSIDE.map(|address| (&environment.target, address));
    for (network, address) in outside.into_iter().chain(inside) {
        let to = socket_address(address, 53);
        let client = client(network, to).await;
        for payload in [&b"request"[..], b"", &[7; LARGE]] {
            let handled = async {
                let datagram = with_timeout(redirect.receive()).await.unwrap();
                assert_eq!(datagram.payload, payload);
                assert_eq!(datagram.flow.peer, client.local_addr().unwrap());
                assert_eq!(datagram.flow.original_destination, to);
                datagram.flow.reply(b"agent:").await.unwrap();
                // A datagram from the agent reaches the application.
                let original = redirect.open_udp_to_application(to).await.unwrap();
                exchange(&original, payload).await
            };
            let (response, original) = tokio::join!(exchange(&client, payload), handled);
            assert_eq!(response, b"agent:");
            assert_eq!(original, [b"application:", payload].concat());
        }
        // A large reply is fragmented, and received completely.
        client.send(b"more").await.unwrap();
        let flow = with_timeout(redirect.receive()).await.unwrap().flow;
        flow.reply(&[9; LARGE]).await.unwrap();
        let mut buffer = vec![0; 65_535];
        assert_eq!(with_timeout(client.recv(&mut buffer)).await.unwrap(), LARGE);
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_removed_port_reaches_the_application_again_and_late_replies_are_sent() {
    let environment = environment();
    start_application(&environment.target, 53);
    let redirect = environment.redirect().await;
    let to = socket_address(TARGET_IPV4, 53);
    let early = client(&environment.client, to).await;
    assert_eq!(exchange(&early, b"1").await, b"application:1");
    for _ in 0..3 {
        redirect.add_port(Port::udp(53)).await.unwrap();
        // UDP has no connections: datagrams of a client that the application has served before are redirected, too.
        early.send(b"2").await.unwrap();
        let flow = with_timeout(redirect.receive()).await.unwrap().flow;
        redirect.remove_port(Port::udp(53)).await.unwrap();
        assert_eq!(exchange(&early, b"3").await, b"application:3");
        flow.reply(b"late").await.unwrap();
        let mut buffer = [0; 16];
        let length = with_timeout(early.recv(&mut buffer)).await.unwrap();
        assert_eq!(&buffer[..length], b"late");
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_reply_to_a_redirected_port_is_not_redirected() {
    let environment = environment();
    let redirect = environment.redirect().await;
    redirect.add_port(Port::udp(53)).await.unwrap();
    // Both ends have the same port, so the reply goes through the same rules.
    let client = socket(&environment.target, socket_address("127.0.0.2", 53));
    let to = socket_address("127.0.0.1", 53);
    client.send_to(b"request", to).await.unwrap();
    let datagram = with_timeout(redirect.receive()).await.unwrap();
    datagram.flow.reply(b"response").await.unwrap();
    let mut buffer = [0; 16];
    let (length, from) = with_timeout(client.recv_from(&mut buffer)).await.unwrap();
    assert_eq!((&buffer[..length], from), (&b"response"[..], to));
}

#[tokio::test]
#[ignore = "needs root"]
async fn several_udp_ports_are_distinguished() {
    let environment = environment();
    let redirect: Arc<Redirect> = Arc::new(environment.redirect().await);
    let ports = [1000, 1001, 1002].map(Port::udp);
    redirect.change(&ports, &[]).await.unwrap();
    let replying = Arc::clone(&redirect);
    tokio::spawn(async move {
        while let Ok(datagram) = replying.receive().await {
            let port = datagram.flow.original_destination.port();
            let _ = datagram.flow.reply(port.to_string().as_bytes()).await;
        }
    });
    for address in FROM_OUTSIDE {
        for port in ports {
            let client = client(&environment.client, socket_address(address, port.number)).await;
            let response = exchange(&client, b"port?").await;
            assert_eq!(response, port.number.to_string().as_bytes());
        }
    }
}
