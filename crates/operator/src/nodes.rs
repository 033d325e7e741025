//! Requests to the node agents, which run on every node and serve targets without starting a process.
//!
//! Both sides authenticate with certificates of the operator's Secret: a node agent gets its own key and the operator's
//! certificate, and nothing else of the Secret.

mod list_cache;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use api::node::{
    MAX_RESPONSE_BYTES, NODE_AGENT_LABELS, NODE_AGENT_PORT, NodeRequest, NodeResponse,
    ServedTarget, encode_message, operator_port,
};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use link::tls::{Fingerprint, FirstSeen, Identity, TlsDialer, Trust};
use link::{Dial as _, Pipe, TcpDialer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use self::list_cache::{ListResult, NodeListCache};
use crate::error::{KubeResultExt as _, Result};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The limit of concurrent requests to different nodes.
const MAX_CONCURRENT_REQUESTS: usize = 16;

pub(crate) struct Nodes {
    client: Client,
    namespace: String,
    identity: Identity,
    /// The certificate that all node agents share.
    certificate: Fingerprint,
    lists: NodeListCache,
}

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Nodes {
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        identity: Identity,
        certificate: Fingerprint,
    ) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            identity,
            certificate,
            lists: NodeListCache::default(),
        }
    }

    /// The addresses of the running node agents, by node name.
    pub(crate) async fn hosts(&self) -> Result<BTreeMap<String, String>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = pods
            .list(&ListParams::default().labels(NODE_AGENT_LABELS))
            .await
            .action("list the node agents")?;
        let hosts: BTreeMap<String, String> = found.items.iter().filter_map(host).collect();
        self.lists.retain(hosts.values());
        Ok(hosts)
    }

    /// The targets with this name prefix on all nodes that respond.
    pub(crate) async fn served_everywhere(
        &self,
        prefix: &str,
    ) -> Result<Vec<(String, ServedTarget)>> {
        let hosts = self.hosts().await?;
        let lists = futures_util::stream::iter(hosts.into_values())
            .map(async |host| {
                // A node agent that is unreachable ends its targets when their clients do not reconnect.
                let served = self.served(&host, prefix).await.unwrap_or_default();
                (host, served)
            })
            .buffer_unordered(MAX_CONCURRENT_REQUESTS)
            .collect::<Vec<_>>()
            .await;
        let served = lists.into_iter().flat_map(|(host, served)| {
            let served = served.into_iter();
            served.map(move |served| (host.clone(), served))
        });
        Ok(served.collect())
    }

    /// The targets with this name prefix on one node. The error is readable text.
    pub(crate) async fn served(
        &self,
        host: &str,
        prefix: &str,
    ) -> Result<Vec<ServedTarget>, String> {
        let all = self.lists.get(host, self.list(host)).await?;
        let matching = all.iter().filter(|served| served.name.starts_with(prefix));
        Ok(matching.cloned().collect())
    }

    /// Invalidates the cached lists of all nodes, because pods have changed.
    pub(crate) fn invalidate(&self) {
        self.lists.invalidate_all();
    }

    async fn list(&self, host: &str) -> ListResult {
        let request = NodeRequest::List {
            prefix: String::new(),
        };
        let response = self.send(host, &request).await?;
        Ok(Arc::new(response.served))
    }

    /// Sends a request that changes something. The error is readable text.
    pub(crate) async fn request(
        &self,
        host: &str,
        request: &NodeRequest,
    ) -> Result<NodeResponse, String> {
        let response = self.send(host, request).await;
        // Also after an error, because the request may have been executed.
        self.lists.invalidate(host);
        response
    }

    async fn send(&self, host: &str, request: &NodeRequest) -> Result<NodeResponse, String> {
        let response = timeout(REQUEST_TIMEOUT, self.exchange(host, request)).await;
        let response = match response {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                return Err(format!("the node agent is unreachable: {error}"));
            }
            Err(_) => return Err("the request to the node agent timed out".to_owned()),
        };
        match response.error {
            Some(error) => Err(error),
            None => Ok(response),
        }
    }

    async fn exchange(&self, host: &str, request: &NodeRequest) -> Result<NodeResponse, BoxError> {
        let mut pipe = self.dial(host.parse()?).await?;
        pipe.write_all(&encode_message(request)?).await?;
        pipe.flush().await?;
        read_response(&mut pipe).await
    }

    pub(crate) async fn dial(&self, host: IpAddr) -> Result<impl Pipe + use<>, BoxError> {
        let address = SocketAddr::new(host, NODE_AGENT_PORT);
        let name = ServerName::try_from("node-agent")?;
        let trust = Trust::Pinned(self.certificate);
        let dialer =
            TlsDialer::with_identity(TcpDialer::new(address), name, trust, &self.identity)?;
        Ok(dialer.dial().await?)
    }
}

/// Connects to the agent of one session, with the identity that the agent accepts requests from. `address` is the one for
/// its client.
pub(crate) async fn dial_agent(
    identity: &Identity,
    mut address: SocketAddr,
) -> Result<impl Pipe + use<>, BoxError> {
    address.set_port(operator_port(address.port()));
    let name = ServerName::try_from("agent")?;
    let trust = Trust::FirstSeen(FirstSeen::default());
    let dialer = TlsDialer::with_identity(TcpDialer::new(address), name, trust, identity)?;
    Ok(dialer.dial().await?)
}

pub(crate) async fn read_response(
    pipe: &mut (impl AsyncRead + Unpin),
) -> Result<NodeResponse, BoxError> {
    let length = pipe.read_u32().await?;
    if length > MAX_RESPONSE_BYTES {
        return Err("the response is too long".into());
    }
    let mut content = vec![0; usize::try_from(length)?];
    pipe.read_exact(&mut content).await?;
    Ok(serde_json::from_slice(&content)?)
}

/// The node and the address of a running node agent.
fn host(pod: &Pod) -> Option<(String, String)> {
    let status = pod.status.as_ref()?;
    let is_running =
        status.phase.as_deref() == Some("Running") && pod.metadata.deletion_timestamp.is_none();
    let node = pod.spec.as_ref()?.node_name.clone()?;
    let address = status.pod_ip.clone()?;
    is_running.then_some((node, address))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_running_node_agents_are_used() {
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
