use authority::{Authority, Usage};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::testing::{Identity, Reply, TestAgent, TestClient, TestHub, certificate};

async fn open(hub: &TestHub, identity: &Identity, cluster: &str) -> Reply {
    TestClient::identified(hub.agents, &hub.authorities(), identity)
        .opening_tunnel(cluster)
        .send("GET", "/api/agents/connect", None)
        .await
}

async fn check_refused(hub: &TestHub, identity: &Identity, cluster: &str, code: u16, text: &str) {
    let reply = open(hub, identity, cluster).await;
    assert_eq!(reply.code, code, "{}", reply.text);
    let error = reply.body["error"].as_str().unwrap_or_default();
    assert!(error.contains(text), "{error}");
    // By this header an agent knows that the response is from a hub.
    assert!(reply.headers.contains_key(tunnel::VERSION_HEADER));
}

#[tokio::test]
async fn an_agent_connects_and_the_api_and_the_object_show_it() {
    let hub = TestHub::start().await;
    assert_eq!(hub.state("a").await, "pending");
    let credentials = hub.registered("a").await;
    let agent = TestAgent::start(&hub, "a", &credentials);
    hub.until_state("a", "connected").await;
    hub.until("the versions are known", async || {
        let cluster = hub.get("/api/clusters/a").await.body;
        cluster["agentVersion"] == json!("1.2.3")
            && cluster["kubernetesVersion"] == json!("v1.34.0")
    })
    .await;
    let cluster = hub.get("/api/clusters/a").await.body;
    assert_eq!(cluster["replicas"], json!(["hub-0"]));
    assert!(cluster["connectedSince"].is_string() && cluster["certificateExpiresAt"].is_string());
    hub.until("the status is written", async || {
        let object = hub.api_server.object("managedclusters", "a").unwrap();
        object["status"]["agentVersion"] == json!("1.2.3")
            && object["status"]["connectedSince"].is_string()
    })
    .await;
    let metrics = TestClient::plain(hub.metrics)
        .send("GET", "/metrics", None)
        .await;
    assert!(
        metrics
            .text
            .contains("standin_hub_tunnels{cluster=\"a\"} 1"),
        "{}",
        metrics.text
    );
    assert!(
        metrics
            .text
            .contains("standin_hub_connects_total{cluster=\"a\"} 1")
    );
    drop(agent);
    hub.until_state("a", "disconnected").await;
    hub.until("the status is written", async || {
        let object = hub.api_server.object("managedclusters", "a").unwrap();
        object["status"]["lastSeen"].is_string() && object["status"]["connectedSince"].is_null()
    })
    .await;
}

#[tokio::test]
async fn certificates_that_are_not_good_are_refused_and_the_error_says_why() {
    let hub = TestHub::with("clusters: [{name: a}, {name: b}]").await;
    let (ours, now) = (hub.authority(), Timestamp::now());
    let foreign = Authority::generate("foreign", SignedDuration::from_hours(24), now).unwrap();
    let past = now - SignedDuration::from_hours(24 * 30);
    let old = Authority::generate("old", SignedDuration::from_hours(24 * 60), past).unwrap();
    let client =
        |authority, name, issued, days| certificate(authority, name, Usage::Client, issued, days);
    let good = client(&ours, "a", now, 1);
    assert_eq!(open(&hub, &good, "a").await.code, 101);
    check_refused(
        &hub,
        &good,
        "b",
        403,
        "the certificate is for the cluster a",
    )
    .await;
    let unknown = client(&ours, "c", now, 1);
    check_refused(&hub, &unknown, "c", 403, "the cluster c is not registered").await;
    let server = certificate(&ours, "a", Usage::Server, now, 1);
    check_refused(&hub, &server, "a", 401, "not one of a client").await;
    let foreign_identity = client(&foreign, "a", now, 1);
    check_refused(
        &hub,
        &foreign_identity,
        "a",
        401,
        "signed by another authority",
    )
    .await;
    // Also if it has expired: what it says of itself is worth nothing.
    let expired = client(&old, "a", past, 1);
    check_refused(&hub, &expired, "a", 401, "signed by another authority").await;
    let mut reasons: Vec<String> = TestClient::plain(hub.metrics)
        .send("GET", "/metrics", None)
        .await
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("standin_hub_handshakes_refused_total"))
        .map(str::to_owned)
        .collect();
    reasons.sort();
    let expected = [
        "{reason=\"another_cluster\"} 1",
        "{reason=\"foreign_authority\"} 2",
        "{reason=\"not_of_client\"} 1",
        "{reason=\"not_registered\"} 1",
    ];
    assert_eq!(reasons, expected);
}

#[tokio::test]
async fn an_expired_certificate_is_named_and_the_error_says_how_to_register_again() {
    let past = Timestamp::now() - SignedDuration::from_hours(24 * 30);
    let authority = Authority::generate("brought", SignedDuration::from_hours(24 * 3650), past);
    let authority = authority.unwrap();
    let hub = TestHub::with_authority(&authority).await;
    let expired = certificate(&authority, "a", Usage::Client, past, 1);
    check_refused(&hub, &expired, "a", 401, "the certificate of a expired at").await;
    check_refused(&hub, &expired, "a", 401, "standin cluster token").await;
}

/// A load balancer that terminates TLS removes the agent's certificate.
#[tokio::test]
async fn a_request_without_a_certificate_is_explained() {
    let hub = TestHub::start().await;
    let path = "/api/agents/connect";
    let client = hub.agents_client().opening_tunnel("a");
    let reply = client.clone().send("GET", path, None).await;
    assert_eq!(reply.code, 401);
    assert!(reply.text.contains("TLS passthrough"), "{}", reply.text);
    let forwarded = client.header("x-forwarded-for", "10.0.0.1");
    let reply = forwarded.send("GET", path, None).await;
    assert!(
        reply.text.contains("a load balancer that terminates TLS"),
        "{}",
        reply.text
    );
    let plain = hub.agents_client().send("GET", path, None).await;
    assert_eq!(plain.code, 426);
    assert!(
        plain.text.contains("which open a WebSocket"),
        "{}",
        plain.text
    );
    // The other ports say where to connect.
    let reply = hub.get(path).await;
    assert_eq!(reply.code, 404);
    assert!(reply.text.contains("agent.serverURL"), "{}", reply.text);
}

#[tokio::test]
async fn the_port_for_agents_serves_nothing_else() {
    let hub = TestHub::start().await;
    let admin = hub.agents_client().token(crate::testing::ADMIN);
    for (method, path, code) in [
        ("GET", "/api/clusters", 404),
        ("POST", "/api/agents/tokens", 404),
        ("GET", "/clusters/a/api", 404),
        ("GET", "/", 404),
        ("GET", "/api/agents/register", 405),
        ("POST", "/api/agents/connect", 405),
    ] {
        let reply = admin.send(method, path, None).await;
        assert_eq!(reply.code, code, "{method} {path}: {}", reply.text);
    }
}
