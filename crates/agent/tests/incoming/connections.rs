//! TCP: which server gets which connection, with which addresses.

use std::sync::Arc;

use agent::Error;
use agent::incoming::redirect::{Port, RedirectEvidence};
use tokio::io::AsyncReadExt as _;

use crate::environment::{
    CLIENT_IPV4, CLIENT_IPV6, FROM_INSIDE, FROM_OUTSIDE, ROUTED_IPV4, TARGET_IPV4, TARGET_IPV6,
    environment, socket_address,
};
use crate::programs::{
    AGENT, APPLICATION, Application, Client, echo, echo_all, identify_server, socket, with_timeout,
};

#[tokio::test]
#[ignore = "needs root"]
async fn a_redirected_port_reaches_the_agent_with_the_real_addresses() {
    let environment = environment();
    let mut application = Application::start(&environment.target, 80);
    let redirect = environment.redirect().await;
    redirect.add_port(Port::tcp(80)).await.unwrap();
    assert_eq!(redirect.ports(), [Port::tcp(80)]);
    assert_eq!(
        redirect.evidence(Port::tcp(80)),
        RedirectEvidence::Unverified
    );

    let outside = FROM_OUTSIDE.map(|address| (&environment.client, address));
    let inside = FROM_INSIDE.map(|address| (&environment.target, address));
    for (network, address) in inside.into_iter().chain(outside) {
        let to = socket_address(address, 80);
        let mut client = Client::connect(network, to).await;
        let connection = with_timeout(redirect.accept()).await.unwrap();
        assert_eq!(connection.peer, client.own_address());
        assert_eq!(connection.original_destination, to);
        tokio::spawn(echo(connection.stream, AGENT));
        assert_eq!(client.server_name().await, AGENT);
        client.echo().await;

        // A connection of the agent reaches the application, which sees the pod's own address.
        let original = redirect.connect_to_application(to).await.unwrap();
        let own = original.local_addr().unwrap();
        let mut original = Client { stream: original };
        assert_eq!(original.server_name().await, APPLICATION);
        original.echo().await;
        assert_eq!(application.peers.recv().await, Some(own));
        assert_eq!(own.ip(), to.ip());
    }
    assert_eq!(redirect.evidence(Port::tcp(80)), RedirectEvidence::External);
    assert!(application.peers.try_recv().is_err());
}

#[tokio::test]
#[ignore = "needs root"]
async fn other_ports_and_outgoing_connections_are_not_redirected() {
    let environment = environment();
    let _application = Application::start(&environment.target, 81);
    let _elsewhere = Application::start(&environment.client, 80);
    let redirect = Arc::new(environment.redirect().await);
    echo_all(&redirect);
    redirect.add_port(Port::tcp(80)).await.unwrap();
    for address in FROM_OUTSIDE {
        let to = socket_address(address, 81);
        assert_eq!(identify_server(&environment.client, to).await, APPLICATION);
    }
    // The same port of another host.
    let to = socket_address(crate::environment::CLIENT_IPV4, 80);
    assert_eq!(identify_server(&environment.target, to).await, APPLICATION);
}

