//! Targets that have exited, and invalid requests.

use agent::{Agent, Error};
use http::{HeaderMap, HeaderValue};
use protocol::failure::{Failure, Reason};
use protocol::files;
use protocol::outgoing::{self, TcpConnect};
use protocol::rpc::{
    ExchangeRequest, FileRef, ListEnvRequest, OpenRequest, PingRequest, StatRequest,
};
use tonic::Status;
use tonic::body::Body;

use crate::client::{Client, errno};
use crate::environment::target;

fn reason(status: &Status) -> Reason {
    Failure::from_status(status).expect("a failure").reason()
}

fn expect_no_target(pid: u32) {
    let error = Agent::for_process(pid).unwrap_err();
    assert!(matches!(error, Error::NoTarget(_)), "{error:?}");
    assert!(error.to_string().contains("find the target again"));
}

#[test]
fn a_missing_process_is_an_error() {
    expect_no_target(0);
    expect_no_target(u32::MAX);
    expect_no_target(4_194_304);
}

#[test]
#[ignore = "needs root"]
fn an_exited_target_is_an_error() {
    let mut target = target();
    target.end();
    expect_no_target(target.pid);
}

#[tokio::test]
#[ignore = "needs root"]
async fn operations_fail_after_the_target_has_exited() {
    let mut target = target();
    let client = target.client().await;
    let file = client
        .open(OpenRequest {
            path: "/etc/greeting".into(),
            ..OpenRequest::default()
        })
        .await
        .unwrap();
    target.end();

    let status = client.env().list(ListEnvRequest {}).await.unwrap_err();
    assert_eq!(reason(&status), Reason::TargetGone);
    assert!(status.message().contains("has ended"));
    let file_ref = Some(FileRef::path("/etc/greeting"));
    let status = client
        .files()
        .stat(StatRequest { file: file_ref })
        .await
        .unwrap_err();
    assert_eq!(reason(&status), Reason::TargetGone);
    let failure = client.read(file.handle, 0, 10).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::TargetGone);
    let connect = TcpConnect {
        address: "127.0.0.1:1".parse().unwrap(),
        bind: None,
    };
    let failure = client
        .raw(outgoing::TCP, connect.to_headers(), Body::empty())
        .await
        .unwrap_err();
    assert_eq!(failure.reason(), Reason::TargetGone);
    // The connection itself stays open.
    let pong = client.control().ping(PingRequest::default()).await.unwrap();
    assert!(!pong.into_inner().target_alive);
    let other = Client::connect(Agent::for_process(std::process::id()).unwrap()).await;
    other.hello("").await.unwrap();
}

#[tokio::test]
#[ignore = "needs root"]
async fn invalid_requests_are_rejected() {
    let target = target();
    let client = target.client().await;
    let status = client
        .files()
        .stat(StatRequest { file: None })
        .await
        .unwrap_err();
    assert_eq!(reason(&status), Reason::BadRequest);
    let file_ref = Some(FileRef::default());
    let status = client
        .files()
        .stat(StatRequest { file: file_ref })
        .await
        .unwrap_err();
    assert_eq!(reason(&status), Reason::BadRequest);
    let file_ref = Some(FileRef::handle(12345));
    assert_eq!(
        errno(client.files().stat(StatRequest { file: file_ref }).await),
        libc::EBADF
    );
    let query = "garbage".into();
    let status = client
        .dns()
        .exchange(ExchangeRequest { query })
        .await
        .unwrap_err();
    assert_eq!(reason(&status), Reason::BadRequest);

    let mut headers = HeaderMap::new();
    for path in [
        files::READ,
        files::WRITE,
        outgoing::TCP,
        outgoing::UDP,
        outgoing::UNIX,
        outgoing::UNIX_DATAGRAM,
    ] {
        let failure = client
            .raw(path, headers.clone(), Body::empty())
            .await
            .unwrap_err();
        assert_eq!(failure.reason(), Reason::BadRequest, "{path}");
    }
    headers.insert("standin-address", HeaderValue::from_static("nowhere"));
    let failure = client
        .raw(outgoing::TCP, headers, Body::empty())
        .await
        .unwrap_err();
    assert!(
        failure
            .detail
            .contains("`standin-address` must be an address")
    );
}
