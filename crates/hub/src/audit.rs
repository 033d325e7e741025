//! The audit log: one row per request of a user to a cluster, at its end.
//!
//! Rows are log events with the target `audit`, which a log collector keeps, and the newest of them can be read from the hub.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use api::hub::{AuditActor, AuditList, AuditOutcome, AuditRow};
use http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;
use rand::Rng as _;

use crate::kubernetes_request::KubernetesRequest;
use crate::user::User;

/// The number of rows that can be read, unless the settings say otherwise.
pub(crate) const DEFAULT_CAPACITY: usize = 10_000;
/// The limit of rows in one response.
const MAX_ROWS: usize = 1000;
/// The limit of a text from outside in a row, in characters.
const MAX_TEXT: usize = 512;
/// The limit of groups in a row.
const MAX_GROUPS: usize = 64;

/// The newest rows. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Audit {
    rows: Arc<Mutex<VecDeque<Arc<AuditRow>>>>,
    capacity: usize,
}

/// Which rows to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AuditQuery {
    pub(crate) cluster: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) limit: Option<usize>,
}

/// A request whose row is written when this is finished or dropped.
#[derive(Debug)]
pub(crate) struct AuditEntry {
    audit: Audit,
    row: AuditRow,
    started: Instant,
}

impl Audit {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            rows: Arc::default(),
            capacity,
        }
    }

    /// Begins the row of a request. Without a status, it was cancelled by the client.
    pub(crate) fn begin(
        &self,
        user: &User,
        cluster: &str,
        request: &KubernetesRequest,
        path: &str,
    ) -> AuditEntry {
        let row = AuditRow {
            id: format!("{:032x}", rand::rng().random::<u128>()),
            time: Time(Timestamp::now()),
            actor: AuditActor {
                sub: limited(&user.name),
                groups: user
                    .groups
                    .iter()
                    .take(MAX_GROUPS)
                    .map(|group| limited(group))
                    .collect(),
            },
            verb: limited(&request.verb),
            outcome: AuditOutcome::Failure,
            cluster: limited(cluster),
            cluster_backend: "agent".to_owned(),
            namespace: request.namespace.as_deref().map(limited),
            api_group: request.is_resource.then(|| limited(&request.api_group)),
            resource: request.resource.as_deref().map(limited),
            subresource: request.subresource.as_deref().map(limited),
            name: request.name.as_deref().map(limited),
            path: limited(path),
            // What proxies use for a client that has left.
            status: 499,
            reason: Some("the client closed the connection".to_owned()),
            duration_ms: 0,
        };
        AuditEntry {
            audit: self.clone(),
            row,
            started: Instant::now(),
        }
    }

    /// The newest rows first.
    pub(crate) fn list(&self, query: &AuditQuery) -> AuditList {
        let is_match = |wanted: &Option<String>, found: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == found)
        };
        let rows = self.rows.lock();
        let rows = rows
            .iter()
            .rev()
            .filter(|row| is_match(&query.cluster, &row.cluster))
            .filter(|row| is_match(&query.user, &row.actor.sub))
            .take(query.limit.unwrap_or(100).min(MAX_ROWS))
            .map(|row| AuditRow::clone(row))
            .collect();
        AuditList { rows }
    }

    fn write(&self, row: AuditRow) {
        log(&row);
        let mut rows = self.rows.lock();
        while rows.len() >= self.capacity.max(1) {
            rows.pop_front();
        }
        rows.push_back(Arc::new(row));
    }
}

impl AuditEntry {
    /// The response has this status. The row is still written at its end.
    pub(crate) fn set_status(&mut self, status: StatusCode) {
        self.row.status = status.as_u16();
        self.row.outcome = outcome(status);
        self.row.reason = None;
    }

    pub(crate) fn set_reason(&mut self, reason: &str) {
        self.row.reason = Some(limited(reason));
    }

    /// The response has begun, and has failed before its end.
    pub(crate) fn set_failed(&mut self, reason: &str) {
        self.row.outcome = AuditOutcome::Failure;
        self.set_reason(reason);
    }

    #[cfg(test)]
    pub(crate) fn row(&self) -> &AuditRow {
        &self.row
    }
}

impl Drop for AuditEntry {
    fn drop(&mut self) {
        let duration = self.started.elapsed().as_millis();
        self.row.duration_ms = u64::try_from(duration).unwrap_or(u64::MAX);
        self.audit.write(self.row.clone());
    }
}

