//! The agents that wait on nodes: where they are, and what they are asked.
//!
//! Both sides know one another by certificates that are in the operator's Secret: an agent on a node gets its own key and
//! the operator's certificate, and nothing else of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use api::node::{LABELS, MOST_BYTES, NodeAnswer, NodeRequest, PORT, Served, message};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use link::tls::{Fingerprint, Identity, TlsDialer, Trust};
use link::{Dial as _, TcpDialer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::error::{Doing as _, Result};

/// How long an agent on a node may take to answer. It answers what is there, or enters a target.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many are asked at the same time, where all of them are.
const AT_ONCE: usize = 16;

pub(crate) struct Nodes {
    client: Client,
    namespace: String,
    identity: Identity,
    /// The certificate that all agents on nodes have.
    known: Fingerprint,
}

impl Nodes {
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        identity: Identity,
        known: Fingerprint,
    ) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            identity,
            known,
        }
    }

    /// The addresses of those that run, by their nodes.
    pub(crate) async fn hosts(&self) -> Result<BTreeMap<String, String>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = pods
            .list(&ListParams::default().labels(LABELS))
            .await
            .doing("list the agents on nodes")?;
        Ok(found.items.iter().filter_map(host).collect())
    }

    /// What those that answer serve, of the names that begin like this.
    pub(crate) async fn served_everywhere(&self, prefix: &str) -> Result<Vec<(String, Served)>> {
        let request = NodeRequest::List {
            prefix: prefix.to_owned(),
        };
        let hosts = self.hosts().await?;
        let answers = futures_util::stream::iter(hosts.into_values())
            .map(async |host| {
                // One that does not answer ends what it serves when the client stays away.
                let answer = self.ask(&host, &request).await.unwrap_or_default();
                (host, answer)
            })
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<_>>()
            .await;
        let served = answers.into_iter().flat_map(|(host, answer)| {
            let served = answer.served.into_iter();
            served.map(move |served| (host.clone(), served))
        });
        Ok(served.collect())
    }

    /// Asks one of them. The error is for people.
    pub(crate) async fn ask(
        &self,
        host: &str,
        request: &NodeRequest,
    ) -> Result<NodeAnswer, String> {
        let answer = timeout(PATIENCE, self.exchange(host, request)).await;
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                return Err(format!("the agent on the node does not answer: {error}"));
            }
            Err(_) => return Err("the agent on the node is silent".to_owned()),
        };
        match answer.error {
            Some(error) => Err(error),
            None => Ok(answer),
        }
    }

    async fn exchange(
        &self,
        host: &str,
        request: &NodeRequest,
    ) -> Result<NodeAnswer, Box<dyn std::error::Error + Send + Sync>> {
        let address = SocketAddr::new(host.parse()?, PORT);
        let name = ServerName::try_from("node-agent")?;
        let trust = Trust::Pinned(self.known);
        let dialer =
            TlsDialer::with_identity(TcpDialer::new(address), name, trust, &self.identity)?;
        let mut pipe = dialer.dial().await?;
        pipe.write_all(&message(request)?).await?;
        pipe.flush().await?;
        answer(&mut pipe).await
    }
}

/// Reads what an agent answers.
pub(crate) async fn answer(
    pipe: &mut (impl AsyncRead + Unpin),
) -> Result<NodeAnswer, Box<dyn std::error::Error + Send + Sync>> {
    let length = pipe.read_u32().await?;
    if length > MOST_BYTES {
        return Err("its answer is too long".into());
    }
    let mut content = vec![0; usize::try_from(length)?];
    pipe.read_exact(&mut content).await?;
    Ok(serde_json::from_slice(&content)?)
}

/// The node and the address of one that runs.
fn host(pod: &Pod) -> Option<(String, String)> {
    let status = pod.status.as_ref()?;
    let is_there =
        status.phase.as_deref() == Some("Running") && pod.metadata.deletion_timestamp.is_none();
    let node = pod.spec.as_ref()?.node_name.clone()?;
    let address = status.pod_ip.clone()?;
    is_there.then_some((node, address))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_those_that_run_are_asked() {
        let pod = |phase: &str, deleted: Option<&str>| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"deletionTimestamp": deleted},
                "spec": {"nodeName": "east-1", "containers": []},
                "status": {"phase": phase, "podIP": "10.0.0.1"},
            }))
            .unwrap()
        };
        let expected = Some(("east-1".to_owned(), "10.0.0.1".to_owned()));
        assert_eq!(host(&pod("Running", None)), expected);
        assert_eq!(host(&pod("Pending", None)), None);
        assert_eq!(host(&pod("Running", Some("2020-01-01T00:00:00Z"))), None);
    }
}
