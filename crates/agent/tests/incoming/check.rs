//! The self-check: what it proves, and that it is loud.

use std::thread;

use agent::Error;
use agent::incoming::redirect::{Evidence, Port};

use crate::programs::{Application, Client, soon};
use crate::world::{TARGET_IPV4, World, enter, socket_address, world};

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
async fn without_a_way_from_outside_loopback_is_what_is_proven() {
    let Some(world) = world() else { return };
    let mut application = Application::start(&world.target, 80);
    // The agent of this test is in a network without a cable to the target.
    let redirect = world.redirect().await;
    for port in PORTS {
        redirect.add_port(port).await.unwrap();
        let checked = redirect.check(port).await.unwrap();
        assert_eq!(checked.evidence, Evidence::Loopback, "{checked}");
        assert!(checked.to_string().ends_with("checked on loopback only"));
    }
    assert!(application.peers.try_recv().is_err());

    // The first real client is more than that, and no probe is taken for one.
    let client = Client::connect(&world.client, socket_address(TARGET_IPV4, 80)).await;
    let arrived = soon(redirect.accept()).await.unwrap();
    assert_eq!(arrived.peer, client.own_address());
    assert_eq!(redirect.evidence(Port::tcp(80)), Evidence::Outside);
    assert_eq!(redirect.evidence(Port::udp(80)), Evidence::Loopback);
    // What was known of a port is not known of it the next time.
    redirect.remove_port(Port::tcp(80)).await.unwrap();
    assert_eq!(redirect.evidence(Port::tcp(80)), Evidence::Nothing);
}

/// Runs an agent that lives in the client's network.
fn from_the_clients_network(world: &World, act: impl AsyncFnOnce(&World) + Send) {
    let pid = world.client.pid();
    let run = || {
        enter(pid);
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(act(world));
    };
    thread::scope(|scope| scope.spawn(run).join().expect("it does not panic"));
}

#[test]
#[ignore = "needs root"]
fn with_a_way_from_outside_more_is_proven() {
    let Some(world) = world() else { return };
    from_the_clients_network(&world, async |world| {
        let redirect = world.redirect().await;
        for port in PORTS {
            redirect.add_port(port).await.unwrap();
            let checked = redirect.check(port).await.unwrap();
            assert_eq!(checked.evidence, Evidence::Outside, "{checked}");
        }
    });
}

#[tokio::test]
#[ignore = "needs root"]
async fn nothing_that_arrives_is_an_error() {
    let Some(world) = world() else { return };
    let _application = Application::start(&world.target, 80);
    let redirect = world.redirect().await;
    // Never added.
    for port in PORTS {
        let error = redirect.check(port).await.expect_err("nothing arrives");
        assert!(matches!(error, Error::NothingArrives { .. }), "{error}");
    }
    // Taken away by a rule of somebody else.
    for port in PORTS {
        redirect.add_port(port).await.unwrap();
    }
    world.target.feed(
        "nft -f -",
        "table inet other {\n chain first {\n type filter hook prerouting priority -300\n th dport 80 drop\n }\n }\n",
    );
    for port in PORTS {
        let error = redirect.check(port).await.expect_err("nothing arrives");
        assert!(error.to_string().contains("nft list ruleset"), "{error}");
    }
}
