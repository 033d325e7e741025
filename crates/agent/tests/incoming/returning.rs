//! A session whose client is gone without a word keeps what it has, and who starts again gets it from it.

use agent::Agent;
use protocol::failure::Failure;
use protocol::rpc::SubscribeRequest;
use protocol::rpc::subscribe_event::Event;

use crate::line::connect;
use crate::programs::soon;
use crate::session::{Session, copy_of, whole_port, with_header};
use crate::web::{Site, ask, serve};
use crate::world::{TARGET_IPV4, World, socket_address, world};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn who_starts_again_at_one_agent() {
    let Some(world) = world() else { return };
    let agent = world.agent();
    check(&world, &agent, &agent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn who_starts_again_with_another_agent() {
    let Some(world) = world() else { return };
    check(&world, &world.agent(), &world.agent()).await;
}

/// Then it is a third agent that has to know who is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn who_starts_again_with_another_agent_where_a_third_redirects() {
    let Some(world) = world() else { return };
    let others = Session::of(&world.agent()).await;
    let others = others.subscribe(copy_of(80, "Edsger")).await.unwrap();
    check(&world, &world.agent(), &world.agent()).await;
    drop(others);
}

async fn check(world: &World, first: &Agent, second: &Agent) {
    let _site = Site::start(&world.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let answer = async || ask(&world.client, to, "/", "").await;
    let wanted = |holder: &str, owner: &str| SubscribeRequest {
        owner: owner.to_owned(),
        ..whole_port(80, holder)
    };
    let (lost, mut line) = connect(first).await;
    let lost = lost.subscribe(wanted("Ada", "ada's laptop")).await;
    let mut lost = lost.unwrap();
    let _serving_lost = lost.serve(|_, stream| serve(stream, "ada"));
    assert_eq!(answer().await, "ada / 0");

    // As long as she is there it is hers, also for herself.
    let again = Session::of(second).await;
    for holder in ["Ada", "Grace"] {
        let owner = format!("{}'s laptop", holder.to_lowercase());
        let failure = refusal(&again, wanted(holder, &owner)).await;
        let expected = "Ada already takes all traffic of this port: use";
        assert!(failure.detail.starts_with(expected), "{failure:?}");
    }
    line.cut().await;
    // Others learn that she may come back.
    let told = async {
        loop {
            let failure = refusal(&again, wanted("Grace", "grace's laptop")).await;
            if failure
                .detail
                .contains(", has lost the connection, and keeps it for up to 600 s more")
            {
                return;
            }
            assert!(failure.detail.starts_with("Ada already"), "{failure:?}");
        }
    };
    soon(told).await;
    let filtered = SubscribeRequest {
        owner: "ada's desktop".to_owned(),
        ..with_header(80, "Ada", "x-user: ada")
    };
    let failure = refusal(&again, filtered).await;
    assert!(failure.detail.starts_with("Ada already"), "{failure:?}");

    let hers = again.subscribe(wanted("Ada again", "ada's laptop")).await;
    let hers = hers.unwrap();
    let _serving_hers = hers.serve(|_, stream| serve(stream, "ada again"));
    assert_eq!(answer().await, "ada again / 0");
    assert!(hers.subscribed.earlier.is_empty());

    // The session that was lost learns it when it comes back.
    line.mend().await;
    let mut events = Vec::new();
    while let Some(event) = lost.event().await {
        events.push(event);
    }
    assert_eq!(events.last(), Some(&Event::LostTo("Ada again".to_owned())));
    assert_eq!(answer().await, "ada again / 0");
}

async fn refusal(session: &Session, wanted: SubscribeRequest) -> Failure {
    match session.subscribe(wanted).await {
        Ok(_) => panic!("it is refused"),
        Err(failure) => failure,
    }
}
