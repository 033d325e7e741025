//! What to run on a new cluster, as text and as data.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use api::hub::{Cluster, ClusterState, HubDescription, RegistrationToken};
use serde::{Serialize, Serializer};

use crate::cluster::address::HubAddress;

const RELEASE: &str = "standin-tunnel-agent";
const SECRET: &str = "standin-tunnel-agent-token";

/// Which cluster is connected to which hub, and how the commands are run.
#[derive(Debug)]
pub(super) struct Onboarding<'input> {
    pub(super) cluster: &'input str,
    pub(super) hub: &'input HubAddress,
    pub(super) description: &'input HubDescription,
    pub(super) namespace: &'input str,
    pub(super) context: Option<&'input str>,
    /// Whether the token is pasted, instead of piped from this program.
    pub(super) pastes_token: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Instructions {
    chart: String,
    namespace: String,
    secret: String,
    /// The values of the chart, in the order of the command.
    #[serde(serialize_with = "as_map")]
    values: Vec<(&'static str, String)>,
    /// For a shell.
    commands: Vec<String>,
}

fn as_map<S: Serializer>(
    values: &[(&'static str, String)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(values.iter().map(|(key, value)| (key, value)))
}

impl Onboarding<'_> {
    pub(super) fn instructions(&self) -> Result<Instructions> {
        let values = self.values()?;
        Ok(Instructions {
            chart: self.description.agent_chart.clone(),
            namespace: self.namespace.to_owned(),
            secret: SECRET.to_owned(),
            commands: vec![
                format!(
                    "kubectl{} create namespace {}",
                    self.kubectl(),
                    self.namespace
                ),
                self.secret_command(),
                self.helm_command(&values),
            ],
            values,
        })
    }

    /// What the agent has to know for this hub's topology: see docs/tunnel.md.
    fn values(&self) -> Result<Vec<(&'static str, String)>> {
        let description = self.description;
        let url = description.agent_url.clone().with_context(|| {
            format!(
                "the hub {} does not know its address for agents; its administrator sets `agent.url` in the values of its chart",
                self.hub
            )
        })?;
        let mut values = vec![
            ("agent.cluster", self.cluster.to_owned()),
            ("agent.serverURL", url),
        ];
        match (&description.registration_url, &description.server_ca_hash) {
            // The address for registrations has a certificate of its own, to which the pin would not fit.
            (Some(url), _) => values.push(("agent.registrationURL", url.clone())),
            (None, Some(hash)) => values.push(("agent.serverCAHash", hash.clone())),
            (None, None) => {}
        }
        values.push(("agent.registrationTokenSecretName", SECRET.to_owned()));
        Ok(values)
    }

    fn secret_command(&self) -> String {
        let create = format!(
            "kubectl{} create secret generic {SECRET} \\\n  --namespace {} --from-file=token=/dev/stdin",
            self.kubectl(),
            self.namespace
        );
        match self.pastes_token {
            true => create,
            false => format!(
                "standin cluster token {} --hub {} | {create}",
                self.cluster,
                quoted(&self.hub.name())
            ),
        }
    }

    fn helm_command(&self, values: &[(&'static str, String)]) -> String {
        let context = match self.context {
            Some(context) => format!(" --kube-context {}", quoted(context)),
            None => String::new(),
        };
        let chart = quoted(&self.description.agent_chart);
        let namespace = self.namespace;
        let mut command =
            format!("helm{context} install {RELEASE} {chart} \\\n  --namespace {namespace}");
        for (key, value) in values {
            // A comma would begin the next value.
            let value = value.replace(',', "\\,");
            command += &format!(" \\\n  --set {}", quoted(&format!("{key}={value}")));
        }
        command
    }

    fn kubectl(&self) -> String {
        match self.context {
            Some(context) => format!(" --context {}", quoted(context)),
            None => String::new(),
        }
    }
}

impl Instructions {
    pub(super) fn text(
        &self,
        cluster: &Cluster,
        hub: &HubAddress,
        token: Option<&RegistrationToken>,
    ) -> String {
        let name = &cluster.name;
        let state = match cluster.state {
            ClusterState::Connected => {
                ", and connected; an agent that registers again replaces the certificate"
            }
            ClusterState::Revoked => ", and was revoked; its agent has to register again",
            ClusterState::Pending | ClusterState::Disconnected => "",
        };
        let mut text = format!(
            "{name} is registered at the hub {hub}{state}. Run this with kubectl and helm for {name}:\n"
        );
        for command in &self.commands {
            let _ = write!(text, "\n  {}\n", command.replace('\n', "\n  "));
        }
        match token {
            Some(token) => {
                let _ = write!(
                    text,
                    "\nPaste this token into the second command, then press Ctrl-D twice. It is valid until {}:\n\n  {}\n",
                    token.expires_at.0, token.token
                );
            }
            None => text += "\nThe second command creates a token that is valid for 15 minutes.\n",
        }
        text += "\nThen `standin cluster list` shows whether it is connected.\n";
        text
    }
}

/// For a shell. Most values need no quotes.
fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=@%+".contains(letter);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn description(addresses: &serde_json::Value) -> HubDescription {
        let mut description = json!({
            "version": "0.1.0", "agentUrl": null, "registrationUrl": null, "apiUrl": null,
            "serverCAHash": null, "caBundle": null, "agentChart": "oci://charts.example.com/standin-tunnel-agent",
        });
        for (key, value) in addresses.as_object().unwrap() {
            description[key] = value.clone();
        }
        serde_json::from_value(description).unwrap()
    }

    fn values(addresses: &serde_json::Value) -> Result<Vec<String>> {
        let description = description(addresses);
        let hub = "hub.example.com".parse().unwrap();
        let onboarding = Onboarding {
            cluster: "prod-eu",
            hub: &hub,
            description: &description,
            namespace: "standin-tunnel-agent",
            context: None,
            pastes_token: false,
        };
        let values = onboarding.values()?.into_iter();
        Ok(values
            .map(|(key, value)| format!("{key}={value}"))
            .collect())
    }

    #[test]
    fn agents_get_what_the_topology_needs() {
        let url = "wss://agents.example.com:8443";
        let pin = format!("sha256:{}", "0a".repeat(32));
        #[rustfmt::skip] // A table is read by its columns.
        let table = [
            ("A", json!({ "agentUrl": url }), vec![]),
            ("B", json!({ "agentUrl": url, "registrationUrl": "https://hub.example.com", "serverCAHash": pin }),
                  vec!["agent.registrationURL=https://hub.example.com".to_owned()]),
            ("C", json!({ "agentUrl": url, "serverCAHash": pin }),
                  vec![format!("agent.serverCAHash={pin}")]),
        ];
        for (topology, addresses, expected) in table {
            let values = values(&addresses).unwrap();
            assert_eq!(
                values[..2],
                [
                    "agent.cluster=prod-eu".to_owned(),
                    format!("agent.serverURL={url}")
                ]
            );
            assert_eq!(values[2..values.len() - 1], expected, "{topology}");
            assert_eq!(
                values.last().unwrap(),
                &format!("agent.registrationTokenSecretName={SECRET}")
            );
        }
        let error = values(&json!({})).unwrap_err().to_string();
        assert!(error.contains("`agent.url`"), "{error}");
    }

    #[test]
    fn commands_are_quoted_for_a_shell() {
        let description = description(&json!({ "agentUrl": "wss://hub:8443/a,b" }));
        let hub = "hub:7000".parse().unwrap();
        let onboarding = Onboarding {
            cluster: "a",
            hub: &hub,
            description: &description,
            namespace: "agents",
            context: Some("it's"),
            pastes_token: true,
        };
        let commands = onboarding.instructions().unwrap().commands;
        assert_eq!(
            commands[0],
            r"kubectl --context 'it'\''s' create namespace agents"
        );
        assert!(!commands[1].contains("standin cluster"), "{}", commands[1]);
        assert!(
            commands[2].contains(r"--set 'agent.serverURL=wss://hub:8443/a\,b'"),
            "{}",
            commands[2]
        );
    }
}
