//! The life of a tunnel: from its connection, over its control stream, to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use error_chain::error_chain;
use jiff::Timestamp;
use tokio::time::sleep;
use tunnel::Session;

use crate::Hub;
use crate::control;
use crate::identity::AgentIdentity;
use crate::metrics::{ClusterLabels, DisconnectLabels};
use crate::registry::{Clusters, is_revoked};
use crate::sessions::{CloseReason, Tunnel, end_label};

/// The delay before another control stream, after one has failed.
const CONTROL_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Sleeping until a time in months would miss a changed clock.
const MAX_SLEEP: Duration = Duration::from_secs(60);

/// Runs a tunnel until its end.
pub(crate) async fn run(
    hub: Arc<Hub>,
    identity: AgentIdentity,
    session: Session,
    peer: SocketAddr,
) {
    let AgentIdentity {
        cluster,
        certificate,
    } = identity;
    let tunnel = Tunnel::new(cluster, session, certificate, Timestamp::now());
    let tunnel = Arc::new(tunnel);
    let cluster = &tunnel.cluster;
    hub.sessions.insert(&tunnel);
    // It may have been revoked after the upgrade was admitted, and before the tunnel was inserted.
    enforce_for(&tunnel, &hub.registry.clusters());
    let labels = ClusterLabels {
        cluster: cluster.clone(),
    };
    hub.metrics.connects.get_or_create(&labels).inc();
    tracing::info!(cluster, %peer, version = tunnel.session.version(), "agent connected");
    let ended = tokio::select! {
        reason = tunnel.session.ended() => reason,
        never = run_control(&hub, &tunnel) => match never {},
        never = end_at_expiry(&tunnel) => match never {},
    };
    hub.sessions.remove(&tunnel);
    let reason = tunnel
        .close_reason()
        .map_or_else(|| end_label(&ended), CloseReason::label);
    let labels = DisconnectLabels {
        cluster: cluster.clone(),
        reason,
    };
    hub.metrics.disconnects.get_or_create(&labels).inc();
    tracing::info!(cluster, %peer, reason, detail = %ended, "agent disconnected");
}

enum Never {}

async fn run_control(hub: &Arc<Hub>, tunnel: &Arc<Tunnel>) -> Never {
    loop {
        if let Err(error) = control::run(hub, tunnel).await {
            let (cluster, error) = (&tunnel.cluster, error_chain(&error));
            tracing::debug!(cluster, error, "control stream ended");
        }
        sleep(CONTROL_RETRY_DELAY).await;
    }
}

/// Ends a tunnel whose certificate has expired. The agent renews it long before.
async fn end_at_expiry(tunnel: &Tunnel) -> Never {
    loop {
        let expires_at = tunnel.details().certificate.not_after;
        let left = Timestamp::now().duration_until(expires_at);
        match Duration::try_from(left) {
            Ok(left) if !left.is_zero() => sleep(left.min(MAX_SLEEP)).await,
            _ => {
                tunnel.close(CloseReason::Expired);
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Ends the tunnels of clusters that are revoked or not registered any more, on whichever replica that was decided. Never
/// returns.
pub(crate) async fn enforce(hub: Arc<Hub>) {
    let mut clusters = hub.registry.subscribe();
    while clusters.changed().await.is_ok() {
        let Some(clusters) = clusters.borrow_and_update().clone() else {
            continue;
        };
        for tunnel in hub.sessions.all() {
            enforce_for(&tunnel, &clusters);
        }
    }
}

/// Ends the tunnels of clusters that another replica has revoked, before the change of the object is seen here. Never returns.
pub(crate) async fn end_revoked(hub: Arc<Hub>) {
    let peers = hub.peers.clone();
    let end = move |cluster: &str| {
        for tunnel in hub.sessions.all() {
            if tunnel.cluster == cluster {
                tunnel.close(CloseReason::Revoked);
            }
        }
    };
    peers.on_revoked(end).await;
}

fn enforce_for(tunnel: &Tunnel, clusters: &Clusters) {
    let reason = match clusters.get(&tunnel.cluster) {
        None => CloseReason::NotRegistered,
        Some(object) if is_revoked(object, &tunnel.details().certificate) => CloseReason::Revoked,
        Some(_) => return,
    };
    if tunnel.close_reason().is_none() {
        let (cluster, reason) = (&tunnel.cluster, reason.label());
        tracing::info!(cluster, reason, "ending tunnel");
    }
    tunnel.close(reason);
}
