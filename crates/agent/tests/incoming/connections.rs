//! TCP: who gets which connection, with which addresses.

use std::sync::Arc;

use agent::Error;
use agent::incoming::redirect::{Evidence, Port};

use tokio::io::AsyncReadExt as _;

use crate::programs::{
    AGENT, APPLICATION, Application, Client, answer_all, echo, socket, soon, who_answers,
};
use crate::world::{
    BEYOND_IPV4, CLIENT_IPV4, CLIENT_IPV6, FROM_INSIDE, FROM_OUTSIDE, TARGET_IPV4, TARGET_IPV6,
    socket_address, world,
};

#[tokio::test]
#[ignore = "needs root"]
async fn a_redirected_port_reaches_the_agent_with_the_real_addresses() {
    let Some(world) = world() else { return };
    let mut application = Application::start(&world.target, 80);
    let redirect = world.redirect().await;
    redirect.add_port(Port::tcp(80)).await.unwrap();
    assert_eq!(redirect.ports(), [Port::tcp(80)]);
    assert_eq!(redirect.evidence(Port::tcp(80)), Evidence::Nothing);

    let outside = FROM_OUTSIDE.map(|address| (&world.client, address));
    let inside = FROM_INSIDE.map(|address| (&world.target, address));
    for (network, address) in inside.into_iter().chain(outside) {
        let to = socket_address(address, 80);
        let mut client = Client::connect(network, to).await;
        let arrived = soon(redirect.accept()).await.unwrap();
        assert_eq!(arrived.peer, client.own_address());
        assert_eq!(arrived.original_destination, to);
        tokio::spawn(echo(arrived.stream, AGENT));
        assert_eq!(client.who().await, AGENT);
        client.echo().await;

        // Passed on, it reaches the application, which sees the pod's own address.
        let original = redirect.connect_to_original(to).await.unwrap();
        let own = original.local_addr().unwrap();
        let mut original = Client { stream: original };
        assert_eq!(original.who().await, APPLICATION);
        original.echo().await;
        assert_eq!(application.peers.recv().await, Some(own));
        assert_eq!(own.ip(), to.ip());
    }
    assert_eq!(redirect.evidence(Port::tcp(80)), Evidence::Outside);
    assert!(application.peers.try_recv().is_err());
}

#[tokio::test]
#[ignore = "needs root"]
async fn other_ports_and_what_the_target_itself_asks_for_are_left_alone() {
    let Some(world) = world() else { return };
    let _application = Application::start(&world.target, 81);
    let _elsewhere = Application::start(&world.client, 80);
    let redirect = Arc::new(world.redirect().await);
    answer_all(&redirect);
    redirect.add_port(Port::tcp(80)).await.unwrap();
    for address in FROM_OUTSIDE {
        let to = socket_address(address, 81);
        assert_eq!(who_answers(&world.client, to).await, APPLICATION);
    }
    // The same port of somebody else.
    let to = socket_address(crate::world::CLIENT_IPV4, 80);
    assert_eq!(who_answers(&world.target, to).await, APPLICATION);
}

