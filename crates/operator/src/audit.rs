//! The audit log: which user did what. Its entries contain no secrets.

use api::session::SessionPort;
use api::{MirrordClusterSession, MirrordMultiClusterSession};
use kube::ResourceExt as _;

/// Logs an event of a session with the fields that all of them have, or with those of a port.
macro_rules! audit {
    ($session:ident, port: $port:ident, $message:literal) => {
        audit!(
            $session,
            port = $port.port,
            protocol = $port.protocol,
            mode = $port.mode,
            filter = $port.filter.as_deref().unwrap_or_default(),
            $message
        )
    };
    ($session:ident, $($field:ident = $value:expr,)* $message:literal) => {{
        let spec = &$session.spec;
        tracing::info!(
            target: "audit",
            user = spec.owner.k8s_username, namespace = spec.namespace, workload = spec.target,
            session = $session.name_any(),
            $($field = $value,)*
            $message
        );
    }};
}

/// A session claims traffic of a port of its target.
pub(crate) fn port_claimed(session: &MirrordClusterSession, port: &SessionPort) {
    audit!(session, port: port, "port claimed");
}

/// A session no longer claims traffic of a port.
pub(crate) fn port_released(session: &MirrordClusterSession, port: &SessionPort) {
    audit!(session, port: port, "port released");
}

/// A session has ended and its agents are removed.
pub(crate) fn session_ended(session: &MirrordClusterSession) {
    audit!(session, reason = reason(session), "session ended");
}

/// A session over several clusters has ended. The operators of its clusters log the end of its children.
pub(crate) fn multi_cluster_session_ended(parent: &MirrordMultiClusterSession, reason: &str) {
    audit!(parent, reason = reason, "session ended");
}

/// Why the session was closed. A session that its client or a user ended has no recorded reason.
fn reason(session: &MirrordClusterSession) -> &str {
    let closed = session
        .status
        .as_ref()
        .and_then(|status| status.closed.as_ref());
    closed.map_or("Ended", |closed| closed.reason.as_str())
}
