//! Whether the cluster of the user's kubeconfig has an operator, for the header of the page.
//!
//! The cluster is the one that `standin exec` would use. It is asked in the background, only while a page asks, and never
//! for longer than a timeout: a page gets the last known status at once.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use api::MirrordOperator;
use cluster::Cluster;
use config::Settings;
use error_chain::error_chain;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::exec::settings::load_with;
use crate::exec::{Progress, access};
use crate::sessions::runtime;

/// How long a status is shown before the cluster is asked again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub(super) enum OperatorStatus {
    /// Not known yet.
    #[default]
    Unknown,
    /// There is no kubeconfig, or it cannot be used.
    NotConfigured {
        reason: String,
    },
    Absent {
        cluster: String,
    },
    /// Cluster or operator does not respond, or refuses the request.
    Unavailable {
        reason: String,
    },
    Running {
        cluster: String,
        version: String,
        /// Absent if the administrator has configured none.
        #[serde(skip_serializing_if = "Option::is_none")]
        license: Option<License>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct License {
    name: String,
    organization: String,
    expire_at: Option<String>,
    subscription_id: Option<String>,
}

type Query = Arc<dyn Fn() -> OperatorStatus + Send + Sync>;

/// The last known status.
pub(super) struct OperatorCache {
    state: Mutex<State>,
    query: Query,
}

#[derive(Debug, Default)]
struct State {
    status: OperatorStatus,
    updated: Option<Instant>,
    is_pending: bool,
}

impl OperatorCache {
    pub(super) fn new() -> Self {
        Self::with_query(Arc::new(query))
    }

    fn with_query(query: Query) -> Self {
        Self {
            state: Mutex::default(),
            query,
        }
    }

    /// The last known status. If that is old, it is updated in the background.
    pub(super) fn status(self: &Arc<Self>) -> OperatorStatus {
        let mut state = self.state.lock();
        let is_old = |updated: Instant| updated.elapsed() >= REFRESH_INTERVAL;
        if !state.is_pending && state.updated.is_none_or(is_old) {
            state.is_pending = true;
            tokio::spawn(Arc::clone(self).update());
        }
        state.status.clone()
    }

    async fn update(self: Arc<Self>) {
        let (sender, mut response) = oneshot::channel();
        let query = Arc::clone(&self.query);
        // Credential plugins of a kubeconfig block their thread, possibly for ever.
        thread::spawn(move || drop(sender.send(query())));
        let status = match timeout(REQUEST_TIMEOUT * 2, &mut response).await {
            Ok(status) => status,
            Err(_) => {
                self.state.lock().status = unavailable("the credentials are not available in time");
                // No second thread is started meanwhile.
                response.await
            }
        };
        let mut state = self.state.lock();
        state.status = status.unwrap_or_else(|_| unavailable("the request has failed"));
        state.updated = Some(Instant::now());
        state.is_pending = false;
    }
}

impl fmt::Debug for OperatorCache {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.state.lock(), formatter)
    }
}

fn query() -> OperatorStatus {
    let settings = load_with(None, |layers| layers, &Progress::new(true));
    let response = settings.and_then(|resolved| {
        let response = async { timeout(REQUEST_TIMEOUT, status_in(&resolved.settings)).await };
        Ok(runtime()?.block_on(response))
    });
    match response {
        Ok(Ok(status)) => status,
        Ok(Err(_)) => unavailable("the cluster does not respond in time"),
        Err(error) => OperatorStatus::NotConfigured {
            reason: error_chain(error.as_ref()),
        },
    }
}

async fn status_in(settings: &Settings) -> OperatorStatus {
    let cluster = match Cluster::connect(&access(settings)).await {
        Ok(cluster) => cluster,
        Err(error) => {
            return OperatorStatus::NotConfigured {
                reason: error_chain(&error),
            };
        }
    };
    let name = cluster.context().unwrap_or("this cluster").to_owned();
    let found = match cluster::has_operator(&cluster).await {
        Ok(true) => cluster::get_operator(&cluster).await,
        Ok(false) => return OperatorStatus::Absent { cluster: name },
        Err(error) => Err(error),
    };
    match found {
        Ok(operator) => running(name, operator),
        Err(error) => unavailable(&error_chain(&error)),
    }
}

fn running(cluster: String, operator: MirrordOperator) -> OperatorStatus {
    let license = operator.spec.license.map(|license| License {
        name: license.name,
        organization: license.organization,
        expire_at: license.expire_at,
        subscription_id: license.subscription_id,
    });
    OperatorStatus::Running {
        cluster,
        version: operator.spec.operator_version,
        license,
    }
}

fn unavailable(reason: &str) -> OperatorStatus {
    OperatorStatus::Unavailable {
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use api::operator::{MirrordOperatorSpec, MirrordOperatorStatus};
    use serde_json::json;
    use tokio::time::sleep;

    use super::*;

    /// Waits until the status satisfies a condition. The clock is paused, so this takes no time.
    async fn until(cache: &Arc<OperatorCache>, condition: impl Fn(&OperatorStatus) -> bool) {
        while !condition(&cache.status()) {
            thread::yield_now();
            sleep(Duration::from_millis(100)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_does_not_respond_delays_no_page_and_is_asked_again() {
        let (respond, responses) = mpsc::channel::<OperatorStatus>();
        let responses = Mutex::new(responses);
        let query = move || responses.lock().recv().unwrap_or_default();
        let cache = Arc::new(OperatorCache::with_query(Arc::new(query)));
        assert_eq!(cache.status(), OperatorStatus::Unknown);
        let is_unavailable =
            |status: &OperatorStatus| matches!(status, OperatorStatus::Unavailable { .. });
        until(&cache, is_unavailable).await;
        let absent = OperatorStatus::Absent {
            cluster: "shop".to_owned(),
        };
        respond.send(absent.clone()).unwrap();
        until(&cache, |status| *status == absent).await;
        // It is asked again later.
        let running = running("shop".to_owned(), operator(None));
        respond.send(running.clone()).unwrap();
        until(&cache, |status| *status == running).await;
    }

    fn operator(license: Option<api::operator::License>) -> MirrordOperator {
        let spec = MirrordOperatorSpec {
            operator_version: "0.2.0".to_owned(),
            license,
            ..MirrordOperatorSpec::default()
        };
        MirrordOperator::new(spec, MirrordOperatorStatus::default())
    }

    #[test]
    fn version_and_licence_are_shown_where_there_are_any() {
        let license = api::operator::License {
            name: "Anna".to_owned(),
            organization: "Shop".to_owned(),
            expire_at: Some("2030-01-01".to_owned()),
            fingerprint: Some("S1hg".to_owned()),
            subscription_id: None,
        };
        let json = |operator| serde_json::to_value(running("shop".to_owned(), operator)).unwrap();
        assert_eq!(
            json(operator(Some(license))),
            json!({
                "status": "running", "cluster": "shop", "version": "0.2.0",
                "license": {"name": "Anna", "organization": "Shop", "expire_at": "2030-01-01", "subscription_id": null},
            })
        );
        assert_eq!(
            json(operator(None)),
            json!({"status": "running", "cluster": "shop", "version": "0.2.0"})
        );
    }
}
