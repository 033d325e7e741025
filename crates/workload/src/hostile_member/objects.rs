//! The objects of a hostile member. The large ones are slightly smaller than what a Primary reads.

use std::collections::BTreeMap;

use api::operator::MirrordOperatorSpec;
use api::session::{SessionPhase, SessionPod};
use api::target::{TargetSpec, TargetStatus};
use api::{
    GROUP_VERSION, MirrordClusterSession, MirrordClusterSessionSpec, MirrordClusterSessionStatus,
    MirrordOperator, Target, TargetKind, TargetPath,
};
use http::StatusCode;
use kube::Resource as _;
use serde::Serialize;
use serde_json::{Value, json};

/// The size of a page or of a status, which is below the limit of a response.
const LARGE: usize = cluster::MAX_RESPONSE_BYTES / 8 * 7;
/// The items of a large page.
const ITEMS: usize = 50;
/// The pods of a huge status.
const PODS: usize = 1000;

pub(super) fn operator() -> Value {
    let spec = MirrordOperatorSpec {
        operator_version: env!("CARGO_PKG_VERSION").to_owned(),
        ..MirrordOperatorSpec::default()
    };
    value(&MirrordOperator::new(spec, Default::default()))
}

pub(super) fn failure(status: StatusCode) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status.as_u16(),
        "reason": "", "message": status.canonical_reason(),
    })
}

/// A list at this version.
pub(super) fn children(items: &[Value], version: usize, next: Option<usize>) -> Value {
    let kind = MirrordClusterSession::kind(&());
    list(
        &MirrordClusterSession::api_version(&()),
        &kind,
        items,
        version,
        next,
    )
}

/// A large page of children that have other names than those before.
pub(super) fn child_page(after: usize) -> Value {
    let message = Some("x".repeat(LARGE / ITEMS));
    let items = (after..after + ITEMS).map(|number| {
        let name = format!("mc-{number:016x}-hostile");
        let mut child = MirrordClusterSession::new(&name, MirrordClusterSessionSpec::default());
        child.status = Some(MirrordClusterSessionStatus {
            message: message.clone(),
            ..MirrordClusterSessionStatus::default()
        });
        value(&child)
    });
    children(&items.collect::<Vec<_>>(), 1, Some(after + ITEMS))
}

pub(super) fn no_targets() -> Value {
    list(GROUP_VERSION, "Target", &[], 1, None)
}

pub(super) fn target_page(after: usize) -> Value {
    let labels = BTreeMap::from([("team".to_owned(), "x".repeat(LARGE / ITEMS))]);
    let items = (after..after + ITEMS).map(|number| {
        let path = TargetPath {
            kind: TargetKind::Deployment,
            name: format!("web-{number}"),
            container: None,
        };
        let spec = TargetSpec {
            target: path.to_string(),
            containers: vec!["app".to_owned()],
            ports: Vec::new(),
        };
        let mut target = Target::new("shop", &path, spec, TargetStatus::default());
        target.metadata.labels = Some(labels.clone());
        value(&target)
    });
    list(
        GROUP_VERSION,
        "Target",
        &items.collect::<Vec<_>>(),
        1,
        Some(after + ITEMS),
    )
}

/// The status of a session with many pods, whose names begin with `prefix`.
pub(super) fn huge_status(prefix: &str) -> Value {
    let error = Some("x".repeat(LARGE / PODS / 2));
    let pods = (0..PODS).map(|number| SessionPod {
        name: format!("{prefix}-{number}"),
        uid: number.to_string(),
        container: "app".to_owned(),
        channel: u32::try_from(number).unwrap_or_default(),
        ready: true,
        error: error.clone(),
        ..SessionPod::default()
    });
    value(&MirrordClusterSessionStatus {
        phase: Some(SessionPhase::Ready),
        message: Some("x".repeat(LARGE / 4)),
        pods: pods.collect(),
        ..MirrordClusterSessionStatus::default()
    })
}

fn list(
    api_version: &str,
    kind: &str,
    items: &[Value],
    version: usize,
    next: Option<usize>,
) -> Value {
    let next = next.map(|next| next.to_string()).unwrap_or_default();
    json!({
        "apiVersion": api_version,
        "kind": format!("{kind}List"),
        "metadata": {"resourceVersion": version.to_string(), "continue": next},
        "items": items,
    })
}

fn value(object: &impl Serialize) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}
