//! A hub, and clusters that dial in: Kubernetes clients reach their API servers through it.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::tunnel::{Hub, Onboarding, TunnelAgent};
use e2e::{LazyEnvironment, Needs, Scenario, TestNamespace, scenario, until};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use super::support::load_hub_image;

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![scenario(
        environment,
        "a_cluster_dials_in_and_kubectl_reaches_it_through_the_hub",
        Needs::Lab,
        a_cluster_dials_in,
    )]
}

const CLUSTER: &str = "prod-eu";

async fn a_cluster_dials_in(scenario: &Scenario<'_>) -> Result<()> {
    load_hub_image(scenario)?;
    let values = json!({ "clusters": [{ "name": CLUSTER }] });
    let hub = Hub::install(scenario.namespace_in(0).await?, &values)?;
    hub.namespace.client_pod("client").await?;
    let user = User::create(&hub)?;
    let onboarding = user.onboarding(&hub).await?;
    let remote = scenario.namespace_in(1).await?;
    let allow = json!({ "agent": { "allow": {
        "users": [format!("system:serviceaccount:{}:*", hub.namespace.name)],
        "groups": ["system:serviceaccounts", "system:serviceaccounts:*"],
    } } });
    let agent = TunnelAgent::install(remote.clone(), CLUSTER, &onboarding, &allow)?;
    user.may_view(&remote)?;
    user.kubectl_shows_pods(&hub, &agent).await?;
    agent.uninstall()?;
    hub.uninstall()
}

/// A service account of the hub's cluster, which administers the hub and uses its clusters.
struct User {
    token: String,
    name: String,
}

impl User {
    fn create(hub: &Hub) -> Result<Self> {
        let namespace = &hub.namespace;
        namespace.kubectl(&["create", "serviceaccount", "anna"])?;
        let account = format!("--serviceaccount={}:anna", namespace.name);
        for role in ["standin-hub-administrator", "standin-hub-user"] {
            let role_flag = format!("--clusterrole={role}");
            namespace.kubectl(&["create", "rolebinding", role, &role_flag, &account])?;
        }
        let token = namespace.kubectl(&["create", "token", "anna"])?;
        Ok(Self {
            token: token.trim().to_owned(),
            name: format!("system:serviceaccount:{}:anna", namespace.name),
        })
    }

    /// A response of the hub's JSON API.
    async fn api(&self, hub: &Hub, method: &str, path: &str, body: &Value) -> Result<Value> {
        let header = format!("Authorization: Bearer {}", self.token);
        let write = ["sh", "-c", "cat > /tmp/header"];
        hub.namespace.exec("client", &write, Some(&header)).await?;
        let curl = format!(
            "curl -sS --max-time 20 -X {method} -H @/tmp/header -H 'Content-Type: application/json' --data '{body}' \
             http://standin-hub:8080{path}"
        );
        let output = hub.namespace.exec("client", &["sh", "-c", &curl], None);
        let output = output.await?;
        serde_json::from_str(&output.stdout).with_context(|| format!("{path}: {output:?}"))
    }

    async fn onboarding(&self, hub: &Hub) -> Result<Onboarding> {
        // A change of the ConfigMap takes a while until it is in the hub's pod.
        let description = until("the hub to know its addresses", async || {
            let description = self.api(hub, "GET", "/api/hub", &Value::Null).await?;
            Ok(description["agentUrl"].is_string().then_some(description))
        });
        let description = description.await?;
        let token = until("a registration token", async || {
            let request = json!({ "cluster": CLUSTER });
            let token = self
                .api(hub, "POST", "/api/agents/tokens", &request)
                .await?;
            Ok(token["token"].as_str().map(str::to_owned))
        });
        Ok(Onboarding {
            token: token.await?,
            agent_url: text(&description, "agentUrl")?,
            pin: Some(text(&description, "serverCAHash")?),
        })
    }

    /// Grants the right to view a namespace of the remote cluster.
    fn may_view(&self, remote: &TestNamespace) -> Result<()> {
        let user = format!("--user={}", self.name);
        let arguments = ["create", "rolebinding", "anna", "--clusterrole=view", &user];
        remote.kubectl(&arguments).map(drop)
    }

    async fn kubectl_shows_pods(&self, hub: &Hub, agent: &TunnelAgent) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let authority = folder.path().join("ca.crt");
        std::fs::write(&authority, hub.authority()?)?;
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": CLUSTER, "cluster": {
                "server": format!("https://{}/clusters/{CLUSTER}", hub.address("clients")?),
                "certificate-authority": authority,
            } }],
            "users": [{ "name": "anna", "user": { "token": self.token } }],
            "contexts": [{ "name": CLUSTER, "context": {
                "cluster": CLUSTER,
                "user": "anna",
                "namespace": agent.namespace.name,
            } }],
            "current-context": CLUSTER,
        });
        let path = folder.path().join("config");
        std::fs::write(&path, kubeconfig.to_string())?;
        let kubectl = |arguments: &[&str]| -> Result<String> {
            let mut command = agent.namespace.cluster.client.kubectl();
            command
                .env("KUBECONFIG", &path)
                .args(["--context", CLUSTER]);
            Ok(lab::output_of(command.args(arguments))?)
        };
        let pods = kubectl(&["get", "pods"])?;
        ensure!(pods.contains("standin-tunnel-agent-"), "{pods}");
        let refused = kubectl(&["get", "secrets"]).err().context("not refused")?;
        let refused = format!("{refused:#}");
        ensure!(refused.contains(&self.name), "{refused}");
        Ok(())
    }
}

fn text(object: &Value, key: &str) -> Result<String> {
    let text = object[key].as_str();
    let text = text.with_context(|| format!("no {key} in {object}"))?;
    Ok(text.to_owned())
}
