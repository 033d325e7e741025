//! Sessions that claim the same traffic: at one agent, and at two agents of the same network.

use agent::Agent;
use protocol::failure::Errno;
use protocol::grant::{Grant, IncomingGrant};
use protocol::rpc::subscribe_event::Event;
use protocol::rpc::{EarlierSession, EarlierSessions, OnConflict, SubscribeRequest};

use crate::environment::{Environment, TARGET_IPV4, environment, socket_address};
use crate::session::{Session, mirrored_port, whole_port, with_header};
use crate::web::{Site, get, serve};

const ADA: &str = "x-user: ada";

#[tokio::test]
#[ignore = "needs root"]
async fn conflicts_at_one_agent() {
    let environment = environment();
    let agent = environment.agent();
    check(&environment, &agent, &agent).await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn conflicts_at_two_agents() {
    let environment = environment();
    check(&environment, &environment.agent(), &environment.agent()).await;
}

fn earlier(holder: &str, takes_all: bool) -> EarlierSession {
    let holder = holder.to_owned();
    EarlierSession { holder, takes_all }
}

async fn check(environment: &Environment, first: &Agent, second: &Agent) {
    let _site = Site::start(&environment.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let ada = Session::of(first).await;
    let grace = Session::of(second).await;
    let get_with = async |header: &str| get(&environment.client, to, "/", header).await;
    let on = |request: SubscribeRequest, on_conflict: OnConflict| SubscribeRequest {
        on_conflict: on_conflict.into(),
        ..request
    };

    let mut adas = ada.subscribe(with_header(80, "Ada", ADA)).await.unwrap();
    let _adas = adas.serve(|_, stream| serve(stream, "ada"));
    // Ada has claimed these requests, so the same requests and the whole port conflict. Other requests and mirrors do not.
    for request in [with_header(80, "Grace", ADA), whole_port(80, "Grace")] {
        let Err(failure) = grace.subscribe(request).await else {
            panic!("expected a rejection");
        };
        assert_eq!(failure.errno(), Errno::Eaddrinuse);
        assert!(
            failure.detail.starts_with("Ada already takes"),
            "{failure:?}"
        );
    }
    let other = grace.subscribe(with_header(80, "Grace", "x-user: grace"));
    drop(other.await.unwrap());
    drop(grace.subscribe(mirrored_port(80, "Grace")).await.unwrap());
    assert_eq!(get_with("x-user: ada\r\n").await, "ada / 0");

    // Grace gets the requests that do not match Ada's filter.
    let all = on(whole_port(80, "Grace"), OnConflict::Continue);
    let graces = grace.subscribe(all).await.unwrap();
    let _graces = graces.serve(|_, stream| serve(stream, "grace"));
    assert_eq!(get_with("x-user: ada\r\n").await, "ada / 0");
    assert_eq!(get_with("").await, "grace / 0");
    assert_eq!(graces.subscribed.earlier, [earlier("Ada", false)]);
    // A third session has two earlier sessions, and gets an event when one of them ends.
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

    // Grace overrides the claim of Ada.
    let overriding = on(whole_port(80, "Grace"), OnConflict::Override);
    let graces = grace.subscribe(overriding).await.unwrap();
    let _graces = graces.serve(|_, stream| serve(stream, "grace"));
    assert_eq!(adas.event().await, Some(Event::TrafficSeen(true)));
    assert_eq!(adas.event().await, Some(Event::LostTo("Grace".to_owned())));
    assert_eq!(adas.event().await, None);
    assert_eq!(get_with("x-user: ada\r\n").await, "grace / 0");

    drop((adas, graces));
    environment.wait_until_clean().await;
    assert_eq!(get_with("x-user: ada\r\n").await, "original / 0");
}

/// A subscription ends when it is forbidden, at whichever agent the port is redirected, and works again when it is allowed.
#[tokio::test]
#[ignore = "needs root"]
async fn traffic_of_a_subscription_that_becomes_forbidden_goes_to_the_application() {
    let environment = environment();
    let _site = Site::start(&environment.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let grant = |no_steal_without_filter| Grant {
        incoming: IncomingGrant {
            no_steal_without_filter,
            ..IncomingGrant::default()
        },
        ..Grant::default()
    };
    let (first, second) = (environment.agent(), environment.agent());
    let ada = Session::of(&first).await;
    let grace = Session::of(&second).await;
    let mut adas = ada.subscribe(whole_port(81, "Ada")).await.unwrap();
    let filtered = ada.subscribe(with_header(80, "Ada", ADA)).await.unwrap();
    let _filtered = filtered.serve(|_, stream| serve(stream, "ada"));
    let rest = SubscribeRequest {
        on_conflict: OnConflict::Continue.into(),
        ..whole_port(80, "Grace")
    };
    // Ada's agent redirects the port, and Grace's agent joins it.
    let mut graces = grace.subscribe(rest.clone()).await.unwrap();
    let _graces = graces.serve(|_, stream| serve(stream, "grace"));
    let get_with = async |header: &str| get(&environment.client, to, "/", header).await;
    assert_eq!(get_with("").await, "grace / 0");
    for agent in [&first, &second] {
        assert!(agent.regrant(&grant(true)).await.unwrap());
    }
    while adas.event().await.is_some() {}
    while graces.event().await.is_some() {}
    assert_eq!(get_with("").await, "original / 0");
    assert_eq!(get_with("x-user: ada\r\n").await, "ada / 0");
    let Err(failure) = grace.subscribe(rest.clone()).await else {
        panic!("expected a rejection");
    };
    assert_eq!(failure.errno(), Errno::Eperm);
    assert!(second.regrant(&grant(false)).await.unwrap());
    let graces = grace.subscribe(rest).await.unwrap();
    let _graces = graces.serve(|_, stream| serve(stream, "grace"));
    assert_eq!(get_with("").await, "grace / 0");
    drop((adas, filtered, graces));
    environment.wait_until_clean().await;
}
