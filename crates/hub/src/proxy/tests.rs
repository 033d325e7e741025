pub(crate) mod setup;

use api::hub::AuditOutcome;
use bytes::Bytes;
use http::header::{SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tunnel::{AcceptorSettings, Limits};

use self::setup::{CLUSTER, Setup, request, streamed};
use super::*;
use crate::body::full;

const ECHO: &str = "/clusters/prod/api/v1/namespaces/shop/services/web/proxy/echo";
const EXEC: &str = "/clusters/prod/api/v1/namespaces/shop/pods/web/exec";
const WATCH: &str = "/clusters/prod/api/v1/pods?watch=1";
const LOG: &str = "/clusters/prod/api/v1/namespaces/shop/pods/web/log?follow=true";

#[tokio::test]
async fn a_request_as_another_user_is_refused() {
    let setup = Setup::start().await;
    for (name, value) in [
        ("Impersonate-User", "root"),
        ("impersonate-group", "system:masters"),
        ("Impersonate-Extra-Scopes", "all"),
    ] {
        let request = request("DELETE", "/clusters/prod/api/v1/pods/a")
            .header(name, value)
            .body(full(Bytes::new()))
            .unwrap();
        let (status, body) = setup.send(request).await;
        assert_eq!(status, 403, "{body}");
        let message = body["message"].as_str().unwrap();
        assert!(
            message.contains("does not forward impersonation"),
            "{message}"
        );
    }
    assert_eq!(setup.audited(3).await.outcome, AuditOutcome::Denied);
}

#[tokio::test]
async fn a_request_is_made_as_its_user() {
    let setup = Setup::start().await;
    let path = "/clusters/prod/api/v1/namespaces/shop/configmaps/a%3Ab?limit=5&x=%2F";
    let request = request("PUT", path)
        .header("accept", "application/json")
        .header("Authorization", "Bearer secret")
        .header("X-Remote-User", "root")
        .header("X-Forwarded-For", "10.0.0.1")
        .header("Cookie", "a=b")
        .header("Connection", "X-Mine")
        .header("X-Mine", "1")
        .header("standin-tunnel-upgrade", "SPDY/3.1")
        .body(full("{}"))
        .unwrap();
    let response = setup
        .connect_http1()
        .await
        .send_request(request)
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    let headers = response.headers().clone();
    assert_eq!(headers["audit-id"], "1");
    assert!(!headers.contains_key("set-cookie"));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let received: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(received["method"], "PUT");
    assert_eq!(
        received["target"],
        "/api/v1/namespaces/shop/configmaps/a%3Ab?limit=5&x=%2F"
    );
    let headers: Vec<&str> = received["headers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line.as_str().unwrap())
        .collect();
    let expected = [
        "accept: application/json",
        "host: kubernetes",
        "impersonate-group: developers",
        "impersonate-user: anna",
    ];
    for line in expected {
        assert!(headers.contains(&line), "{headers:?}");
    }
    for part in [
        "secret",
        "root",
        "10.0.0.1",
        "cookie",
        "x-mine",
        "upgrade",
        "authorization",
    ] {
        assert!(
            !headers.iter().any(|line| line.contains(part)),
            "{part}: {headers:?}"
        );
    }
    let row = setup.audited(1).await;
    assert_eq!(
        (row.verb.as_str(), row.status, row.outcome),
        ("update", 200, AuditOutcome::Success)
    );
    assert_eq!(row.name.as_deref(), Some("a:b"));
    assert_eq!(row.path, "/api/v1/namespaces/shop/configmaps/a%3Ab");
}

#[tokio::test]
async fn requests_that_are_not_forwarded_get_a_status_and_an_audit_row() {
    let setup = Setup::start().await;
    let denied = AuditOutcome::Denied;
    let failure = AuditOutcome::Failure;
    let cases = [
        ("GET", "/clusters/prod/api/../../../api", 400, failure),
        ("GET", "/clusters/prod/%2e%2e/b", 400, failure),
        ("GET", "/clusters/prod/.standin/control", 400, failure),
        ("TRACE", "/clusters/prod/api", 405, failure),
        ("GET", "/clusters/forbidden/api", 403, denied),
        ("GET", "/clusters/other/api", 404, failure),
        ("GET", "/clusters/pr%6fd/api", 404, failure),
        ("GET", "/clusters/away/api", 503, failure),
    ];
    for (number, (method, path, status, outcome)) in cases.into_iter().enumerate() {
        let (found, body) = setup
            .send(request(method, path).body(full(Bytes::new())).unwrap())
            .await;
        assert_eq!(
            (found, body["kind"].as_str()),
            (status, Some("Status")),
            "{path}: {body}"
        );
        let row = setup.audited(number + 1).await;
        assert_eq!((row.status, row.outcome), (status, outcome), "{path}");
        assert_eq!(row.reason.as_deref(), body["message"].as_str(), "{path}");
    }
    let as_component = request("GET", "/clusters/prod/api").header("test-user", "system:node:a");
    let (status, body) = setup
        .send(as_component.body(full(Bytes::new())).unwrap())
        .await;
    assert_eq!(status, 403, "{body}");
    assert_eq!(*setup.api_server.open.borrow(), 0);
}

#[tokio::test]
async fn service_accounts_and_primaries_are_mapped() {
    let settings = ProxySettings {
        allow_service_accounts: false,
        primary_operators: vec!["system:serviceaccount:standin:operator".to_owned()],
        ..ProxySettings::default()
    };
    let setup = Setup::with(settings, AcceptorSettings::default()).await;
    let get = async |user: &str| {
        let request = request("GET", "/clusters/prod/version").header("test-user", user);
        setup.send(request.body(full(Bytes::new())).unwrap()).await
    };
    assert_eq!(get("system:serviceaccount:shop:ci").await.0, 403);
    let (status, received) = get("system:serviceaccount:standin:operator").await;
    assert_eq!(status, 200);
    let headers = received["headers"].to_string();
    assert!(
        headers.contains("impersonate-user: standin-primary"),
        "{headers}"
    );
    assert!(
        headers.contains("impersonate-group: mirrord-operator-envoy"),
        "{headers}"
    );
    assert!(!headers.contains("developers"), "{headers}");
    // The audit log has the real user.
    assert_eq!(
        setup.audited(2).await.actor.sub,
        "system:serviceaccount:standin:operator"
    );
}

#[tokio::test]
async fn bodies_are_streamed_in_both_directions() {
    let setup = Setup::start().await;
    let (mut sender, body) = streamed();
    let request = request("POST", ECHO)
        .version(http::Version::HTTP_2)
        .body(body)
        .unwrap();
    let mut connection = setup.connect().await;
    let response = tokio::spawn(async move { connection.send_request(with_origin(request)).await });
    sender.send_data(Bytes::from_static(b"one")).await.unwrap();
    let mut body = response.await.unwrap().unwrap().into_body();
    let mut next = async || {
        body.frame()
            .await
            .map(|frame| frame.unwrap().into_data().unwrap())
    };
    assert_eq!(next().await.unwrap(), "one");
    sender.send_data(Bytes::from_static(b"two")).await.unwrap();
    assert_eq!(next().await.unwrap(), "two");
    drop(sender);
    assert_eq!(body.collect().await.unwrap().to_bytes(), "");
    assert_eq!(setup.audited(1).await.outcome, AuditOutcome::Success);
}

/// HTTP/2 needs a whole URI.
fn with_origin(mut request: Request<Body>) -> Request<Body> {
    let target = request.uri().path_and_query().unwrap().clone();
    *request.uri_mut() = format!("http://hub{target}").parse().unwrap();
    request.headers_mut().remove("host");
    request
}

#[tokio::test]
async fn a_client_that_disconnects_cancels_its_stream_at_the_agent() {
    let setup = Setup::start().await;
    let mut open = setup.api_server.open.subscribe();
    for (number, path) in [WATCH, LOG, "/clusters/prod/slow"].into_iter().enumerate() {
        let mut client = setup.connect_http1().await;
        let request = request("GET", path).body(full(Bytes::new())).unwrap();
        let response = tokio::spawn(async move {
            let response = client.send_request(request).await;
            response.unwrap().into_body().collect().await
        });
        open.wait_for(|open| *open == 1).await.unwrap();
        response.abort();
        open.wait_for(|open| *open == 0).await.unwrap();
        let row = setup.audited(number + 1).await;
        assert_eq!(
            row.reason.as_deref(),
            Some("the client closed the connection"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn an_upload_that_is_cut_is_not_complete_at_the_api_server() {
    let setup = Setup::start().await;
    let mut stream = TcpStream::connect(setup.address).await.unwrap();
    let head =
        "POST /clusters/prod/upload HTTP/1.1\r\nhost: hub\r\ncontent-length: 10\r\n\r\n12345";
    stream.write_all(head.as_bytes()).await.unwrap();
    setup
        .api_server
        .open
        .subscribe()
        .wait_for(|open| *open == 1)
        .await
        .unwrap();
    drop(stream);
    let mut uploads = setup.api_server.uploads.subscribe();
    let mut open = setup.api_server.open.subscribe();
    // The server either sees the failure, or its response is cancelled before.
    open.wait_for(|open| *open == 0).await.unwrap();
    assert!(uploads.borrow_and_update().iter().all(Option::is_none));
    assert_eq!(setup.audited(1).await.outcome, AuditOutcome::Failure);
}

#[tokio::test]
async fn upgraded_connections_carry_bytes_and_end_one_direction_at_a_time() {
    let setup = Setup::start().await;
    for (number, protocol) in ["websocket", "SPDY/3.1"].into_iter().enumerate() {
        let request = request("POST", EXEC)
            .header("connection", "Upgrade")
            .header(UPGRADE, protocol)
            .header(SEC_WEBSOCKET_PROTOCOL, "v5.channel.k8s.io")
            .body(full(Bytes::new()))
            .unwrap();
        let mut client = setup.connect_http1().await;
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.status(), 101);
        assert_eq!(response.headers()[UPGRADE], protocol);
        assert_eq!(
            response.headers()[SEC_WEBSOCKET_PROTOCOL],
            "v5.channel.k8s.io"
        );
        let mut stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
        stream.write_all(b"hello").await.unwrap();
        let mut hello = [0; 5];
        stream.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
        // The server still sends after the client has finished.
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"bye");
        let row = setup.audited(number + 1).await;
        assert_eq!((row.status, row.outcome), (101, AuditOutcome::Success));
        assert_eq!(row.subresource.as_deref(), Some("exec"));
    }
}

#[tokio::test]
async fn a_refused_upgrade_is_the_api_servers_response() {
    let setup = Setup::start().await;
    let upgrade = |path: String| {
        request("POST", &path)
            .header("connection", "keep-alive, Upgrade")
            .header(UPGRADE, "websocket")
            .body(full(Bytes::new()))
            .unwrap()
    };
    let (status, body) = setup.send(upgrade(format!("{EXEC}?refuse"))).await;
    assert_eq!((status, body["kind"].as_str()), (403, Some("Status")));
    assert_eq!(setup.audited(1).await.outcome, AuditOutcome::Denied);
    // A server that ignores the upgrade
    let (status, body) = setup
        .send(upgrade("/clusters/prod/version".to_owned()))
        .await;
    assert_eq!((status, body["target"].as_str()), (200, Some("/version")));
    // A request without an upgrade
    let plain = request("POST", EXEC).body(full(Bytes::new())).unwrap();
    assert_eq!(setup.send(plain).await.0, 400);
}

#[tokio::test]
async fn a_client_that_leaves_an_upgraded_connection_ends_it() {
    let setup = Setup::start().await;
    let request = request("POST", EXEC)
        .header("connection", "Upgrade")
        .header(UPGRADE, "websocket")
        .body(full(Bytes::new()))
        .unwrap();
    let response = setup
        .connect_http1()
        .await
        .send_request(request)
        .await
        .unwrap();
    drop(hyper::upgrade::on(response).await.unwrap());
    assert_eq!(setup.audited(1).await.status, 101);
}

#[tokio::test]
async fn a_drain_ends_watches_between_two_events() {
    let setup = Setup::start().await;
    let start = async |path: &str| {
        let request = request("GET", path).body(full(Bytes::new())).unwrap();
        let mut client = setup.connect_http1().await;
        client.send_request(request).await.unwrap().into_body()
    };
    let (mut watch, mut log) = (start(WATCH).await, start(LOG).await);
    setup
        .api_server
        .open
        .subscribe()
        .wait_for(|open| *open == 2)
        .await
        .unwrap();
    // Half of an event
    setup.api_server.parts.send_replace("{\"a\":");
    for body in [&mut watch, &mut log] {
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            "{\"a\":"
        );
    }
    setup.stopping.cancel();
    setup.api_server.parts.send_replace("{}}\n");
    for body in [&mut watch, &mut log] {
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            "{}}\n"
        );
    }
    assert!(watch.frame().await.is_none());
    // Logs are the reader's to end.
    setup.api_server.parts.send_replace("more\n");
    assert_eq!(
        log.frame().await.unwrap().unwrap().into_data().unwrap(),
        "more\n"
    );
    assert_eq!(setup.audited(1).await.outcome, AuditOutcome::Success);
}

#[tokio::test]
async fn a_limit_of_the_tunnel_is_429() {
    let tunnel = AcceptorSettings {
        limits: Limits {
            streams: 1,
            ..Limits::default()
        },
        ..AcceptorSettings::default()
    };
    let setup = Setup::with(ProxySettings::default(), tunnel).await;
    let request = request("GET", WATCH).body(full(Bytes::new())).unwrap();
    let mut client = setup.connect_http1().await;
    let watch = client.send_request(request).await.unwrap();
    let (status, body) = setup.get("/clusters/prod/version").await;
    assert_eq!(
        (status, body["reason"].as_str()),
        (429, Some("TooManyRequests")),
        "{body}"
    );
    assert_eq!(body["details"]["retryAfterSeconds"], 1);
    drop((watch, client));
    setup
        .api_server
        .open
        .subscribe()
        .wait_for(|open| *open == 0)
        .await
        .unwrap();
    assert_eq!(setup.get("/clusters/prod/version").await.0, 200);
}

#[tokio::test]
async fn the_end_of_a_tunnel_fails_its_requests_at_once() {
    let setup = Setup::start().await;
    let watch = request("GET", WATCH).body(full(Bytes::new())).unwrap();
    let mut client = setup.connect_http1().await;
    let mut watch = client.send_request(watch).await.unwrap().into_body();
    let slow = request("GET", "/clusters/prod/slow")
        .body(full(Bytes::new()))
        .unwrap();
    let mut client = setup.connect_http1().await;
    let slow = tokio::spawn(async move { client.send_request(slow).await.unwrap() });
    setup
        .api_server
        .open
        .subscribe()
        .wait_for(|open| *open == 2)
        .await
        .unwrap();
    setup.tunnels.newest(CLUSTER).close("revoked");
    assert!(watch.frame().await.unwrap().is_err());
    let response = slow.await.unwrap();
    assert_eq!(response.status(), 503);
    // It may have had an effect, so clients must not repeat it by themselves.
    assert!(!response.headers().contains_key("retry-after"));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(
        String::from_utf8_lossy(&body).contains("agent disconnected"),
        "{body:?}"
    );
    let row = setup.audited(2).await;
    assert_eq!(row.outcome, AuditOutcome::Failure);
    let (status, body) = setup.get("/clusters/prod/version").await;
    assert_eq!(status, 503, "{body}");
    assert!(
        body["message"]
            .as_str()
            .unwrap()
            .contains("agent disconnected"),
        "{body}"
    );
}

#[tokio::test]
async fn an_api_server_that_does_not_begin_its_response_is_504() {
    let settings = ProxySettings {
        response_timeout: Duration::from_millis(1),
        ..ProxySettings::default()
    };
    let setup = Setup::with(settings, AcceptorSettings::default()).await;
    let (status, body) = setup.get("/clusters/prod/slow").await;
    assert_eq!(
        (status, body["reason"].as_str()),
        (504, Some("Timeout")),
        "{body}"
    );
    // The API server's request is cancelled, and a request that may be silent is not affected.
    setup
        .api_server
        .open
        .subscribe()
        .wait_for(|open| *open == 0)
        .await
        .unwrap();
    let request = request("GET", WATCH).body(full(Bytes::new())).unwrap();
    let mut client = setup.connect_http1().await;
    assert_eq!(client.send_request(request).await.unwrap().status(), 200);
}