#[tokio::test]
#[ignore = "needs root"]
async fn packets_that_are_only_forwarded_are_not_redirected() {
    let Some(world) = world() else { return };
    let redirect = Arc::new(world.redirect().await);
    answer_all(&redirect);
    redirect.add_port(Port::tcp(80)).await.unwrap();
    // Through the target, as pods are reached through their node.
    let beyond = world.beyond();
    let _elsewhere = Application::start(&beyond, 80);
    let to = socket_address(BEYOND_IPV4, 80);
    assert_eq!(who_answers(&world.client, to).await, APPLICATION);
    assert_eq!(
        who_answers(&beyond, socket_address(TARGET_IPV4, 80)).await,
        AGENT
    );
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_network_without_ipv6_is_enough() {
    let Some(world) = world() else { return };
    world.target.inside(|| {
        std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
    });
    let redirect = Arc::new(world.redirect().await);
    answer_all(&redirect);
    redirect.add_port(Port::tcp(80)).await.unwrap();
    let to = socket_address(TARGET_IPV4, 80);
    assert_eq!(who_answers(&world.client, to).await, AGENT);
    redirect.check(Port::tcp(80)).await.unwrap();
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_flood_of_connections_is_survived() {
    let Some(world) = world() else { return };
    let _application = Application::start(&world.target, 80);
    // As in a flood, the kernel remembers nothing of a connection before its third packet.
    world.target.inside(|| {
        std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").unwrap();
    });
    let redirect = Arc::new(world.redirect().await);
    answer_all(&redirect);
    redirect.add_port(Port::tcp(80)).await.unwrap();
    for address in FROM_OUTSIDE {
        let to = socket_address(address, 80);
        assert_eq!(who_answers(&world.client, to).await, AGENT);
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn open_connections_stay_where_they_are() {
    let Some(world) = world() else { return };
    let application = Application::start(&world.target, 80);
    let redirect = Arc::new(world.redirect().await);
    answer_all(&redirect);
    for address in FROM_OUTSIDE {
        let to = socket_address(address, 80);
        let mut before = Client::connect(&world.client, to).await;
        assert_eq!(before.who().await, APPLICATION);

        redirect.add_port(Port::tcp(80)).await.unwrap();
        before.echo().await;
        let mut during = Client::connect(&world.client, to).await;
        assert_eq!(during.who().await, AGENT);
        before.echo().await;

        redirect.remove_port(Port::tcp(80)).await.unwrap();
        during.echo().await;
        before.echo().await;
        assert_eq!(who_answers(&world.client, to).await, APPLICATION);
        assert_eq!(redirect.ports(), []);
    }
    application.stop().await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_client_that_uses_its_port_again_is_redirected_again() {
    let Some(world) = world() else { return };
    let _application = Application::start(&world.target, 80);
    let redirect = world.redirect().await;
    redirect.add_port(Port::tcp(80)).await.unwrap();
    let clients = [
        (CLIENT_IPV4, 40_004, TARGET_IPV4),
        (CLIENT_IPV6, 40_006, TARGET_IPV6),
    ];
    for (own, port, address) in clients {
        let to = socket_address(address, 80);
        let socket = || {
            let socket = world.client.inside(|| socket(to));
            socket.set_reuseaddr(true).unwrap();
            socket.bind(socket_address(own, port)).unwrap();
            socket
        };
        let mut client = Client::connect_with(socket(), to).await;
        // Whoever ends first remembers the connection for a minute.
        drop(soon(redirect.accept()).await.unwrap());
        assert_eq!(client.stream.read(&mut [0]).await.unwrap(), 0);
        drop(client);
        world.target.remembers(port).await;

        let mut again = Client::connect_with(socket(), to).await;
        let arrived = soon(redirect.accept()).await.unwrap();
        tokio::spawn(echo(arrived.stream, AGENT));
        assert_eq!(again.who().await, AGENT);
        again.echo().await;
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_application_can_start_again_while_its_connections_are_ours() {
    let Some(world) = world() else { return };
    let application = Application::start(&world.target, 80);
    let redirect = Arc::new(world.redirect().await);
    answer_all(&redirect);
    redirect.add_port(Port::tcp(80)).await.unwrap();
    let mut clients = Vec::new();
    for address in FROM_OUTSIDE {
        let mut client = Client::connect(&world.client, socket_address(address, 80)).await;
        assert_eq!(client.who().await, AGENT);
        clients.push(client);
    }
    application.stop().await;
    // Without an application the port is still ours.
    let to = socket_address(TARGET_IPV4, 80);
    assert_eq!(who_answers(&world.client, to).await, AGENT);
    let _again = Application::start(&world.target, 80);
    for client in &mut clients {
        client.echo().await;
    }
    redirect.remove_port(Port::tcp(80)).await.unwrap();
    assert_eq!(who_answers(&world.client, to).await, APPLICATION);
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_port_belongs_to_one_agent_and_the_next_is_told_to_whom() {
    let Some(world) = world() else { return };
    let _application = Application::start(&world.target, 82);
    let first = world.redirect_as("the session of Ada").await;
    let second = Arc::new(world.redirect_as("the session of Grace").await);
    answer_all(&second);
    first.add_port(Port::tcp(80)).await.unwrap();
    // Nothing of a change is done when one part of it cannot be.
    let refused = second.change(&[Port::tcp(81), Port::tcp(80)], &[]).await;
    match refused {
        Err(Error::PortTaken { port, holder, .. }) => {
            assert_eq!(port, Port::tcp(80));
            assert_eq!(holder, "the session of Ada");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(second.ports(), []);
    first.add_port(Port::tcp(81)).await.unwrap();
    // Both work side by side, and another protocol is another port.
    second
        .change(&[Port::tcp(82), Port::udp(80)], &[])
        .await
        .unwrap();
    let to = socket_address(TARGET_IPV6, 82);
    assert_eq!(who_answers(&world.client, to).await, AGENT);
    drop(first);
    // The rules go when the last task that uses them has ended.
    while let Err(error) = second.add_port(Port::tcp(80)).await {
        assert!(matches!(error, Error::PortTaken { .. }), "{error}");
        tokio::task::yield_now().await;
    }
    let to = socket_address(TARGET_IPV4, 80);
    assert_eq!(who_answers(&world.client, to).await, AGENT);
    drop(second);
}

#[tokio::test]
#[ignore = "needs root"]
async fn adding_and_removing_twice_is_adding_and_removing_once() {
    let Some(world) = world() else { return };
    let redirect = world.redirect().await;
    for _ in 0..2 {
        for port in [Port::tcp(80), Port::udp(80)] {
            redirect.add_port(port).await.unwrap();
            redirect.add_port(port).await.unwrap();
            redirect.change(&[port], &[port]).await.unwrap();
            assert_eq!(redirect.ports(), [port]);
            redirect.remove_port(port).await.unwrap();
            redirect.remove_port(port).await.unwrap();
            assert_eq!(redirect.ports(), []);
        }
    }
    assert!(redirect.add_port(Port::tcp(0)).await.is_err());
}

#[tokio::test]
#[ignore = "needs root"]
async fn flushing_resets_the_connections_that_were_there_before() {
    let Some(world) = world() else { return };
    let _application = Application::start(&world.target, 80);
    let _other = Application::start(&world.target, 81);
    let redirect = Arc::new(world.redirect().await);
    let mut before = Vec::new();
    for address in FROM_OUTSIDE {
        let mut client = Client::connect(&world.client, socket_address(address, 80)).await;
        assert_eq!(client.who().await, APPLICATION);
        before.push(client);
    }
    let mut elsewhere = Client::connect(&world.client, socket_address(TARGET_IPV4, 81)).await;
    assert_eq!(elsewhere.who().await, APPLICATION);

    redirect.add_port(Port::tcp(80)).await.unwrap();
    let mut stolen = Client::connect(&world.client, socket_address(TARGET_IPV4, 80)).await;
    let arrived = soon(redirect.accept()).await.unwrap();
    let original = redirect.connect_to_original(arrived.original_destination);
    let mut original = Client {
        stream: original.await.unwrap(),
    };
    tokio::spawn(echo(arrived.stream, AGENT));
    assert_eq!(stolen.who().await, AGENT);
    assert_eq!(original.who().await, APPLICATION);

    assert_eq!(redirect.flush_connections(80).await.unwrap(), before.len());
    for client in &mut before {
        let error = client.try_echo().await.expect_err("it was reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    for client in [&mut elsewhere, &mut stolen, &mut original] {
        client.echo().await;
    }
    assert_eq!(redirect.flush_connections(80).await.unwrap(), 0);
}
