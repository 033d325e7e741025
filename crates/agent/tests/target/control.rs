//! Hello, Ping, and who is let in.

use agent::Agent;
use protocol::failure::{Failure, Reason};
use protocol::files::{self, ReadRange};
use protocol::rpc::{ListEnvRequest, PingRequest, Version};
use tonic::Status;
use tonic::body::Body;

use crate::client::Client;
use crate::world::target;

fn reason(status: &Status) -> Reason {
    Failure::from_status(status).expect("a failure").reason()
}

#[tokio::test]
async fn hello_tells_who_the_target_is() {
    let Some(target) = target() else { return };
    let client = Client::connect(Agent::for_process(target.pid).unwrap()).await;
    let hello = client.hello("").await.unwrap();
    let described = hello.target.unwrap();
    assert_eq!(described.hostname, "target-1.shop.internal".as_bytes());
    assert_eq!((described.uid, described.gid), (1234, 1235));
    assert_eq!(described.groups, [1235, 2000]);
    assert_eq!(described.working_directory, "/srv/data".as_bytes());
    assert_eq!(described.pid, target.pid);
    assert!(hello.features.contains(&"files".to_owned()));
    assert!(hello.limits.unwrap().streams > 5000);
}

#[tokio::test]
async fn ping_comes_back() {
    let Some(target) = target() else { return };
    let client = target.client().await;
    let payload = "hello".into();
    let pong = client.control().ping(PingRequest { payload }).await;
    let pong = pong.unwrap().into_inner();
    assert_eq!(pong.payload, "hello".as_bytes());
    assert!(pong.target_is_there);
}

#[tokio::test]
async fn a_wrong_token_is_refused_for_good() {
    let Some(target) = target() else { return };
    let agent = Agent::for_process_with_token(target.pid, "correct").unwrap();
    assert!(!format!("{agent:?}").contains("correct"));
    for wrong in ["", "wrong", "correc", "correct!", "Correct"] {
        let client = Client::connect(agent.clone()).await;
        let status = client.hello(wrong).await.unwrap_err();
        assert_eq!(reason(&status), Reason::WrongToken);
        assert!(!status.message().contains("correct"));
        let status = client.env().list(ListEnvRequest {}).await.unwrap_err();
        assert_eq!(reason(&status), Reason::NoHello);
        // A second try on the same connection does not help.
        let status = client.hello("correct").await.unwrap_err();
        assert_eq!(reason(&status), Reason::NoHello);
    }
    let client = Client::connect(agent).await;
    client.hello("correct").await.unwrap();
    client.env().list(ListEnvRequest {}).await.unwrap();
}

#[tokio::test]
async fn another_major_version_is_refused() {
    let Some(target) = target() else { return };
    let agent = Agent::for_process(target.pid).unwrap();
    let client = Client::connect(agent.clone()).await;
    let newer = Version { major: 2, minor: 0 };
    let status = client.hello_as(newer, "").await.unwrap_err();
    assert_eq!(reason(&status), Reason::WrongVersion);
    assert!(status.message().contains("install the same release"));
    let client = Client::connect(agent).await;
    let newer = Version { major: 1, minor: 7 };
    client.hello_as(newer, "").await.unwrap();
}

#[tokio::test]
async fn calls_may_be_sent_before_hello_is_answered() {
    let Some(target) = target() else { return };
    let client = Client::connect(Agent::for_process(target.pid).unwrap()).await;
    let mut env = client.env();
    let (early, hello) = tokio::join!(env.list(ListEnvRequest {}), client.hello(""));
    hello.unwrap();
    assert!(!early.unwrap().into_inner().variables.is_empty());
}

#[tokio::test]
async fn without_hello_nothing_is_answered() {
    let Some(target) = target() else { return };
    let client = Client::connect(Agent::for_process(target.pid).unwrap()).await;
    tokio::time::pause();
    let status = client.env().list(ListEnvRequest {}).await.unwrap_err();
    assert_eq!(reason(&status), Reason::NoHello);
    let range = ReadRange {
        handle: 1,
        offset: 0,
        length: 1,
    };
    let answer = client
        .raw(files::READ, range.to_headers(), Body::empty())
        .await;
    assert_eq!(answer.unwrap_err().reason(), Reason::NoHello);
}

#[tokio::test]
async fn what_a_newer_client_knows_is_not_found() {
    let Some(target) = target() else { return };
    let client = target.client().await;
    for path in [
        "/standin.session.v1/outgoing/sctp",
        "/standin.session.v1.Newer/Call",
        "/",
    ] {
        let response = client
            .raw(path, http::HeaderMap::new(), Body::empty())
            .await;
        assert_eq!(response.unwrap().status(), http::StatusCode::NOT_FOUND);
    }
}
