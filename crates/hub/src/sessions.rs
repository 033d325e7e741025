//! The tunnels of this replica by cluster, and the events of their beginning and end.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use authority::Facts;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;
use tunnel::{EndReason, Session};

/// An agent has one tunnel to a replica, and two while it moves. A new one beyond the limit ends the oldest.
const MAX_TUNNELS: usize = 4;

/// Why there is no tunnel to a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unavailable {
    #[error("there is no cluster of this name")]
    NotRegistered,
    #[error("{message}")]
    NotConnected {
        /// `None` if it has never been connected.
        since: Option<Timestamp>,
        message: String,
    },
    #[error("the certificates of this cluster are revoked; register its agent with a new token")]
    Revoked,
}

/// Why this replica ends a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    Revoked,
    NotRegistered,
    Expired,
    Replaced,
    Shutdown,
}

impl CloseReason {
    /// For metrics and logs.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Revoked => "revoked",
            Self::NotRegistered => "not_registered",
            Self::Expired => "expired",
            Self::Replaced => "replaced",
            Self::Shutdown => "shutdown",
        }
    }

    /// For the agent.
    fn message(self) -> &'static str {
        match self {
            Self::Revoked => "the certificate is revoked",
            Self::NotRegistered => "the cluster is not registered any more",
            Self::Expired => "the certificate has expired",
            Self::Replaced => "the agent has opened more tunnels than it needs",
            Self::Shutdown => "this replica of the hub shuts down",
        }
    }
}

/// The label of an end that this replica did not decide.
pub(crate) fn end_label(reason: &EndReason) -> &'static str {
    match reason {
        EndReason::Closed(_) => "closed",
        EndReason::ClosedByPeer(_) => "closed_by_agent",
        EndReason::Left => "left",
        EndReason::Lost(_) => "lost",
        EndReason::Restarted => "restarted",
        EndReason::Failed(_) => "failed",
    }
}

/// One tunnel.
pub(crate) struct Tunnel {
    pub(crate) cluster: String,
    pub(crate) session: Session,
    pub(crate) since: Timestamp,
    details: Mutex<Details>,
    close_reason: OnceLock<CloseReason>,
}

/// What changes during a tunnel.
#[derive(Clone, Debug)]
pub(crate) struct Details {
    /// The newest that the agent has.
    pub(crate) certificate: Facts,
    pub(crate) agent_version: Option<String>,
    pub(crate) kubernetes_version: Option<String>,
}

impl Tunnel {
    pub(crate) fn new(
        cluster: String,
        session: Session,
        certificate: Facts,
        since: Timestamp,
    ) -> Self {
        Self {
            cluster,
            session,
            since,
            details: Mutex::new(Details {
                certificate,
                agent_version: None,
                kubernetes_version: None,
            }),
            close_reason: OnceLock::new(),
        }
    }

    pub(crate) fn details(&self) -> Details {
        self.details.lock().clone()
    }

    /// Ends the tunnel at once.
    pub(crate) fn close(&self, reason: CloseReason) {
        // The first reason counts.
        let _ = self.close_reason.set(reason);
        self.session.close(reason.message());
    }

    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        self.close_reason.get().copied()
    }
}

/// The tunnels of a replica. Clones share them.
#[derive(Clone)]
pub(crate) struct Sessions {
    tunnels: Arc<Mutex<BTreeMap<String, Vec<Arc<Tunnel>>>>>,
    connected: watch::Sender<Arc<Connected>>,
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Sessions")
    }
}

/// The connected clusters of a replica.
pub(crate) type Connected = BTreeMap<String, ConnectedCluster>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectedCluster {
    /// Of tunnels.
    pub(crate) number: usize,
    /// Since when there has always been a tunnel.
    pub(crate) since: Timestamp,
    pub(crate) agent_version: Option<String>,
    pub(crate) kubernetes_version: Option<String>,
    pub(crate) certificate_expires_at: Timestamp,
}

impl Sessions {
    pub(crate) fn new() -> Self {
        Self {
            tunnels: Arc::default(),
            connected: watch::Sender::default(),
        }
    }

    pub(crate) fn insert(&self, tunnel: &Arc<Tunnel>) {
        let excess = {
            let mut tunnels = self.tunnels.lock();
            let of_cluster = tunnels.entry(tunnel.cluster.clone()).or_default();
            of_cluster.push(Arc::clone(tunnel));
            (of_cluster.len() > MAX_TUNNELS).then(|| Arc::clone(&of_cluster[0]))
        };
        if let Some(oldest) = excess {
            oldest.close(CloseReason::Replaced);
        }
        self.publish(&tunnel.cluster);
    }

    /// Removes a tunnel that has ended. Returns whether the cluster has no tunnel here any more.
    pub(crate) fn remove(&self, tunnel: &Arc<Tunnel>) -> bool {
        let is_last = {
            let mut tunnels = self.tunnels.lock();
            let Some(of_cluster) = tunnels.get_mut(&tunnel.cluster) else {
                return true;
            };
            of_cluster.retain(|other| !Arc::ptr_eq(other, tunnel));
            let is_last = of_cluster.is_empty();
            if is_last {
                tunnels.remove(&tunnel.cluster);
            }
            is_last
        };
        self.publish(&tunnel.cluster);
        is_last
    }

    /// Changes what is known of a tunnel's agent.
    pub(crate) fn update(&self, tunnel: &Tunnel, change: impl FnOnce(&mut Details)) {
        change(&mut tunnel.details.lock());
        self.publish(&tunnel.cluster);
    }

    /// The newest tunnel of a cluster, if possible one that is not interrupted.
    pub(crate) fn newest(&self, cluster: &str) -> Option<Session> {
        let tunnels = self.tunnels.lock();
        let of_cluster = tunnels.get(cluster)?;
        let mut newest_first = of_cluster.iter().rev();
        let tunnel = newest_first
            .find(|tunnel| tunnel.session.is_connected())
            .or_else(|| of_cluster.last());
        tunnel.map(|tunnel| tunnel.session.clone())
    }

    pub(crate) fn all(&self) -> Vec<Arc<Tunnel>> {
        let tunnels = self.tunnels.lock();
        tunnels.values().flatten().cloned().collect()
    }

    /// The connected clusters now.
    pub(crate) fn connected(&self) -> Arc<Connected> {
        self.connected.borrow().clone()
    }

    /// The connected clusters, whenever they change.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Connected>> {
        self.connected.subscribe()
    }

    fn publish(&self, cluster: &str) {
        // Both under the lock of the sender, so that two changes are not published in the wrong order.
        self.connected.send_if_modified(|connected| {
            let found = self.tunnels.lock().get(cluster).and_then(|it| describe(it));
            if connected.get(cluster) == found.as_ref() {
                return false;
            }
            let connected = Arc::make_mut(connected);
            match found {
                Some(found) => drop(connected.insert(cluster.to_owned(), found)),
                None => drop(connected.remove(cluster)),
            }
            true
        });
    }
}

fn describe(tunnels: &[Arc<Tunnel>]) -> Option<ConnectedCluster> {
    let details = tunnels.last()?.details();
    let since = tunnels.iter().map(|tunnel| tunnel.since).min()?;
    Some(ConnectedCluster {
        number: tunnels.len(),
        since,
        agent_version: details.agent_version,
        kubernetes_version: details.kubernetes_version,
        certificate_expires_at: details.certificate.not_after,
    })
}
