use serde_json::json;

use crate::testing::{StubApiServer, TestAgent, TestClient, TestHub};

const VALUES: &str = "clusters: [{name: a}]\nagent: {tunnelSANs: [127.0.0.1]}\n";

async fn connect_code(hub: &TestHub, agent: &TestAgent) -> u16 {
    let identity = agent.credentials.identity();
    TestClient::identified(hub.agents, &hub.authorities(), &identity)
        .opening_tunnel("a")
        .send("GET", "/api/agents/connect", None)
        .await
        .code
}

/// On whichever replica it is.
#[tokio::test]
async fn a_revocation_at_one_replica_ends_the_tunnel_at_another() {
    let api_server = StubApiServer::new();
    let hub = TestHub::replica(&api_server, VALUES).await;
    let other = TestHub::replica(&api_server, VALUES).await;
    let credentials = hub.registered("a").await;
    let unused = hub.token("a").await;
    let agent = TestAgent::start(&hub, "a", &credentials);
    hub.until_state("a", "connected").await;
    let revoked = other.request("POST", "/api/clusters/a/revoke", None).await;
    assert_eq!(
        (revoked.code, &revoked.body["state"]),
        (200, &json!("revoked"))
    );
    hub.until_state("a", "revoked").await;
    assert_eq!(connect_code(&hub, &agent).await, 403);
    assert_eq!(connect_code(&other, &agent).await, 403);
    // Tokens of before the revocation are burned, and a new one registers the agent again.
    let key = authority::PrivateKey::generate().unwrap();
    assert_eq!(hub.register(&unused, "a", &key).await.code, 401);
    let credentials = other.registered("a").await;
    let agent = TestAgent::start(&hub, "a", &credentials);
    hub.until_state("a", "connected").await;
    let metrics = TestClient::plain(hub.metrics)
        .send("GET", "/metrics", None)
        .await;
    let counted = "standin_hub_disconnects_total{cluster=\"a\",reason=\"revoked\"} 1";
    assert!(metrics.text.contains(counted), "{}", metrics.text);
    drop(agent);
}

#[tokio::test]
async fn a_removed_cluster_is_disconnected_and_refused() {
    let hub = TestHub::start().await;
    let new = json!({ "name": "b", "labels": { "region": "eu" } });
    let added = hub
        .request("POST", "/api/clusters", Some(new.clone()))
        .await;
    assert_eq!(added.code, 201, "{}", added.text);
    assert_eq!(added.body["labels"], json!({ "region": "eu" }));
    let again = hub.request("POST", "/api/clusters", Some(new)).await;
    assert_eq!(again.code, 409);
    hub.until_state("b", "pending").await;
    let credentials = hub.registered("b").await;
    let _agent = TestAgent::start(&hub, "b", &credentials);
    hub.until_state("b", "connected").await;
    let removed = hub.request("DELETE", "/api/clusters/b", None).await;
    assert_eq!(removed.code, 204, "{}", removed.text);
    hub.until_state("b", "none").await;
    let client = TestClient::identified(hub.agents, &hub.authorities(), &credentials.identity());
    let client = client.opening_tunnel("b");
    let refused = client.send("GET", "/api/agents/connect", None).await;
    assert_eq!(refused.code, 403);
    assert!(refused.text.contains("not registered"), "{}", refused.text);
    // A cluster of the values is removed there.
    let refused = hub.request("DELETE", "/api/clusters/a", None).await;
    assert_eq!(refused.code, 409);
    assert!(
        refused.text.contains("upgrade the chart"),
        "{}",
        refused.text
    );
}

/// As in the table of failures: it is removed from the values while its agent is connected, and added again.
#[tokio::test]
async fn a_cluster_that_is_removed_from_the_values_is_disconnected() {
    let both = "clusters: [{name: a}, {name: b}]\nagent: {tunnelSANs: [127.0.0.1]}\n";
    let hub = TestHub::with(both).await;
    hub.until_state("b", "pending").await;
    let credentials = hub.registered("b").await;
    let _agent = TestAgent::start(&hub, "b", &credentials);
    hub.until_state("b", "connected").await;
    std::fs::write(&hub.configuration, VALUES).unwrap();
    hub.until_state("b", "none").await;
    let counted = "standin_hub_disconnects_total{cluster=\"b\",reason=\"not_registered\"} 1";
    hub.until("the tunnel has ended", async || {
        let metrics = TestClient::plain(hub.metrics)
            .send("GET", "/metrics", None)
            .await;
        metrics.text.contains(counted)
    })
    .await;
}
