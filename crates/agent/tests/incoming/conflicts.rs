//! Sessions that want the same: at one agent, and at two of the same network.

use agent::Agent;
use protocol::failure::Errno;
use protocol::grant::{Grant, IncomingGrant};
use protocol::rpc::subscribe_event::Event;
use protocol::rpc::{EarlierSession, EarlierSessions, OnConflict, SubscribeRequest};

use crate::session::{Session, copy_of, whole_port, with_header};
use crate::web::{Site, ask, serve};
use crate::world::{TARGET_IPV4, World, socket_address, world};

const ADA: &str = "x-user: ada";

#[tokio::test]
#[ignore = "needs root"]
async fn conflicts_at_one_agent() {
    let Some(world) = world() else { return };
    let agent = world.agent();
    check(&world, &agent, &agent).await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn conflicts_at_two_agents() {
    let Some(world) = world() else { return };
    check(&world, &world.agent(), &world.agent()).await;
}

fn earlier(holder: &str, takes_all: bool) -> EarlierSession {
    let holder = holder.to_owned();
    EarlierSession { holder, takes_all }
}

async fn check(world: &World, first: &Agent, second: &Agent) {
    let _site = Site::start(&world.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let ada = Session::of(first).await;
    let grace = Session::of(second).await;
    let answers = async |header: &str| ask(&world.client, to, "/", header).await;
    let on = |request: SubscribeRequest, on_conflict: OnConflict| SubscribeRequest {
        on_conflict: on_conflict.into(),
        ..request
    };

    let mut adas = ada.subscribe(with_header(80, "Ada", ADA)).await.unwrap();
    let _adas = adas.serve(|_, stream| serve(stream, "ada"));
    // The same requests and the whole port are Ada's; others and copies are nobody's.
    for wanted in [with_header(80, "Grace", ADA), whole_port(80, "Grace")] {
        let Err(failure) = grace.subscribe(wanted).await else {
            panic!("it is refused");
        };
        assert_eq!(failure.errno(), Errno::Eaddrinuse);
        assert!(
            failure.detail.starts_with("Ada already takes"),
            "{failure:?}"
        );
    }
    let other = grace.subscribe(with_header(80, "Grace", "x-user: grace"));
    drop(other.await.unwrap());
    drop(grace.subscribe(copy_of(80, "Grace")).await.unwrap());
    assert_eq!(answers("x-user: ada\r\n").await, "ada / 0");

    // What Ada leaves is Grace's.
    let all = on(whole_port(80, "Grace"), OnConflict::Continue);
    let graces = grace.subscribe(all).await.unwrap();
    let _graces = graces.serve(|_, stream| serve(stream, "grace"));
    assert_eq!(answers("x-user: ada\r\n").await, "ada / 0");
    assert_eq!(answers("").await, "grace / 0");
    assert_eq!(graces.subscribed.earlier, [earlier("Ada", false)]);
    // Who comes third has both before him, and knows when one of them is gone.
    let same = on(with_header(80, "Edsger", ADA), OnConflict::Continue);
    let mut edsgers = ada.subscribe(same).await.unwrap();
    let both = [earlier("Ada", true), earlier("Grace", true)];
    assert_eq!(edsgers.subscribed.earlier, both);
    drop(graces);
    let sessions = vec![earlier("Ada", true)];
    let mut change = edsgers.event().await;
    if change == Some(Event::TrafficSeen(true)) {
        change = edsgers.event().await;
    }
    assert_eq!(change, Some(Event::Earlier(EarlierSessions { sessions })));
    drop(edsgers);

    // And what Grace takes is no longer Ada's.
    let taken = on(whole_port(80, "Grace"), OnConflict::Override);
    let graces = grace.subscribe(taken).await.unwrap();
    let _graces = graces.serve(|_, stream| serve(stream, "grace"));
    assert_eq!(adas.event().await, Some(Event::TrafficSeen(true)));
    assert_eq!(adas.event().await, Some(Event::LostTo("Grace".to_owned())));
    assert_eq!(adas.event().await, None);
    assert_eq!(answers("x-user: ada\r\n").await, "grace / 0");

    drop((adas, graces));
    world.nothing_is_left().await;
    assert_eq!(answers("x-user: ada\r\n").await, "original / 0");
}

/// What is forbidden ends, wherever the port is redirected, and can be had again when it is allowed again.
#[tokio::test]
#[ignore = "needs root"]
async fn what_is_forbidden_later_goes_back_to_the_application() {
    let Some(world) = world() else { return };
    let _site = Site::start(&world.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let grant = |no_steal_without_filter| Grant {
        incoming: IncomingGrant {
            no_steal_without_filter,
            ..IncomingGrant::default()
        },
        ..Grant::default()
    };
    let (first, second) = (world.agent(), world.agent());
    let ada = Session::of(&first).await;
    let grace = Session::of(&second).await;
    let mut adas = ada.subscribe(whole_port(81, "Ada")).await.unwrap();
    let filtered = ada.subscribe(with_header(80, "Ada", ADA)).await.unwrap();
    let _filtered = filtered.serve(|_, stream| serve(stream, "ada"));
    let rest = SubscribeRequest {
        on_conflict: OnConflict::Continue.into(),
        ..whole_port(80, "Grace")
    };
    // The port is redirected by Ada's agent, and Grace's joins it.
    let mut graces = grace.subscribe(rest.clone()).await.unwrap();
    let _graces = graces.serve(|_, stream| serve(stream, "grace"));
    let answers = async |header: &str| ask(&world.client, to, "/", header).await;
    assert_eq!(answers("").await, "grace / 0");
    for agent in [&first, &second] {
        assert!(agent.regrant(&grant(true)).await.unwrap());
    }
    while adas.event().await.is_some() {}
    while graces.event().await.is_some() {}
    assert_eq!(answers("").await, "original / 0");
    assert_eq!(answers("x-user: ada\r\n").await, "ada / 0");
    let Err(failure) = grace.subscribe(rest.clone()).await else {
        panic!("it is refused");
    };
    assert_eq!(failure.errno(), Errno::Eperm);
    assert!(second.regrant(&grant(false)).await.unwrap());
    let graces = grace.subscribe(rest).await.unwrap();
    let _graces = graces.serve(|_, stream| serve(stream, "grace"));
    assert_eq!(answers("").await, "grace / 0");
    drop((adas, filtered, graces));
    world.nothing_is_left().await;
}
