//! Metrics for Prometheus.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use admission::{Admission, Limits};
use http::StatusCode;
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::plain_http;
use crate::sessions::Sessions;

/// The permits of connections to the listener of the metrics.
pub(crate) const LIMITS: Limits = Limits {
    total: 64,
    per_source: 16,
};
/// How long a connection may last.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ClusterLabels {
    pub(crate) cluster: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DisconnectLabels {
    pub(crate) cluster: String,
    pub(crate) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct LimitLabels {
    pub(crate) limit: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ReasonLabels {
    pub(crate) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct TaskLabels {
    pub(crate) task: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ListenerLabels {
    /// `http`, `agents`, `clients`, `probes` or `metrics`.
    pub(crate) listener: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) resource: &'static str,
    pub(crate) code: u16,
}

pub(crate) type FailedTasks = Family<TaskLabels, Counter>;

/// The metrics of a replica.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    tunnels: Family<ClusterLabels, Gauge>,
    /// Seconds until the certificate of a connected agent expires.
    certificate_expiry: Family<ClusterLabels, Gauge<i64, AtomicI64>>,
    pub(crate) connects: Family<ClusterLabels, Counter>,
    pub(crate) disconnects: Family<DisconnectLabels, Counter>,
    pub(crate) handshakes_refused: Family<ReasonLabels, Counter>,
    pub(crate) registrations: Family<ReasonLabels, Counter>,
    pub(crate) limits_hit: Family<LimitLabels, Counter>,
    pub(crate) requests: Family<RequestLabels, Counter>,
    unauthenticated_connections: Family<ListenerLabels, Gauge>,
    unauthenticated_connections_evicted: Family<ListenerLabels, Counter<u64, AtomicU64>>,
    /// The listeners of the two metrics above.
    admissions: Mutex<Vec<(ListenerLabels, Admission)>>,
    pub(crate) failed_tasks: FailedTasks,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("standin_hub"),
            tunnels: Family::default(),
            certificate_expiry: Family::default(),
            connects: Family::default(),
            disconnects: Family::default(),
            handshakes_refused: Family::default(),
            registrations: Family::default(),
            limits_hit: Family::default(),
            requests: Family::default(),
            unauthenticated_connections: Family::default(),
            unauthenticated_connections_evicted: Family::default(),
            admissions: Mutex::default(),
            failed_tasks: Family::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "tunnels",
            "Connected tunnels by cluster",
            self.tunnels.clone(),
        );
        registry.register(
            "certificate_expiry_seconds",
            "Seconds until the certificate of a connected agent expires",
            self.certificate_expiry.clone(),
        );
        registry.register(
            "connects",
            "Tunnels that agents have opened",
            self.connects.clone(),
        );
        registry.register(
            "disconnects",
            "Tunnels that have ended, by reason",
            self.disconnects.clone(),
        );
        registry.register(
            "handshakes_refused",
            "Connections of agents that were refused, by reason",
            self.handshakes_refused.clone(),
        );
        registry.register(
            "registrations",
            "Registrations by outcome",
            self.registrations.clone(),
        );
        registry.register(
            "limits_hit",
            "Requests refused because of a limit",
            self.limits_hit.clone(),
        );
        registry.register(
            "requests",
            "Requests by kind and status code",
            self.requests.clone(),
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
            "failed_tasks",
            "Background tasks that ended or panicked",
            self.failed_tasks.clone(),
        );
    }

    /// The permits of a listener's unauthenticated connections, which the metrics count.
    pub(crate) fn admission(&self, listener: &'static str, limits: Limits) -> Admission {
        let admission = Admission::new(limits);
        let entry = (ListenerLabels { listener }, admission.clone());
        self.admissions.lock().push(entry);
        admission
    }

    pub(crate) fn limit_hit(&self, limit: &'static str) {
        self.limits_hit.get_or_create(&LimitLabels { limit }).inc();
    }

    pub(crate) fn handshake_refused(&self, reason: &'static str) {
        let labels = ReasonLabels { reason };
        self.handshakes_refused.get_or_create(&labels).inc();
    }

    pub(crate) fn registration(&self, reason: &'static str) {
        let labels = ReasonLabels { reason };
        self.registrations.get_or_create(&labels).inc();
    }

    /// All metrics as text. Those of clusters that are not connected here any more are left out.
    pub(crate) fn text(&self, sessions: &Sessions, now: Timestamp) -> String {
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
        self.tunnels.clear();
        self.certificate_expiry.clear();
        for (cluster, tunnels) in sessions.connected().iter() {
            let labels = ClusterLabels {
                cluster: cluster.clone(),
            };
            let number = i64::try_from(tunnels.number).unwrap_or(i64::MAX);
            self.tunnels.get_or_create(&labels).set(number);
            let left = now.duration_until(tunnels.certificate_expires_at).as_secs();
            self.certificate_expiry.get_or_create(&labels).set(left);
        }
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// Serves `/metrics` until the hub exits.
pub(crate) async fn serve(
    metrics: Arc<Metrics>,
    sessions: Sessions,
    listener: TcpListener,
    admission: Admission,
) {
    let respond = move |path: &str| match path {
        "/metrics" => (StatusCode::OK, metrics.text(&sessions, Timestamp::now())),
        _ => (StatusCode::NOT_FOUND, "not found\n".to_owned()),
    };
    plain_http::serve(listener, admission, CONNECTION_TIMEOUT, respond).await;
}