#[tokio::test]
#[ignore = "needs root"]
async fn packets_that_are_only_forwarded_are_not_redirected() {
    let environment = environment();
    let redirect = Arc::new(environment.redirect().await);
    echo_all(&redirect);
    redirect.add_port(Port::tcp(80)).await.unwrap();
    // The target routes packets to another network, as a node does for its pods.
    let routed_network = environment.routed_network();
    let _elsewhere = Application::start(&routed_network, 80);
    let to = socket_address(ROUTED_IPV4, 80);
    assert_eq!(identify_server(&environment.client, to).await, APPLICATION);
    assert_eq!(
        identify_server(&routed_network, socket_address(TARGET_IPV4, 80)).await,
        AGENT
    );
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_network_without_ipv6_works() {
    let environment = environment();
    environment.target.inside(|| {
        std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
    });
    let redirect = Arc::new(environment.redirect().await);
    echo_all(&redirect);
    redirect.add_port(Port::tcp(80)).await.unwrap();
    let to = socket_address(TARGET_IPV4, 80);
    assert_eq!(identify_server(&environment.client, to).await, AGENT);
    redirect.check(Port::tcp(80)).await.unwrap();
}

#[tokio::test]
#[ignore = "needs root"]
async fn connections_with_syn_cookies_are_redirected() {
    let environment = environment();
    let _application = Application::start(&environment.target, 80);
    // As in a SYN flood, the kernel has no state of a connection before its third packet.
    environment.target.inside(|| {
        std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").unwrap();
    });
    let redirect = Arc::new(environment.redirect().await);
    echo_all(&redirect);
    redirect.add_port(Port::tcp(80)).await.unwrap();
    for address in FROM_OUTSIDE {
        let to = socket_address(address, 80);
        assert_eq!(identify_server(&environment.client, to).await, AGENT);
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn open_connections_are_not_affected_by_changes() {
    let environment = environment();
    let application = Application::start(&environment.target, 80);
    let redirect = Arc::new(environment.redirect().await);
    echo_all(&redirect);
    for address in FROM_OUTSIDE {
        let to = socket_address(address, 80);
        let mut before = Client::connect(&environment.client, to).await;
        assert_eq!(before.server_name().await, APPLICATION);

        redirect.add_port(Port::tcp(80)).await.unwrap();
        before.echo().await;
        let mut during = Client::connect(&environment.client, to).await;
        assert_eq!(during.server_name().await, AGENT);
        before.echo().await;

        redirect.remove_port(Port::tcp(80)).await.unwrap();
        during.echo().await;
        before.echo().await;
        assert_eq!(identify_server(&environment.client, to).await, APPLICATION);
        assert_eq!(redirect.ports(), []);
    }
    application.stop().await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_client_that_reuses_its_port_is_redirected_again() {
    let environment = environment();
    let _application = Application::start(&environment.target, 80);
    let redirect = environment.redirect().await;
    redirect.add_port(Port::tcp(80)).await.unwrap();
    let clients = [
        (CLIENT_IPV4, 40_004, TARGET_IPV4),
        (CLIENT_IPV6, 40_006, TARGET_IPV6),
    ];
    for (own, port, address) in clients {
        let to = socket_address(address, 80);
        let socket = || {
            let socket = environment.client.inside(|| socket(to));
            socket.set_reuseaddr(true).unwrap();
            socket.bind(socket_address(own, port)).unwrap();
            socket
        };
        let mut client = Client::connect_with(socket(), to).await;
        // The side that closes first keeps the connection in TIME_WAIT for a minute.
        drop(with_timeout(redirect.accept()).await.unwrap());
        assert_eq!(client.stream.read(&mut [0]).await.unwrap(), 0);
        drop(client);
        environment.target.wait_for_time_wait(port).await;

        let mut again = Client::connect_with(socket(), to).await;
        let connection = with_timeout(redirect.accept()).await.unwrap();
        tokio::spawn(echo(connection.stream, AGENT));
        assert_eq!(again.server_name().await, AGENT);
        again.echo().await;
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_application_can_restart_while_the_agent_has_connections_on_its_port() {
    let environment = environment();
    let application = Application::start(&environment.target, 80);
    let redirect = Arc::new(environment.redirect().await);
    echo_all(&redirect);
    redirect.add_port(Port::tcp(80)).await.unwrap();
    let mut clients = Vec::new();
    for address in FROM_OUTSIDE {
        let mut client = Client::connect(&environment.client, socket_address(address, 80)).await;
        assert_eq!(client.server_name().await, AGENT);
        clients.push(client);
    }
    application.stop().await;
    // Without an application the port is still redirected.
    let to = socket_address(TARGET_IPV4, 80);
    assert_eq!(identify_server(&environment.client, to).await, AGENT);
    let _again = Application::start(&environment.target, 80);
    for client in &mut clients {
        client.echo().await;
    }
    redirect.remove_port(Port::tcp(80)).await.unwrap();
    assert_eq!(identify_server(&environment.client, to).await, APPLICATION);
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_port_is_redirected_by_one_agent_and_the_error_of_the_next_names_the_holder() {
    let environment = environment();
    let _application = Application::start(&environment.target, 82);
    let first = environment.redirect_as("the session of Ada").await;
    let second = Arc::new(environment.redirect_as("the session of Grace").await);
    echo_all(&second);
    first.add_port(Port::tcp(80)).await.unwrap();
    // A change is atomic: if one port fails, no port is changed.
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
    // Both agents work side by side, and TCP and UDP ports are independent.
    second
        .change(&[Port::tcp(82), Port::udp(80)], &[])
        .await
        .unwrap();
    let to = socket_address(TARGET_IPV6, 82);
    assert_eq!(identify_server(&environment.client, to).await, AGENT);
    drop(first);
    // The rules are removed when the last task that uses them has ended.
    while let Err(error) = second.add_port(Port::tcp(80)).await {
        assert!(matches!(error, Error::PortTaken { .. }), "{error}");
        tokio::task::yield_now().await;
    }
    let to = socket_address(TARGET_IPV4, 80);
    assert_eq!(identify_server(&environment.client, to).await, AGENT);
    drop(second);
}

#[tokio::test]
#[ignore = "needs root"]
async fn adding_and_removing_are_idempotent() {
    let environment = environment();
    let redirect = environment.redirect().await;
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
async fn flushing_resets_the_connections_that_were_open_before() {
    let environment = environment();
    let _application = Application::start(&environment.target, 80);
    let _other = Application::start(&environment.target, 81);
    let redirect = Arc::new(environment.redirect().await);
    let mut before = Vec::new();
    for address in FROM_OUTSIDE {
        let mut client = Client::connect(&environment.client, socket_address(address, 80)).await;
        assert_eq!(client.server_name().await, APPLICATION);
        before.push(client);
    }
    let mut elsewhere = Client::connect(&environment.client, socket_address(TARGET_IPV4, 81)).await;
    assert_eq!(elsewhere.server_name().await, APPLICATION);

    redirect.add_port(Port::tcp(80)).await.unwrap();
    let mut stolen = Client::connect(&environment.client, socket_address(TARGET_IPV4, 80)).await;
    let connection = with_timeout(redirect.accept()).await.unwrap();
    let original = redirect.connect_to_application(connection.original_destination);
    let mut original = Client {
        stream: original.await.unwrap(),
    };
    tokio::spawn(echo(connection.stream, AGENT));
    assert_eq!(stolen.server_name().await, AGENT);
    assert_eq!(original.server_name().await, APPLICATION);

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
