//! A session whose client is disconnected keeps its claims, and a new session of the same owner takes them over.

use agent::Agent;
use protocol::failure::Failure;
use protocol::rpc::SubscribeRequest;
use protocol::rpc::subscribe_event::Event;

use crate::environment::{Environment, TARGET_IPV4, environment, socket_address};
use crate::link_loss::connect;
use crate::programs::with_timeout;
use crate::session::{Session, mirrored_port, whole_port, with_header};
use crate::web::{Site, get, serve};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn a_restarted_session_at_the_same_agent() {
    let environment = environment();
    let agent = environment.agent();
    check(&environment, &agent, &agent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn a_restarted_session_at_another_agent() {
    let environment = environment();
    check(&environment, &environment.agent(), &environment.agent()).await;
}

/// The third agent has to learn from its peers that the session is disconnected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn a_restarted_session_at_another_agent_where_a_third_redirects() {
    let environment = environment();
    let others = Session::of(&environment.agent()).await;
    let others = others.subscribe(mirrored_port(80, "Edsger")).await.unwrap();
    check(&environment, &environment.agent(), &environment.agent()).await;
    drop(others);
}

async fn check(environment: &Environment, first: &Agent, second: &Agent) {
    let _site = Site::start(&environment.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let get_response = async || get(&environment.client, to, "/", "").await;
    let request = |holder: &str, owner: &str| SubscribeRequest {
        owner: owner.to_owned(),
        ..whole_port(80, holder)
    };
    let (lost, mut forwarder) = connect(first).await;
    let lost = lost.subscribe(request("Ada", "ada's laptop")).await;
    let mut lost = lost.unwrap();
    let _serving_lost = lost.serve(|_, stream| serve(stream, "ada"));
    assert_eq!(get_response().await, "ada / 0");

    // While the session is connected it keeps its claim, also against a session of the same owner.
    let again = Session::of(second).await;
    for holder in ["Ada", "Grace"] {
        let owner = format!("{}'s laptop", holder.to_lowercase());
        let failure = rejection(&again, request(holder, &owner)).await;
        let expected = "Ada already takes all traffic of this port: use";
        assert!(failure.detail.starts_with(expected), "{failure:?}");
    }
    forwarder.interrupt().await;
    // The error of other owners says that the session may reconnect.
    let reported = async {
        loop {
            let failure = rejection(&again, request("Grace", "grace's laptop")).await;
            if failure
                .detail
                .contains(", has lost the connection, and keeps it for up to 600 s more")
            {
                return;
            }
            assert!(failure.detail.starts_with("Ada already"), "{failure:?}");
        }
    };
    with_timeout(reported).await;
    let filtered = SubscribeRequest {
        owner: "ada's desktop".to_owned(),
        ..with_header(80, "Ada", "x-user: ada")
    };
    let failure = rejection(&again, filtered).await;
    assert!(failure.detail.starts_with("Ada already"), "{failure:?}");

    let restarted = again.subscribe(request("Ada again", "ada's laptop")).await;
    let restarted = restarted.unwrap();
    let _serving_restarted = restarted.serve(|_, stream| serve(stream, "ada again"));
    assert_eq!(get_response().await, "ada again / 0");
    assert!(restarted.subscribed.earlier.is_empty());

    // The disconnected session gets the event when it reconnects.
    forwarder.restore().await;
    let mut events = Vec::new();
    while let Some(event) = lost.event().await {
        events.push(event);
    }
    assert_eq!(events.last(), Some(&Event::LostTo("Ada again".to_owned())));
    assert_eq!(get_response().await, "ada again / 0");
}

async fn rejection(session: &Session, request: SubscribeRequest) -> Failure {
    match session.subscribe(request).await {
        Ok(_) => panic!("expected a rejection"),
        Err(failure) => failure,
    }
}
