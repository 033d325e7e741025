//! The target ends, and requests that make no sense.

use agent::{Agent, Error};
use http::{HeaderMap, HeaderValue};
use protocol::failure::{Failure, Reason};
use protocol::files;
use protocol::outgoing::{self, TcpConnect};
use protocol::rpc::{
    ExchangeRequest, ListEnvRequest, OpenRequest, PingRequest, Place, StatRequest,
};
use tonic::Status;
use tonic::body::Body;

use crate::client::{Client, errno};
use crate::world::target;

fn reason(status: &Status) -> Reason {
    Failure::from_status(status).expect("a failure").reason()
}

#[tokio::test]
async fn a_target_that_is_gone_before() {
    let check = |pid: u32| {
        let error = Agent::for_process(pid).unwrap_err();
        assert!(matches!(error, Error::NoTarget(_)), "{error:?}");
        assert!(error.to_string().contains("look for the target again"));
    };
    check(0);
    check(u32::MAX);
    check(4_194_304);
    let Some(mut target) = target() else { return };
    target.end();
    check(target.pid);
}

#[tokio::test]
async fn a_target_that_ends_during_the_session() {
    let Some(mut target) = target() else { return };
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
    let place = Some(Place::path("/etc/greeting"));
    let status = client
        .files()
        .stat(StatRequest { place })
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
    // The connection itself lives on.
    let pong = client.control().ping(PingRequest::default()).await.unwrap();
    assert!(!pong.into_inner().target_is_there);
    let other = Client::connect(Agent::for_process(std::process::id()).unwrap()).await;
    other.hello("").await.unwrap();
}

#[tokio::test]
async fn requests_without_meaning_are_answered() {
    let Some(target) = target() else { return };
    let client = target.client().await;
    let status = client
        .files()
        .stat(StatRequest { place: None })
        .await
        .unwrap_err();
    assert_eq!(reason(&status), Reason::BadRequest);
    let place = Some(Place::default());
    let status = client
        .files()
        .stat(StatRequest { place })
        .await
        .unwrap_err();
    assert_eq!(reason(&status), Reason::BadRequest);
    let place = Some(Place::handle(12345));
    assert_eq!(
        errno(client.files().stat(StatRequest { place }).await),
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
