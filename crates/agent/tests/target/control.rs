//! Hello, Ping and authentication.

use agent::Agent;
use protocol::failure::{Failure, Reason};
use protocol::files::{self, ReadRange};
use protocol::rpc::{ListEnvRequest, PingRequest, Version};
use tonic::Status;
use tonic::body::Body;

use crate::client::Client;
use crate::environment::target;

fn reason(status: &Status) -> Reason {
    Failure::from_status(status).expect("a failure").reason()
}

#[tokio::test]
#[ignore = "needs root"]
async fn hello_describes_the_target() {
    let target = target();
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
#[ignore = "needs root"]
async fn ping_returns_the_payload() {
    let target = target();
    let client = target.client().await;
    let payload = "hello".into();
    let pong = client.control().ping(PingRequest { payload }).await;
    let pong = pong.unwrap().into_inner();
    assert_eq!(pong.payload, "hello".as_bytes());
    assert!(pong.target_alive);
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_connection_with_a_wrong_token_stays_rejected() {
    let target = target();
    let agent = Agent::for_process_with_token(target.pid, "correct").unwrap();
    assert!(!format!("{agent:?}").contains("correct"));
    for wrong in ["", "wrong", "correc", "correct!", "Correct"] {
        let client = Client::connect(agent.clone()).await;
        let status = client.hello(wrong).await.unwrap_err();
        assert_eq!(reason(&status), Reason::WrongToken);
        assert!(!status.message().contains("correct"));
        let status = client.env().list(ListEnvRequest {}).await.unwrap_err();
        assert_eq!(reason(&status), Reason::NoHello);
        // A second attempt on the same connection fails, too.
        let status = client.hello("correct").await.unwrap_err();
        assert_eq!(reason(&status), Reason::NoHello);
    }
    let client = Client::connect(agent).await;
    client.hello("correct").await.unwrap();
    client.env().list(ListEnvRequest {}).await.unwrap();
}

#[tokio::test]
#[ignore = "needs root"]
async fn another_major_version_is_rejected() {
    let target = target();
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
#[ignore = "needs root"]
async fn calls_wait_for_a_pending_hello() {
    let target = target();
    let client = Client::connect(Agent::for_process(target.pid).unwrap()).await;
    let mut env = client.env();
    let (early, hello) = tokio::join!(env.list(ListEnvRequest {}), client.hello(""));
    hello.unwrap();
    assert!(!early.unwrap().into_inner().variables.is_empty());
}

#[tokio::test]
#[ignore = "needs root"]
async fn calls_without_hello_fail() {
    let target = target();
    let client = Client::connect(Agent::for_process(target.pid).unwrap()).await;
    tokio::time::pause();
    let status = client.env().list(ListEnvRequest {}).await.unwrap_err();
    assert_eq!(reason(&status), Reason::NoHello);
    let range = ReadRange {
        handle: 1,
        offset: 0,
        length: 1,
    };
    let result = client
        .raw(files::READ, range.to_headers(), Body::empty())
        .await;
    assert_eq!(result.unwrap_err().reason(), Reason::NoHello);
}

#[tokio::test]
#[ignore = "needs root"]
async fn unknown_operations_are_not_found() {
    let target = target();
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
