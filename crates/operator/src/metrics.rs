//! Metrics for Prometheus.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

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

pub(crate) type FailedTasks = Family<TaskLabels, Counter>;

/// The metrics of a replica.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) requests: Family<RequestLabels, Counter>,
    pub(crate) unauthenticated_connections_rejected: Counter,
    connections: Gauge,
    pub(crate) relayed_bytes: Family<DirectionLabels, Counter<u64, AtomicU64>>,
    pub(crate) sessions_ended: Counter,
    pub(crate) sessions_with_unconfirmed_policies: Gauge,
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
            connections: Gauge::default(),
            relayed_bytes: Family::default(),
            sessions_ended: Counter::default(),
            sessions_with_unconfirmed_policies: Gauge::default(),
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
            "sessions_with_unconfirmed_policies",
            "Sessions with stopped traffic, because an agent has not confirmed the current policies",
            self.sessions_with_unconfirmed_policies.clone(),
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

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
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
