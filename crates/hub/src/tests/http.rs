use serde_json::json;

use crate::testing::{ADMIN, StubApiServer, TestAgent, TestClient, TestHub};

#[tokio::test]
async fn the_api_is_at_both_ports_and_needs_rights() {
    let hub = TestHub::start().await;
    let clients = TestClient::tls(hub.clients, &hub.authorities());
    for client in [TestClient::plain(hub.http), clients] {
        for (token, path, code) in [
            (ADMIN, "/api/clusters", 200),
            (ADMIN, "/api/hub", 200),
            (ADMIN, "/api/audit?cluster=a", 200),
            (ADMIN, "/api/other", 404),
            ("token-of-reader", "/api/clusters", 200),
            ("token-of-reader", "/api/hub", 200),
            ("token-of-reader", "/api/clusters/a", 200),
            ("token-of-other", "/api/clusters/a", 403),
            ("token-of-other", "/api/audit", 403),
            ("unknown", "/api/clusters", 401),
            ("unknown", "/clusters/a/api", 401),
        ] {
            let reply = client.clone().token(token).send("GET", path, None).await;
            assert_eq!(reply.code, code, "{token} {path}: {}", reply.text);
        }
    }
    let other = TestClient::plain(hub.http).token("token-of-other");
    let clusters = other.send("GET", "/api/clusters", None).await;
    assert_eq!(clusters.body, json!({ "clusters": [] }));
}

#[tokio::test]
async fn a_request_reaches_the_cluster_through_the_tunnel() {
    let hub = TestHub::start().await;
    let client = TestClient::tls(hub.clients, &hub.authorities()).token(ADMIN);
    let path = "/clusters/a/api/v1/pods";
    let reply = client.send("GET", path, None).await;
    assert_eq!((reply.code, &reply.body["kind"]), (503, &json!("Status")));
    let credentials = hub.registered("a").await;
    let _agent = TestAgent::start(&hub, "a", &credentials);
    hub.until_state("a", "connected").await;
    let reply = client.send("GET", path, None).await;
    assert_eq!((reply.code, reply.text.as_str()), (200, "from the cluster"));
}

/// A replica that shuts down says so to its agents, which connect to another one first.
#[tokio::test]
async fn a_replica_that_shuts_down_hands_its_agents_over() {
    let hub = TestHub::start().await;
    let credentials = hub.registered("a").await;
    let agent = TestAgent::start(&hub, "a", &credentials);
    hub.until_state("a", "connected").await;
    hub.shutdown.cancel();
    agent
        .receive(|message| matches!(message, api::hub::HubMessage::Draining).then_some(()))
        .await;
    // It accepts no new tunnel meanwhile.
    let client = TestClient::identified(hub.agents, &hub.authorities(), &credentials.identity());
    let client = client.opening_tunnel("a");
    let refused = client.send("GET", "/api/agents/connect", None).await;
    assert_eq!(refused.code, 503, "{}", refused.text);
    drop(agent);
    let mut hub = hub;
    let ended = tokio::time::timeout(crate::testing::HANG, &mut hub.running).await;
    assert!(ended.unwrap().unwrap().is_ok());
}

/// Everything is in objects, so another process continues where the first one ended.
#[tokio::test]
async fn tokens_and_certificates_survive_a_restart() {
    let api_server = StubApiServer::new();
    let values = "clusters: [{name: a}]\nagent: {tunnelSANs: [127.0.0.1]}\n";
    let hub = TestHub::replica(&api_server, values).await;
    let token = hub.token("a").await;
    let credentials = hub.registered("a").await;
    let pin = hub.get("/api/hub").await.body["serverCAHash"].clone();
    drop(hub);
    let hub = TestHub::replica(&api_server, values).await;
    assert_eq!(hub.get("/api/hub").await.body["serverCAHash"], pin);
    let _agent = TestAgent::start(&hub, "a", &credentials);
    hub.until_state("a", "connected").await;
    let key = authority::PrivateKey::generate().unwrap();
    assert_eq!(hub.register(&token, "a", &key).await.code, 200);
}
