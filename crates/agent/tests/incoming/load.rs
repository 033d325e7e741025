//! Many connections, and changes while they come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use agent::incoming::redirect::Port;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::programs::{AGENT, APPLICATION, Application, Client, answer_all};
use crate::world::{FROM_OUTSIDE, TARGET_IPV4, World, socket_address, world};

const CHANGES: usize = 200;
const CLIENTS: usize = 8;
const MANY: usize = 10_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs root"]
async fn no_connection_fails_while_ports_come_and_go() {
    let Some(world) = world() else { return };
    let world = Arc::new(world);
    let _application = Application::start(&world.target, 80);
    let redirect = Arc::new(world.redirect().await);
    answer_all(&redirect);
    let ended = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let address = FROM_OUTSIDE[number % FROM_OUTSIDE.len()];
            let (world, ended) = (Arc::clone(&world), Arc::clone(&ended));
            tokio::spawn(async move { connect_until(&world, address, &ended).await })
        })
        .collect();
    for _ in 0..CHANGES {
        redirect.add_port(Port::tcp(80)).await.unwrap();
        redirect.remove_port(Port::tcp(80)).await.unwrap();
    }
    ended.store(true, Ordering::Relaxed);
    let mut by_agent = 0;
    let mut by_application = 0;
    for client in clients {
        let (agent, application) = client.await.expect("no connection failed");
        by_agent += agent;
        by_application += application;
    }
    eprintln!("{by_agent} connections to the agent, {by_application} to the application");
    assert!(by_agent > 0 && by_application > 0);
}

async fn connect_until(world: &World, address: &str, ended: &AtomicBool) -> (usize, usize) {
    let (mut agent, mut application) = (0, 0);
    while !ended.load(Ordering::Relaxed) {
        let mut client = Client::connect(&world.client, socket_address(address, 80)).await;
        match client.who().await.as_str() {
            AGENT => agent += 1,
            APPLICATION => application += 1,
            other => panic!("{other}"),
        }
        client.echo().await;
    }
    (agent, application)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs root"]
async fn ten_thousand_connections_at_a_time() {
    let Some(world) = world() else { return };
    // Both ends of each are in this process.
    let wanted = Some(3 * MANY as u64);
    let limit = getrlimit(Resource::Nofile);
    if limit.current < wanted {
        let raised = Rlimit {
            current: wanted,
            maximum: limit.maximum.max(wanted),
        };
        setrlimit(Resource::Nofile, raised).expect("root may raise it");
    }
    let redirect = Arc::new(world.redirect().await);
    redirect.add_port(Port::tcp(80)).await.unwrap();
    answer_all(&redirect);
    let world = Arc::new(world);
    let next = Arc::new(AtomicUsize::new(0));
    let connecting: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (world, next) = (Arc::clone(&world), Arc::clone(&next));
            tokio::spawn(async move {
                let mut clients = Vec::new();
                while next.fetch_add(1, Ordering::Relaxed) < MANY {
                    let to = socket_address(TARGET_IPV4, 80);
                    let mut client = Client::connect(&world.client, to).await;
                    assert_eq!(client.who().await, AGENT);
                    clients.push(client);
                }
                clients
            })
        })
        .collect();
    let mut clients = Vec::new();
    for task in connecting {
        clients.append(&mut task.await.expect("no connection failed"));
    }
    assert_eq!(clients.len(), MANY);
    redirect.remove_port(Port::tcp(80)).await.unwrap();
    for client in &mut clients {
        client.echo().await;
    }
}
