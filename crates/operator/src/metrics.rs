//! Metrics for Prometheus.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admission::{Admission, Limits};
use http::StatusCode;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::{Shared, plain_http};

/// The permits of connections to the listener of the metrics.
pub(crate) const LIMITS: Limits = Limits {
    total: 64,
    per_source: 16,
};
/// How long a connection may last.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) resource: &'static str,
    pub(crate) code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DirectionLabels {
    /// `to_agent` or `to_client`.
    pub(crate) direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct TaskLabels {
    pub(crate) task: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ListenerLabels {
    /// `api`, `probes` or `metrics`.
    pub(crate) listener: &'static str,
}

pub(crate) type FailedTasks = Family<TaskLabels, Counter>;

/// The metrics of a replica.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) requests: Family<RequestLabels, Counter>,
    pub(crate) unauthenticated_connections_rejected: Counter,
    unauthenticated_connections: Family<ListenerLabels, Gauge>,
    unauthenticated_connections_evicted: Family<ListenerLabels, Counter<u64, AtomicU64>>,
    /// The listeners of the two metrics above.
    admissions: Mutex<Vec<(ListenerLabels, Admission)>>,
    connections: Gauge,
    pub(crate) relayed_bytes: Family<DirectionLabels, Counter<u64, AtomicU64>>,
    pub(crate) sessions_ended: Counter,
    pub(crate) session_start_seconds: Histogram,
    pub(crate) is_leader: Gauge,
    pub(crate) failed_tasks: FailedTasks,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("standin_operator"),
            requests: Family::default(),
            unauthenticated_connections_rejected: Counter::default(),
            unauthenticated_connections: Family::default(),
            unauthenticated_connections_evicted: Family::default(),
            admissions: Mutex::default(),
            connections: Gauge::default(),
            relayed_bytes: Family::default(),
            sessions_ended: Counter::default(),
            session_start_seconds: Histogram::new(exponential_buckets(0.05, 2.0, 10)),
            is_leader: Gauge::default(),
            failed_tasks: Family::default(),
        };
        metrics.register();
        // A counter that first appears with a value above zero hides its first increase from `rate()`.
        for direction in ["to_agent", "to_client"] {
            drop(
                metrics
                    .relayed_bytes
                    .get_or_create(&DirectionLabels { direction }),
            );
        }
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "requests",
            "Requests by resource and status code",
            self.requests.clone(),
        );
        registry.register(
            "unauthenticated_connections_rejected",
            "Requests rejected because they did not come through the API server",
            self.unauthenticated_connections_rejected.clone(),
        );
        registry.register(
            "unauthenticated_connections",
            "Open connections whose peers are not authenticated",
            self.unauthenticated_connections.clone(),
        );
        registry.register(
            "unauthenticated_connections_evicted",
            "Unauthenticated connections closed because there were too many",
            self.unauthenticated_connections_evicted.clone(),
        );
        registry.register(
            "connections",
            "Sessions connected through this replica",
            self.connections.clone(),
        );
        registry.register(
            "relayed_bytes",
            "Bytes relayed between clients and agents",
            self.relayed_bytes.clone(),
        );
        registry.register(
            "sessions_ended",
            "Sessions whose agents this replica has removed",
            self.sessions_ended.clone(),
        );
        registry.register(
            "session_start_seconds",
            "Time from a client's request to the connection of its session",
            self.session_start_seconds.clone(),
        );
        registry.register(
            "is_leader",
            "Whether this replica runs the controllers",
            self.is_leader.clone(),
        );
        registry.register(
            "failed_tasks",
            "Background tasks that ended or panicked",
            self.failed_tasks.clone(),
        );
    }

    /// Counts a connection until the guard is dropped.
    pub(crate) fn connection_guard(&self) -> ConnectionGuard {
        self.connections.inc();
        ConnectionGuard(self.connections.clone())
    }

    /// The permits of a listener's unauthenticated connections, which the metrics count.
    pub(crate) fn admission(&self, listener: &'static str, limits: Limits) -> Admission {
        let admission = Admission::new(limits);
        let entry = (ListenerLabels { listener }, admission.clone());
        self.admissions.lock().push(entry);
        admission
    }

    pub(crate) fn text(&self) -> String {
        for (labels, admission) in self.admissions.lock().iter() {
            let unauthenticated = i64::try_from(admission.unauthenticated()).unwrap_or(i64::MAX);
            let gauge = self.unauthenticated_connections.get_or_create(labels);
            gauge.set(unauthenticated);
            let evicted = self
                .unauthenticated_connections_evicted
                .get_or_create(labels);
            evicted
                .inner()
                .store(admission.evicted(), Ordering::Relaxed);
        }
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// Serves `/metrics` until the operator exits.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener, admission: Admission) {
    let respond = move |path: &str| match path {
        "/metrics" => (StatusCode::OK, shared.metrics.text()),
        _ => (StatusCode::NOT_FOUND, "not found\n".to_owned()),
    };
    plain_http::serve(listener, admission, CONNECTION_TIMEOUT, respond).await;
}

#[derive(Debug)]
pub(crate) struct ConnectionGuard(Gauge);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests;
