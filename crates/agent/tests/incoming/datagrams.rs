//! UDP: who gets which datagram, and from where the answers come.

use std::net::SocketAddr;
use std::sync::Arc;

use agent::incoming::redirect::{Port, Redirect};
use tokio::net::UdpSocket;

use crate::programs::soon;
use crate::world::{FROM_INSIDE, FROM_OUTSIDE, Network, TARGET_IPV4, socket_address, world};

/// More than one packet can carry.
const LARGE: usize = 20_000;

fn socket(network: &Network, address: SocketAddr) -> UdpSocket {
    let socket = network.inside(|| std::net::UdpSocket::bind(address).expect("the port is free"));
    socket.set_nonblocking(true).expect("it is a socket");
    UdpSocket::from_std(socket).expect("there is a runtime")
}

/// A client that takes answers only from where it has sent to.
pub(crate) async fn client(network: &Network, to: SocketAddr) -> UdpSocket {
    let any = if to.is_ipv4() { "0.0.0.0" } else { "::" };
    let socket = socket(network, socket_address(any, 0));
    socket.connect(to).await.expect("there is a way");
    socket
}

/// Says who it is and what it got.
pub(crate) fn start_application(network: &Network, port: u16) {
    for any in ["0.0.0.0", "::"] {
        // As most applications do, it binds to all addresses and shares its port with nobody.
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
                let answer = [b"application:", &buffer[..length]].concat();
                let _ = socket.send_to(&answer, peer).await;
            }
        });
    }
}

pub(crate) async fn exchange(client: &UdpSocket, payload: &[u8]) -> Vec<u8> {
    client.send(payload).await.expect("it is sent");
    let mut buffer = vec![0; 65_535];
    let length = soon(client.recv(&mut buffer))
        .await
        .expect("it is answered");
    buffer.truncate(length);
    buffer
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_redirected_port_reaches_the_agent_and_answers_come_from_where_they_should() {
    let Some(world) = world() else { return };
    start_application(&world.target, 53);
    let redirect = world.redirect().await;
    redirect.add_port(Port::udp(53)).await.unwrap();
    let outside = FROM_OUTSIDE.map(|address| (&world.client, address));
    let inside = FROM_INSIDE.map(|address| (&world.target, address));
    for (network, address) in outside.into_iter().chain(inside) {
        let to = socket_address(address, 53);
        let client = client(network, to).await;
        for payload in [&b"question"[..], b"", &[7; LARGE]] {
            let answered = async {
                let datagram = soon(redirect.receive()).await.unwrap();
                assert_eq!(datagram.payload, payload);
                assert_eq!(datagram.flow.peer, client.local_addr().unwrap());
                assert_eq!(datagram.flow.original_destination, to);
                datagram.flow.reply(b"agent:").await.unwrap();
                // Passed on, it reaches the application.
                let original = redirect.open_udp_to_original(to).await.unwrap();
                exchange(&original, payload).await
            };
            let (answer, original) = tokio::join!(exchange(&client, payload), answered);
            assert_eq!(answer, b"agent:");
            assert_eq!(original, [b"application:", payload].concat());
        }
        // A large answer is cut into packets and comes whole.
        client.send(b"more").await.unwrap();
        let flow = soon(redirect.receive()).await.unwrap().flow;
        flow.reply(&[9; LARGE]).await.unwrap();
        let mut buffer = vec![0; 65_535];
        assert_eq!(soon(client.recv(&mut buffer)).await.unwrap(), LARGE);
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_removed_port_is_the_applications_again_and_late_answers_still_come() {
    let Some(world) = world() else { return };
    start_application(&world.target, 53);
    let redirect = world.redirect().await;
    let to = socket_address(TARGET_IPV4, 53);
    let early = client(&world.client, to).await;
    assert_eq!(exchange(&early, b"1").await, b"application:1");
    for _ in 0..3 {
        redirect.add_port(Port::udp(53)).await.unwrap();
        // Datagrams have no connection: also those of a peer that the application knows are ours.
        early.send(b"2").await.unwrap();
        let flow = soon(redirect.receive()).await.unwrap().flow;
        redirect.remove_port(Port::udp(53)).await.unwrap();
        assert_eq!(exchange(&early, b"3").await, b"application:3");
        flow.reply(b"late").await.unwrap();
        let mut buffer = [0; 16];
        let length = soon(early.recv(&mut buffer)).await.unwrap();
        assert_eq!(&buffer[..length], b"late");
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn an_answer_to_a_redirected_port_is_not_redirected_itself() {
    let Some(world) = world() else { return };
    let redirect = world.redirect().await;
    redirect.add_port(Port::udp(53)).await.unwrap();
    // Both ends have the same port, and the answer comes by the same way.
    let client = socket(&world.target, socket_address("127.0.0.2", 53));
    let to = socket_address("127.0.0.1", 53);
    client.send_to(b"question", to).await.unwrap();
    let datagram = soon(redirect.receive()).await.unwrap();
    datagram.flow.reply(b"answer").await.unwrap();
    let mut buffer = [0; 16];
    let (length, from) = soon(client.recv_from(&mut buffer)).await.unwrap();
    assert_eq!((&buffer[..length], from), (&b"answer"[..], to));
}

#[tokio::test]
#[ignore = "needs root"]
async fn ports_of_udp_are_told_apart() {
    let Some(world) = world() else { return };
    let redirect: Arc<Redirect> = Arc::new(world.redirect().await);
    let ports = [1000, 1001, 1002].map(Port::udp);
    redirect.change(&ports, &[]).await.unwrap();
    let answering = Arc::clone(&redirect);
    tokio::spawn(async move {
        while let Ok(datagram) = answering.receive().await {
            let port = datagram.flow.original_destination.port();
            let _ = datagram.flow.reply(port.to_string().as_bytes()).await;
        }
    });
    for address in FROM_OUTSIDE {
        for port in ports {
            let client = client(&world.client, socket_address(address, port.number)).await;
            let answer = exchange(&client, b"who").await;
            assert_eq!(answer, port.number.to_string().as_bytes());
        }
    }
}
