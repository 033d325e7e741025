use std::time::Duration;

use api::hub::{AgentMessage, HubMessage};
use authority::{Authority, Facts, PrivateKey, Profile, Usage};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::testing::{TestAgent, TestClient, TestHub};

/// The certificate that a listener serves.
async fn served(client: &TestClient) -> Facts {
    let stream = client.connect().await.unwrap();
    let chain = stream.get_ref().1.peer_certificates().unwrap();
    Facts::from_der(&chain[0]).unwrap()
}

#[tokio::test]
async fn names_change_without_a_restart_and_the_pinned_key_stays() {
    let hub = TestHub::start().await;
    let before = served(&hub.agents_client()).await;
    assert!(before.names.contains(&"127.0.0.1".to_owned()));
    let description = hub.get("/api/hub").await.body;
    assert_eq!(description["serverCAHash"], json!(before.key.to_string()));
    assert_eq!(description["caBundle"], json!(hub.authorities()));
    let changed = "clusters: [{name: a}]\nagent: {tunnelSANs: [127.0.0.1, hub.example.com]}\n";
    std::fs::write(&hub.configuration, changed).unwrap();
    hub.until("the new name is served", async || {
        let after = served(&hub.agents_client()).await;
        after.names.contains(&"hub.example.com".to_owned()) && after.key == before.key
    })
    .await;
    // And so it is at another replica.
    let other = TestHub::replica(&hub.api_server, changed).await;
    assert_eq!(served(&other.agents_client()).await.key, before.key);
}

#[tokio::test]
async fn an_agent_renews_its_certificate_over_its_tunnel() {
    let hub = TestHub::start().await;
    let credentials = hub.registered("a").await;
    let agent = TestAgent::start(&hub, "a", &credentials);
    hub.until_state("a", "connected").await;
    let key = PrivateKey::generate().unwrap();
    agent.send(AgentMessage::Renew {
        csr: key.request_pem("ignored").unwrap(),
    });
    let renewed = agent
        .receive(|message| match message {
            HubMessage::Certificate(registered) => Some(registered),
            _ => None,
        })
        .await;
    let facts = Facts::from_pem(&renewed.cert).unwrap();
    assert_eq!((facts.common_name.as_str(), facts.key), ("a", key.key()));
    let object = hub.api_server.object("managedclusters", "a").unwrap();
    let certificates = object["status"]["certificates"].as_array().unwrap();
    assert_eq!(certificates.len(), 2);
    drop(agent);
    hub.until_state("a", "disconnected").await;
    credentials.replace(&renewed.cert, key.to_pem());
    let _agent = TestAgent::start(&hub, "a", &credentials);
    hub.until_state("a", "connected").await;
}

#[tokio::test]
async fn the_public_certificate_is_served_and_read_again() {
    let now = Timestamp::now();
    let public = Authority::generate("public", SignedDuration::from_hours(24), now).unwrap();
    let issue = || {
        let key = PrivateKey::generate().unwrap();
        let profile = Profile {
            common_name: "hub.example.com".to_owned(),
            names: vec!["hub.example.com".to_owned()],
            usage: Usage::Server,
            lifetime: SignedDuration::from_hours(1),
        };
        let issued = public.issue(&key, &profile, now).unwrap();
        (
            issued.certificate_pem,
            key.to_pem().to_owned(),
            issued.facts,
        )
    };
    let (certificate, key, facts) = issue();
    let hub = TestHub::with_public_certificate(&certificate, &key).await;
    let public_client = TestClient::tls(hub.agents, public.certificate_pem());
    let public_client = public_client.named("hub.example.com");
    assert_eq!(served(&public_client).await, facts);
    // Clients in the hub's cluster know it by another name.
    assert_ne!(served(&hub.agents_client()).await, facts);
    let description = hub.get("/api/hub").await.body;
    assert!(description["serverCAHash"].is_null() && description["caBundle"].is_null());
    let (certificate, key, renewed) = issue();
    std::fs::write(hub.folder.path().join("tls.key"), key).unwrap();
    std::fs::write(hub.folder.path().join("tls.crt"), certificate).unwrap();
    hub.until("the renewed certificate is served", async || {
        served(&public_client).await == renewed
    })
    .await;
}

/// The new authority signs only after the agent has confirmed it, and the agent's old certificate stays good.
#[tokio::test]
async fn the_authority_is_rotated_with_a_connected_agent() {
    let hub = TestHub::with(
        "clusters: [{name: a}]\nagent: {tunnelSANs: [127.0.0.1], authorityDistributionSecs: 1}\n",
    )
    .await;
    let credentials = hub.registered("a").await;
    let agent = TestAgent::start(&hub, "a", &credentials);
    hub.until_state("a", "connected").await;
    let before = hub.authority().facts().fingerprint.clone();
    hub.api_server
        .add_to_secret("standin-hub-ca", "rotate", "now");
    let bundle = agent
        .receive(|message| match message {
            HubMessage::Authorities { ca_bundle } if ca_bundle != credentials.authorities() => {
                Some(ca_bundle)
            }
            _ => None,
        })
        .await;
    assert_eq!(hub.authority().facts().fingerprint, before);
    credentials.trust(&bundle);
    let fingerprints: Vec<String> = bundle
        .split_inclusive("-----END CERTIFICATE-----\n")
        .map(|pem| Facts::from_pem(pem).unwrap().fingerprint)
        .collect();
    agent.send(AgentMessage::Trusts {
        authorities: fingerprints,
    });
    hub.until("the new authority signs", async || {
        hub.authority().facts().fingerprint != before
    })
    .await;
    hub.until("the new authority's certificate is served", async || {
        hub.agents_client().connect().await.is_ok()
    })
    .await;
    drop(agent);
    hub.until_state("a", "disconnected").await;
    let _agent = TestAgent::start(&hub, "a", &credentials);
    hub.until_state("a", "connected").await;
}

/// An agent whose certificate is not renewed in time loses its tunnel.
#[tokio::test]
async fn a_tunnel_ends_with_its_certificate() {
    let hub = TestHub::start().await;
    let key = PrivateKey::generate().unwrap();
    let profile = Profile {
        common_name: "a".to_owned(),
        names: Vec::new(),
        usage: Usage::Client,
        lifetime: SignedDuration::from_secs(3),
    };
    let issued = hub.authority().issue(&key, &profile, Timestamp::now());
    let certificate = issued.unwrap().certificate_pem;
    let authorities = hub.authorities();
    let credentials =
        crate::testing::TestCredentials::new(&certificate, key.to_pem(), &authorities);
    let _agent = TestAgent::start(&hub, "a", &credentials);
    hub.until_state("a", "connected").await;
    let counted = "standin_hub_disconnects_total{cluster=\"a\",reason=\"expired\"} 1";
    hub.until("the tunnel has ended", async || {
        let metrics = TestClient::plain(hub.metrics)
            .send("GET", "/metrics", None)
            .await;
        metrics.text.contains(counted)
    })
    .await;
    tokio::time::timeout(Duration::from_secs(60), hub.until_state("a", "pending"))
        .await
        .unwrap();
}
