//! The client for the API server, against a server that speaks TLS like a real one.

use std::fs;
use std::sync::Arc;

use authority::Authority;
use http::{Method, Request};
use http_body_util::Empty;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::secret::Secret;
use super::*;
use crate::store::Store;
use crate::testing::{FakeServer, Respond, with_secret};

fn version(request: &Request<()>) -> (u16, Value) {
    let token = request.headers().get("authorization").unwrap();
    assert_eq!(token, "Bearer TOKEN");
    assert_eq!(request.uri().path(), "/version");
    (200, json!({ "gitVersion": "v1.34.0", "major": "1" }))
}

#[tokio::test]
async fn requests_share_a_connection_over_http2() {
    let server = FakeServer::start(&[b"h2", b"http/1.1"], Arc::new(|it, _| version(it))).await;
    let client = server.client();
    for _ in 0..20 {
        assert_eq!(client.version().await.unwrap(), "v1.34.0");
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_server_without_http2_is_served_as_well() {
    let server = FakeServer::start(&[b"http/1.1"], Arc::new(|it, _| version(it))).await;
    let client = server.client();
    for _ in 0..3 {
        assert_eq!(client.version().await.unwrap(), "v1.34.0");
    }
}

#[tokio::test]
async fn more_requests_than_a_connection_allows_do_not_wait_for_one_another() {
    let server = FakeServer::start(&[b"h2"], Arc::new(|it, _| version(it))).await;
    let client = server.client();
    client.version().await.unwrap();
    // Each response is kept and not read, like that of a watch.
    let mut watches = Vec::new();
    for _ in 0..25 {
        let request = Request::get("/version")
            .body(body::of(Empty::new()))
            .unwrap();
        watches.push(client.send(request).await.unwrap());
    }
    assert!(server.connections() >= 3, "{}", server.connections());
    drop(watches);
    let before = server.connections();
    client.version().await.unwrap();
    assert_eq!(server.connections(), before);
}

#[tokio::test]
async fn a_connection_for_an_upgrade_has_the_credential_and_the_path() {
    let server = FakeServer::start(&[b"h2", b"http/1.1"], Arc::new(|it, _| version(it))).await;
    let client = server.client();
    let mut request = Request::get("http://link/api/v1/pods/a/exec?command=sh")
        .header("authorization", "Bearer other")
        .body(())
        .unwrap();
    let stream = client.connect_for_upgrade(&mut request).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert_eq!(request.uri(), "/api/v1/pods/a/exec?command=sh");
    assert_eq!(request.headers()["authorization"], "Bearer TOKEN");
    let host = format!("127.0.0.1:{}", server.address.port());
    assert_eq!(request.headers()["host"], host.as_str());
}

#[tokio::test]
async fn servers_of_other_authorities_are_refused() {
    let server = FakeServer::start(&[b"h2"], Arc::new(|it, _| version(it))).await;
    let now = Timestamp::now();
    let other = Authority::generate("other", SignedDuration::from_hours(1), now).unwrap();
    fs::write(server.folder.path().join("ca.crt"), other.certificate_pem()).unwrap();
    let error = server.client().version().await.unwrap_err();
    let text = error_chain::error_chain(&error);
    assert!(text.contains("UnknownIssuer"), "{text}");
}

async fn changed(conflicts: usize) -> Result<Secret> {
    let server = FakeServer::start(&[b"h2"], with_secret(conflicts)).await;
    let store = Store::new(Arc::new(server.client()), "state".to_owned());
    store.change(|secret| secret.set("tls.key", "A")).await?;
    store.read().await
}

#[tokio::test]
async fn a_change_is_repeated_after_changes_of_others() {
    for conflicts in [0, 1, 3] {
        let secret = changed(conflicts).await.unwrap();
        assert_eq!(secret.text("tls.key"), Some("A"));
    }
    assert!(matches!(changed(100).await, Err(Error::Contention)));
}

#[tokio::test]
async fn missing_and_forbidden_secrets_are_explained() {
    for (status, expected) in [
        (404, "the Secret tools/state does not exist"),
        (
            403,
            "403 Forbidden when the agent tried to get the Secret tools/state",
        ),
    ] {
        let respond: Respond = Arc::new(move |_, _| (status, json!({ "kind": "Status" })));
        let server = FakeServer::start(&[b"h2"], respond).await;
        let error = server.client().secret("state").await.map(drop).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}
