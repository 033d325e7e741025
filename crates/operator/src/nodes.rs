//! The agents that wait on nodes: where they are, and what they are asked.
//!
//! Both sides know one another by certificates that are in the operator's Secret: an agent on a node gets its own key and
//! the operator's certificate, and nothing else of it.

mod lists;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use api::node::{LABELS, MOST_ANSWER_BYTES, NodeAnswer, NodeRequest, PORT, Served, message};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use link::tls::{Fingerprint, FirstSeen, Identity, TlsDialer, Trust};
use link::{Dial as _, Pipe, TcpDialer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use self::lists::{Listed, NodeLists};
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
    lists: NodeLists,
}

/// Why nothing was said or heard.
pub(crate) type Trouble = Box<dyn std::error::Error + Send + Sync>;

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
            lists: NodeLists::default(),
        }
    }

    /// The addresses of those that run, by their nodes.
    pub(crate) async fn hosts(&self) -> Result<BTreeMap<String, String>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = pods
            .list(&ListParams::default().labels(LABELS))
            .await
            .doing("list the agents on nodes")?;
        let hosts: BTreeMap<String, String> = found.items.iter().filter_map(host).collect();
        self.lists.keep_only(hosts.values());
        Ok(hosts)
    }

    /// What those that answer serve, of the names that begin like this.
    pub(crate) async fn served_everywhere(&self, prefix: &str) -> Result<Vec<(String, Served)>> {
        let hosts = self.hosts().await?;
        let answers = futures_util::stream::iter(hosts.into_values())
            .map(async |host| {
                // One that does not answer ends what it serves when the client stays away.
                let served = self.served(&host, prefix).await.unwrap_or_default();
                (host, served)
            })
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<_>>()
            .await;
        let served = answers.into_iter().flat_map(|(host, served)| {
            let served = served.into_iter();
            served.map(move |served| (host.clone(), served))
        });
        Ok(served.collect())
    }

    /// What one of them serves, of the names that begin like this. The error is for people.
    pub(crate) async fn served(&self, host: &str, prefix: &str) -> Result<Vec<Served>, String> {
        let all = self.lists.get(host, self.list(host)).await?;
        let wanted = all.iter().filter(|served| served.name.starts_with(prefix));
        Ok(wanted.cloned().collect())
    }

    /// Pods have changed: what nodes said before may not hold any more.
    pub(crate) fn forget(&self) {
        self.lists.note_change_anywhere();
    }

    async fn list(&self, host: &str) -> Listed {
        let everything = NodeRequest::List {
            prefix: String::new(),
        };
        let answer = self.hear(host, &everything).await?;
        Ok(Arc::new(answer.served))
    }

    /// Has one of them do something. The error is for people.
    pub(crate) async fn ask(
        &self,
        host: &str,
        request: &NodeRequest,
    ) -> Result<NodeAnswer, String> {
        let answer = self.hear(host, request).await;
        // Also where nobody knows whether it was done.
        self.lists.note_change(host);
        answer
    }

    async fn hear(&self, host: &str, request: &NodeRequest) -> Result<NodeAnswer, String> {
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

    async fn exchange(&self, host: &str, request: &NodeRequest) -> Result<NodeAnswer, Trouble> {
        let mut pipe = self.dial(host.parse()?).await?;
        pipe.write_all(&message(request)?).await?;
        pipe.flush().await?;
        answer(&mut pipe).await
    }

    pub(crate) async fn dial(&self, host: IpAddr) -> Result<impl Pipe + use<>, Trouble> {
        let address = SocketAddr::new(host, PORT);
        let name = ServerName::try_from("node-agent")?;
        let trust = Trust::Pinned(self.known);
        let dialer =
            TlsDialer::with_identity(TcpDialer::new(address), name, trust, &self.identity)?;
        Ok(dialer.dial().await?)
    }
}

/// Calls an agent of one session, as the one whose orders it takes.
pub(crate) async fn dial_agent(
    identity: &Identity,
    address: SocketAddr,
) -> Result<impl Pipe + use<>, Trouble> {
    let name = ServerName::try_from("agent")?;
    let trust = Trust::FirstSeen(FirstSeen::default());
    let dialer = TlsDialer::with_identity(TcpDialer::new(address), name, trust, identity)?;
    Ok(dialer.dial().await?)
}

/// Reads what an agent answers.
pub(crate) async fn answer(pipe: &mut (impl AsyncRead + Unpin)) -> Result<NodeAnswer, Trouble> {
    let length = pipe.read_u32().await?;
    if length > MOST_ANSWER_BYTES {
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
