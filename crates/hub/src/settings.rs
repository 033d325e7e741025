//! The settings of the hub.

use std::net::SocketAddr;
use std::path::PathBuf;

/// The settings that the chart passes. They do not change at run time; what does is in [`crate::configuration`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace in which the hub runs, and in which its objects are.
    pub namespace: String,
    /// The name of this replica: the pod's.
    pub replica: String,
    /// The Service of all replicas. Its DNS names are in the hub's certificate.
    pub service: String,
    /// The file of the configuration, mounted from a ConfigMap.
    pub configuration: PathBuf,
    /// The Secret of the certificate authority.
    pub authority_secret: String,
    /// The Secret of the key that all replicas serve with.
    pub server_secret: String,
    /// The Secret of registration tokens.
    pub tokens_secret: String,
    /// The administrator's certificate for agents, if the hub's own is not served.
    pub public_certificate: Option<PublicCertificate>,
    /// The listen address for administrators, in plain HTTP.
    pub listen: SocketAddr,
    /// The listen address for agents.
    pub listen_for_agents: SocketAddr,
    /// The listen address for Kubernetes clients.
    pub listen_for_clients: SocketAddr,
    /// The listen address for the other replicas.
    pub listen_for_peers: SocketAddr,
    /// The listen address for the kubelet.
    pub listen_for_probes: SocketAddr,
    /// The listen address for Prometheus.
    pub listen_for_metrics: SocketAddr,
}

/// The files of a certificate that public authorities have signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicCertificate {
    /// The chain in PEM.
    pub certificate: PathBuf,
    /// The key in PEM.
    pub key: PathBuf,
}

impl Settings {
    /// The headless Service with the addresses of all replicas, also of those that are not ready.
    pub(crate) fn peer_host(&self) -> String {
        format!("{}-peers.{}.svc", self.service, self.namespace)
    }

    /// The DNS names with which clients in the hub's cluster verify its certificate.
    pub(crate) fn host_names(&self) -> Vec<String> {
        let (service, namespace) = (&self.service, &self.namespace);
        vec![
            service.clone(),
            format!("{service}.{namespace}"),
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
        ]
    }
}
