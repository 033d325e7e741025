//! The other replicas of the hub. Replicas report to each other which clusters are connected to them, so that a request can be
//! served by any replica: one without a tunnel to the cluster forwards the request to one that has it.
//!
//! Each replica connects to every other one, over mutual TLS and HTTP/2. One stream of that connection has the reports of the
//! peer, and each forwarded request is another stream. A forwarded request is only served with a tunnel of the replica that
//! receives it, so there is never more than one hop. It is authorized, and written to the audit log, by the first replica.
//!
//! | module | what it does |
//! |---|---|
//! | `connection` | the connection to one peer: its reports, and requests to it |
//! | `discovery` | the addresses of the other replicas |
//! | `message` | what replicas report |
//! | `server` | the listener for peers |
//! | `table` | which replica has which clusters, without I/O |
//! | `trust` | TLS between replicas |

mod connection;
mod discovery;
mod message;
mod server;
mod table;
mod trust;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use self::connection::PeerConnection;
pub(crate) use self::discovery::Discovery;
use self::table::Table;
use self::trust::PeerTls;
use crate::certificates::Certificates;
use crate::error::Result;
use crate::proxy::{SendError, Upstream, UpstreamSource};
use crate::sessions::{Connected, ConnectedCluster, Unavailable};

/// Revocations that wait to be sent. A peer that is slower sees them in the objects.
const MAX_PENDING_REVOCATIONS: usize = 64;

/// The peers of this replica. Clones share them.
#[derive(Clone)]
pub(crate) struct Peers(Arc<Shared>);

struct Shared {
    /// The name of this replica.
    replica: String,
    /// The clusters with a tunnel to this replica.
    connected: watch::Receiver<Arc<Connected>>,
    /// Cancelled when this replica shuts down.
    draining: CancellationToken,
    tls: watch::Sender<Arc<PeerTls>>,
    table: Mutex<Table>,
    connections: Mutex<HashMap<String, PeerConnection>>,
    /// From this replica to the streams of its peers: a cluster is revoked.
    revocations: broadcast::Sender<String>,
    /// From the streams of peers to this replica.
    revoked: watch::Sender<Vec<String>>,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Peers")
            .field("replica", &self.0.replica)
            .finish_non_exhaustive()
    }
}

impl Peers {
    pub(crate) fn new(
        replica: String,
        connected: watch::Receiver<Arc<Connected>>,
        certificates: &Certificates,
        draining: CancellationToken,
    ) -> Result<Self> {
        let tls = PeerTls::of(certificates)?;
        Ok(Self::with_tls(replica, connected, tls, draining))
    }

    fn with_tls(
        replica: String,
        connected: watch::Receiver<Arc<Connected>>,
        tls: PeerTls,
        draining: CancellationToken,
    ) -> Self {
        Self(Arc::new(Shared {
            replica,
            connected,
            draining,
            tls: watch::Sender::new(Arc::new(tls)),
            table: Mutex::default(),
            connections: Mutex::default(),
            revocations: broadcast::Sender::new(MAX_PENDING_REVOCATIONS),
            revoked: watch::Sender::default(),
        }))
    }

    /// Renews the certificate for peers. Never returns.
    pub(crate) async fn renew(self, certificates: watch::Receiver<Certificates>) {
        trust::run(certificates, self.0.tls.clone()).await;
    }

    /// Finds peers and stays connected to them. Never returns.
    pub(crate) async fn connect(self, discovery: Discovery) {
        discovery::run(self, discovery).await;
    }

    /// Serves the peers until `stop`. Requests that they forward are sent to `local`, the tunnels of this replica.
    pub(crate) async fn serve(
        self,
        listener: TcpListener,
        local: Arc<dyn UpstreamSource>,
        stop: CancellationToken,
    ) {
        server::serve(self, listener, local, stop).await;
    }

    /// Notifies all peers at once that a cluster is revoked or removed.
    pub(crate) fn notify_revoked(&self, cluster: &str) {
        // Without peers there is no receiver.
        let _ = self.0.revocations.send(cluster.to_owned());
    }

    /// Clusters that a peer has revoked or removed, whose tunnels have to end here. Never returns.
    pub(crate) async fn on_revoked(self, end_tunnels: impl Fn(&str) + Send) {
        let mut revoked = self.0.revoked.subscribe();
        while revoked.changed().await.is_ok() {
            let clusters = self.0.revoked.send_replace(Vec::new());
            revoked.mark_unchanged();
            for cluster in clusters {
                end_tunnels(&cluster);
            }
        }
    }

    /// The tunnels of a cluster to other replicas.
    pub(crate) fn tunnels(&self, cluster: &str) -> Vec<(String, ConnectedCluster)> {
        self.0.table.lock().tunnels(cluster)
    }

    /// The number of peers that this replica is connected to.
    #[cfg(test)]
    pub(crate) fn number(&self) -> usize {
        self.0.connections.lock().len()
    }

    /// A replica that has a tunnel to the cluster.
    fn upstream(&self, cluster: &str) -> Option<Box<dyn Upstream>> {
        let table = self.0.table.lock();
        let connections = self.0.connections.lock();
        let mut replicas = table.replicas(cluster).into_iter();
        let connection = replicas.find_map(|replica| connections.get(replica))?;
        Some(Box::new(connection.to_cluster(cluster)))
    }

    /// Adds a connection, unless there is one already, which happens if a replica has two addresses.
    fn insert(&self, connection: &PeerConnection) -> bool {
        let mut connections = self.0.connections.lock();
        let replica = connection.replica().to_owned();
        if connections.contains_key(&replica) {
            return false;
        }
        connections.insert(replica, connection.clone());
        true
    }

    fn remove(&self, replica: &str) {
        self.0.connections.lock().remove(replica);
        self.0.table.lock().remove(replica);
    }

    fn apply(&self, replica: &str, message: message::PeerMessage) {
        if let Some(cluster) = self.0.table.lock().apply(replica, message) {
            self.0.revoked.send_modify(|revoked| revoked.push(cluster));
        }
    }
}

/// The tunnels of this replica, and where it has none, those of its peers.
pub(crate) struct AllUpstreams {
    local: Arc<dyn UpstreamSource>,
    peers: Peers,
}

impl AllUpstreams {
    pub(crate) fn new(local: Arc<dyn UpstreamSource>, peers: Peers) -> Self {
        Self { local, peers }
    }
}

impl UpstreamSource for AllUpstreams {
    fn upstream(&self, cluster: &str) -> Result<Box<dyn Upstream>, SendError> {
        match self.local.upstream(cluster) {
            Err(SendError::Unavailable(Unavailable::NotConnected { since, message })) => {
                let unavailable = Unavailable::NotConnected { since, message };
                let remote = self.peers.upstream(cluster);
                remote.ok_or(SendError::Unavailable(unavailable))
            }
            found => found,
        }
    }
}

/// The addresses of peers that are not this replica.
type Addresses = std::collections::BTreeSet<SocketAddr>;

#[cfg(test)]
mod tests;
