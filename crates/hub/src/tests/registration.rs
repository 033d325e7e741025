use authority::{Facts, PrivateKey};
use serde_json::json;

use crate::testing::{ADMIN, Reply, TestClient, TestHub};

fn key() -> PrivateKey {
    PrivateKey::generate().unwrap()
}

async fn rejected(hub: &TestHub, token: &str, cluster: &str) -> Reply {
    let reply = hub.register(token, cluster, &key()).await;
    assert_eq!(reply.code, 401, "{}", reply.text);
    reply
}

#[tokio::test]
async fn an_agent_gets_a_certificate_for_its_cluster_and_the_same_one_again() {
    let hub = TestHub::start().await;
    let (token, key) = (hub.token("a").await, key());
    let first = hub.register(&token, "a", &key).await;
    assert_eq!(first.code, 200, "{}", first.text);
    let certificate = first.body["cert"].as_str().unwrap();
    let facts = Facts::from_pem(certificate).unwrap();
    assert_eq!((facts.common_name.as_str(), facts.key), ("a", key.key()));
    assert!(facts.is_client && !facts.is_server && !facts.is_authority);
    assert_eq!(first.body["caBundle"], json!(hub.authorities()));
    let again = hub.register(&token, "a", &key).await;
    assert_eq!((again.code, again.text), (200, first.text));
    let stored = hub.api_server.object("managedclusters", "a").unwrap();
    let certificates = stored["status"]["certificates"].as_array().unwrap().clone();
    assert_eq!(certificates.len(), 1);
    assert_eq!(certificates[0]["serial"], json!(facts.serial));
    assert_eq!(hub.state("a").await, "disconnected");
}

/// A response says nothing about a token, whatever is wrong with it.
#[tokio::test]
async fn every_failure_is_the_same_401() {
    let hub = TestHub::with("clusters: [{name: a}, {name: b}]").await;
    let (wrong, used, unregistered) = (
        hub.token("a").await,
        hub.token("a").await,
        hub.token("b").await,
    );
    assert_eq!(hub.register(&used, "a", &key()).await.code, 200);
    let unknown = "A".repeat(43);
    let mut replies = vec![
        rejected(&hub, &unknown, "a").await,
        rejected(&hub, "no token", "a").await,
        rejected(&hub, &wrong, "b").await,
        // It is burned now.
        rejected(&hub, &wrong, "a").await,
        rejected(&hub, &used, "a").await,
        rejected(&hub, &unknown, "\u{1F680} no name").await,
    ];
    std::fs::write(&hub.configuration, "clusters: [{name: a}]").unwrap();
    hub.until_state("b", "none").await;
    replies.push(rejected(&hub, &unregistered, "b").await);
    for reply in &replies {
        assert_eq!(reply.text, r#"{"error":"registration rejected"}"#);
        let mut headers = reply.headers.clone();
        headers.remove("date");
        let mut first = replies[0].headers.clone();
        first.remove("date");
        assert_eq!(headers, first);
    }
    let metrics = TestClient::plain(hub.metrics)
        .send("GET", "/metrics", None)
        .await;
    for reason in [
        "unknown_token",
        "another_cluster",
        "another_key",
        "burned_token",
    ] {
        let counted = format!("standin_hub_registrations_total{{reason=\"{reason}\"}}");
        assert!(metrics.text.contains(&counted), "{}", metrics.text);
    }
}

#[tokio::test]
async fn a_registration_at_the_port_without_tls_needs_no_user() {
    let hub = TestHub::start().await;
    let (token, key) = (hub.token("a").await, key());
    let csr = key.request_pem("anything").unwrap();
    let body = json!({ "token": token, "cluster": "a", "csr": csr });
    let client = TestClient::plain(hub.http);
    let reply = client
        .send("POST", "/api/agents/register", Some(body))
        .await;
    assert_eq!(reply.code, 200, "{}", reply.text);
}

#[tokio::test]
async fn malformed_and_endless_requests_are_refused_and_burn_nothing() {
    let hub = TestHub::start().await;
    let token = hub.token("a").await;
    let client = hub.agents_client();
    let path = "/api/agents/register";
    for (body, code, error) in [
        ("no JSON".to_owned(), 400, "is not the JSON"),
        (
            json!({ "token": token }).to_string(),
            400,
            "is not the JSON",
        ),
        (
            json!({ "token": token, "cluster": "a", "csr": "x" }).to_string(),
            400,
            "csr: there is no signing request in PEM",
        ),
        (" ".repeat(64 * 1024 + 1), 413, "more than 65536 bytes"),
    ] {
        let reply = client.send_text("POST", path, body).await;
        assert_eq!(reply.code, code, "{}", reply.text);
        assert!(reply.text.contains(error), "{}", reply.text);
        assert!(!reply.text.contains(&token), "{}", reply.text);
    }
    let endless = hub.agents_client().header("x-long", &"x".repeat(64 * 1024));
    assert_eq!(endless.send("POST", path, None).await.code, 431);
    assert_eq!(hub.register(&token, "a", &key()).await.code, 200);
}

#[tokio::test]
async fn a_source_may_send_only_so_many_registrations() {
    let limited = "clusters: [{name: a}]\nagent: {registrations: {perSecond: 1, burst: 2}}";
    let hub = TestHub::with(limited).await;
    let token = "A".repeat(43);
    rejected(&hub, &token, "a").await;
    rejected(&hub, &token, "a").await;
    // More than one per second, whatever the machine's speed is.
    let replies = futures_util::future::join_all(
        (0..20).map(|_| async { hub.register(&token, "a", &key()).await.code }),
    );
    let codes = replies.await;
    assert!(codes.contains(&429), "{codes:?}");
}

#[tokio::test]
async fn tokens_need_a_right_and_a_registered_cluster() {
    let hub = TestHub::start().await;
    let body = |cluster| Some(json!({ "cluster": cluster }));
    let path = "/api/agents/tokens";
    let plain = TestClient::plain(hub.http);
    for (client, cluster, code) in [
        (plain.clone(), "a", 401),
        (plain.clone().token("unknown"), "a", 401),
        (plain.clone().token("token-of-reader"), "a", 403),
        (plain.clone().token(ADMIN), "missing", 404),
        (plain.token(ADMIN), "a", 201),
    ] {
        let reply = client.send("POST", path, body(cluster)).await;
        assert_eq!(reply.code, code, "{}", reply.text);
    }
    let stored = hub
        .api_server
        .secret_text("standin-hub-tokens", "tokens.json");
    assert!(stored.unwrap().contains("fresh"));
}
