//! The audit log: which user did what. Its entries contain no secrets.

use api::session::SessionPort;
use api::{MirrordClusterSession, MirrordMultiClusterSession};
use kube::ResourceExt as _;

/// A session claims traffic of a port of its target.
pub(crate) fn port_claimed(session: &MirrordClusterSession, port: &SessionPort) {
    let spec = &session.spec;
    tracing::info!(
        target: "audit",
        user = spec.owner.k8s_username, namespace = spec.namespace, workload = spec.target,
        session = session.name_any(),
        port = port.port, protocol = port.protocol, mode = port.mode,
        filter = port.filter.as_deref().unwrap_or_default(),
        "port claimed"
    );
}

/// A session no longer claims traffic of a port.
pub(crate) fn port_released(session: &MirrordClusterSession, port: &SessionPort) {
    let spec = &session.spec;
    tracing::info!(
        target: "audit",
        user = spec.owner.k8s_username, namespace = spec.namespace, workload = spec.target,
        session = session.name_any(),
        port = port.port, protocol = port.protocol, mode = port.mode,
        filter = port.filter.as_deref().unwrap_or_default(),
        "port released"
    );
}

/// A session has ended and its agents are removed.
pub(crate) fn session_ended(session: &MirrordClusterSession) {
    let spec = &session.spec;
    tracing::info!(
        target: "audit",
        user = spec.owner.k8s_username, namespace = spec.namespace, workload = spec.target,
        session = session.name_any(), reason = reason(session),
        "session ended"
    );
}

/// A session over several clusters has ended. The operators of its clusters log the end of its children.
pub(crate) fn multi_cluster_session_ended(parent: &MirrordMultiClusterSession, reason: &str) {
    let spec = &parent.spec;
    tracing::info!(
        target: "audit",
        user = spec.owner.k8s_username, namespace = spec.namespace, workload = spec.target,
        session = parent.name_any(), reason,
        "session ended"
    );
}

/// Why the session was closed. A session that its client or a user ended has no recorded reason.
fn reason(session: &MirrordClusterSession) -> &str {
    let closed = session
        .status
        .as_ref()
        .and_then(|status| status.closed.as_ref());
    closed.map_or("Ended", |closed| closed.reason.as_str())
}