fn outcome(status: StatusCode) -> AuditOutcome {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => AuditOutcome::Denied,
        _ if status.is_client_error() || status.is_server_error() => AuditOutcome::Failure,
        _ => AuditOutcome::Success,
    }
}

fn limited(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

/// Logs a row. The fields have the names of the interface.
fn log(row: &AuditRow) {
    let outcome = match row.outcome {
        AuditOutcome::Success => "success",
        AuditOutcome::Denied => "denied",
        AuditOutcome::Failure => "failure",
    };
    let groups = row.actor.groups.join(",");
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    tracing::info!(
        target: "audit",
        id = row.id,
        actor.sub = row.actor.sub,
        actor.groups = groups,
        verb = row.verb,
        outcome,
        cluster = row.cluster,
        clusterBackend = row.cluster_backend,
        namespace = text(&row.namespace),
        apiGroup = text(&row.api_group),
        resource = text(&row.resource),
        subresource = text(&row.subresource),
        name = text(&row.name),
        path = row.path,
        status = row.status,
        reason = text(&row.reason),
        durationMs = row.duration_ms,
        "cluster request"
    );
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn begin(audit: &Audit, user: &str, cluster: &str) -> AuditEntry {
        let user = User {
            name: user.to_owned(),
            groups: vec!["developers".to_owned()],
            ..User::default()
        };
        let path = "/api/v1/namespaces/shop/pods/web/log";
        let request = KubernetesRequest::parse(&Method::GET, path, Some("follow=1"));
        audit.begin(&user, cluster, &request, path)
    }

    #[test]
    fn a_row_has_what_the_request_was_about() {
        let audit = Audit::new(10);
        let mut entry = begin(&audit, "anna", "prod-eu");
        entry.set_status(StatusCode::OK);
        assert!(audit.list(&AuditQuery::default()).rows.is_empty());
        drop(entry);
        let mut row = serde_json::to_value(&audit.list(&AuditQuery::default()).rows[0]).unwrap();
        for changing in ["id", "time", "durationMs"] {
            assert!(row.as_object_mut().unwrap().remove(changing).is_some());
        }
        let expected = serde_json::json!({
            "actor": {"sub": "anna", "groups": ["developers"]},
            "verb": "get",
            "outcome": "success",
            "cluster": "prod-eu",
            "clusterBackend": "agent",
            "namespace": "shop",
            "apiGroup": "",
            "resource": "pods",
            "subresource": "log",
            "name": "web",
            "path": "/api/v1/namespaces/shop/pods/web/log",
            "status": 200,
        });
        assert_eq!(row, expected);
    }

    #[test]
    fn the_outcome_follows_from_the_status() {
        let cases = [
            (101, AuditOutcome::Success),
            (201, AuditOutcome::Success),
            (304, AuditOutcome::Success),
            (401, AuditOutcome::Denied),
            (403, AuditOutcome::Denied),
            (404, AuditOutcome::Failure),
            (429, AuditOutcome::Failure),
            (503, AuditOutcome::Failure),
        ];
        let audit = Audit::new(10);
        for (status, expected) in cases {
            let mut entry = begin(&audit, "anna", "a");
            entry.set_status(StatusCode::from_u16(status).unwrap());
            assert_eq!(entry.row().outcome, expected, "{status}");
        }
        let cancelled = begin(&audit, "anna", "a");
        assert_eq!(
            (cancelled.row().status, cancelled.row().outcome),
            (499, AuditOutcome::Failure)
        );
        let mut broken = begin(&audit, "anna", "a");
        broken.set_status(StatusCode::OK);
        broken.set_failed("lost");
        assert_eq!(
            (broken.row().status, broken.row().outcome),
            (200, AuditOutcome::Failure)
        );
    }

    #[test]
    fn the_newest_rows_are_kept_and_can_be_selected() {
        let audit = Audit::new(4);
        for (user, cluster) in [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2"), ("a", "1")] {
            drop(begin(&audit, user, cluster));
        }
        let select = |cluster: Option<&str>, user: Option<&str>, limit| {
            let query = AuditQuery {
                cluster: cluster.map(str::to_owned),
                user: user.map(str::to_owned),
                limit,
            };
            let rows = audit.list(&query).rows;
            rows.iter()
                .map(|row| format!("{}{}", row.actor.sub, row.cluster))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(select(None, None, None), "a1 b2 b1 a2");
        assert_eq!(select(Some("1"), None, None), "a1 b1");
        assert_eq!(select(Some("1"), Some("b"), None), "b1");
        assert_eq!(select(None, None, Some(2)), "a1 b2");
        assert_eq!(select(Some("3"), None, None), "");
    }
}
