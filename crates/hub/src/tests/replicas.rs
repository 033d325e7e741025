use serde_json::json;

use crate::testing::{ADMIN, TestAgent, TestClient, TestHub};

const VALUES: &str = "clusters: [{name: a}]\nagent: {tunnelSANs: [127.0.0.1]}\n";

/// What a replica shows and serves of the cluster.
async fn served(hub: &TestHub) -> (u16, serde_json::Value) {
    let client = TestClient::tls(hub.clients, &hub.authorities()).token(ADMIN);
    let reply = client.send("GET", "/clusters/a/api/v1/pods", None).await;
    let shown = hub.get("/api/clusters/a").await.body;
    (reply.code, json!([shown["state"], shown["replicas"]]))
}

#[tokio::test]
async fn every_replica_shows_and_serves_a_cluster_that_is_connected_to_one() {
    let hubs = TestHub::replicas(3, VALUES).await;
    let credentials = hubs[1].registered("a").await;
    let agent = TestAgent::start(&hubs[1], "a", &credentials);
    for hub in &hubs {
        hub.until_state("a", "connected").await;
        assert_eq!(served(hub).await, (200, json!(["connected", ["hub-1"]])));
    }
    // A second tunnel, as an agent keeps
    let _second = TestAgent::start(&hubs[2], "a", &credentials);
    let both = json!(["connected", ["hub-1", "hub-2"]]);
    for hub in &hubs {
        hub.until("both tunnels are shown", async || {
            served(hub).await == (200, both.clone())
        })
        .await;
    }
    drop(agent);
    for hub in &hubs {
        let left = json!(["connected", ["hub-2"]]);
        hub.until("one tunnel is left", async || {
            served(hub).await == (200, left.clone())
        })
        .await;
    }
    // Any replica ends it.
    let revoked = hubs[0]
        .request("POST", "/api/clusters/a/revoke", None)
        .await;
    assert_eq!(revoked.code, 200, "{}", revoked.text);
    for hub in &hubs {
        hub.until_state("a", "revoked").await;
        assert_eq!(served(hub).await.0, 503);
    }
}

#[tokio::test]
async fn requests_do_not_reach_a_replica_that_has_shut_down() {
    let hubs = TestHub::replicas(2, VALUES).await;
    let credentials = hubs[0].registered("a").await;
    let agent = TestAgent::start(&hubs[0], "a", &credentials);
    hubs[1].until_state("a", "connected").await;
    // The replica is killed.
    hubs[0].running.abort();
    drop(agent);
    hubs[1]
        .until("the tunnel is gone", async || {
            served(&hubs[1]).await.0 == 503
        })
        .await;
    let _agent = TestAgent::start(&hubs[1], "a", &credentials);
    hubs[1]
        .until("the agent has moved", async || {
            served(&hubs[1]).await.0 == 200
        })
        .await;
}
