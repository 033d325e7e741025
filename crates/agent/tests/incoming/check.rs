//! The check of the redirection: what it verifies, and that it fails if nothing is received.

use std::thread;

use agent::Error;
use agent::incoming::redirect::{Port, RedirectEvidence};
use rustix::net::sockopt::socket_cookie;

use crate::environment::{Environment, TARGET_IPV4, enter, environment, socket_address};
use crate::programs::{Application, Client, with_timeout};

const PORTS: [Port; 2] = [
    Port {
        protocol: agent::incoming::redirect::Protocol::Tcp,
        number: 80,
    },
    Port {
        protocol: agent::incoming::redirect::Protocol::Udp,
        number: 80,
    },
];

#[tokio::test]
#[ignore = "needs root"]
async fn without_a_route_from_outside_only_loopback_is_verified() {
    let environment = environment();
    let mut application = Application::start(&environment.target, 80);
    // The agent of this test is in a network that is not connected to the target.
    let redirect = environment.redirect().await;
    for port in PORTS {
        redirect.add_port(port).await.unwrap();
        let report = redirect.check(port).await.unwrap();
        assert_eq!(report.evidence, RedirectEvidence::Loopback, "{report}");
        assert!(report.to_string().ends_with("checked on loopback only"));
    }
    assert!(application.peers.try_recv().is_err());

    // The first real client is stronger evidence, and probes are not mistaken for clients.
    let client = Client::connect(&environment.client, socket_address(TARGET_IPV4, 80)).await;
    let connection = with_timeout(redirect.accept()).await.unwrap();
    assert_eq!(connection.peer, client.own_address());
    assert_eq!(redirect.evidence(Port::tcp(80)), RedirectEvidence::External);
    assert_eq!(redirect.evidence(Port::udp(80)), RedirectEvidence::Loopback);
    // Removing a port discards its evidence.
    redirect.remove_port(Port::tcp(80)).await.unwrap();
    assert_eq!(
        redirect.evidence(Port::tcp(80)),
        RedirectEvidence::Unverified
    );
}

/// Runs an agent that is in the client's network.
fn run_in_client_network(environment: &Environment, act: impl AsyncFnOnce(&Environment) + Send) {
    let pid = environment.client.pid();
    let run = || {
        enter(pid);
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(act(environment));
    };
    thread::scope(|scope| scope.spawn(run).join().expect("the closure does not panic"));
}

#[test]
#[ignore = "needs root"]
fn with_a_route_from_outside_the_redirection_is_verified_externally() {
    let environment = environment();
    run_in_client_network(&environment, async |environment| {
        let redirect = environment.redirect().await;
        for port in PORTS {
            redirect.add_port(port).await.unwrap();
            let report = redirect.check(port).await.unwrap();
            assert_eq!(report.evidence, RedirectEvidence::External, "{report}");
        }
    });
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_sockets_of_the_application_are_listed_and_not_those_of_the_agent() {
    let environment = environment();
    let redirect = environment.redirect().await;
    for port in PORTS {
        redirect.add_port(port).await.unwrap();
        assert_eq!(redirect.listeners(port).await.unwrap(), Vec::<u64>::new());
    }
    let (tcp, udp) = environment.target.inside(|| {
        let tcp = std::net::TcpListener::bind("[::]:80").unwrap();
        (tcp, std::net::UdpSocket::bind("0.0.0.0:80").unwrap())
    });
    let cookies = [socket_cookie(&tcp).unwrap(), socket_cookie(&udp).unwrap()];
    for (port, cookie) in PORTS.into_iter().zip(cookies) {
        assert_eq!(redirect.listeners(port).await.unwrap(), [cookie], "{port}");
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_check_fails_if_nothing_is_received() {
    let environment = environment();
    let _application = Application::start(&environment.target, 80);
    let redirect = environment.redirect().await;
    // The ports were never added.
    for port in PORTS {
        let error = redirect.check(port).await.expect_err("nothing is received");
        assert!(matches!(error, Error::NotRedirected { .. }), "{error}");
    }
    // A rule of another program drops the traffic.
    for port in PORTS {
        redirect.add_port(port).await.unwrap();
    }
    environment.target.feed(
        "nft -f -",
        "table inet other {\n chain first {\n type filter hook prerouting priority -300\n th dport 80 drop\n }\n }\n",
    );
    for port in PORTS {
        let error = redirect.check(port).await.expect_err("nothing is received");
        assert!(error.to_string().contains("nft list ruleset"), "{error}");
    }
}
