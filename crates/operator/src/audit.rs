//! Lines that say who did what. They are this program's own, and have no secret.

use api::MirrordClusterSession;
use api::session::SessionPort;
use kube::ResourceExt as _;

/// A session has traffic of its target that it had not.
pub(crate) fn port_begins(session: &MirrordClusterSession, port: &SessionPort) {
    tell(session, port, "a session has a port");
}

/// It has it no more.
pub(crate) fn port_ends(session: &MirrordClusterSession, port: &SessionPort) {
    tell(session, port, "a session has a port no more");
}

/// It is over, and nothing of it is left.
pub(crate) fn session_ends(session: &MirrordClusterSession) {
    let spec = &session.spec;
    tracing::info!(
        target: "audit",
        user = spec.owner.k8s_username, namespace = spec.namespace, workload = spec.target,
        session = session.name_any(), reason = reason(session),
        "a session is over"
    );
}

/// Why it was closed; who goes with a word, or is ended by somebody, has no other reason.
fn reason(session: &MirrordClusterSession) -> &str {
    let closed = session
        .status
        .as_ref()
        .and_then(|status| status.closed.as_ref());
    closed.map_or("Ended", |closed| closed.reason.as_str())
}

fn tell(session: &MirrordClusterSession, port: &SessionPort, what: &'static str) {
    let spec = &session.spec;
    tracing::info!(
        target: "audit",
        user = spec.owner.k8s_username, namespace = spec.namespace, workload = spec.target,
        session = session.name_any(),
        port = port.port, protocol = port.protocol, mode = port.mode,
        filter = port.filter.as_deref().unwrap_or_default(),
        "{what}"
    );
}
