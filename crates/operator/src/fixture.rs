//! The shared state of an operator whose API server is a stub, for tests of what needs all of it.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Shared;
use crate::background::Background;
use crate::cache::SessionCache;
use crate::certificates::{Renewal, renew};
use crate::front_proxy::FrontProxy;
use crate::metrics::Metrics;
use crate::multicluster::clusters::MultiCluster;
use crate::multicluster::member_clusters::MemberClusters;
use crate::multicluster::stub::{self, StubResponse};
use crate::nodes::Nodes;
use crate::policies::PolicyCache;
use crate::server::Trust;
use crate::settings::{AgentMode, AgentSettings, PodSettings, SessionSettings, Settings};
use crate::unconfirmed::StoppedAgents;
use crate::users::Users;

pub(crate) fn settings() -> Settings {
    let listen = ([127, 0, 0, 1], 0).into();
    Settings {
        namespace: "tools".to_owned(),
        service: "mirrord-operator".to_owned(),
        secret: "mirrord-operator-tls".to_owned(),
        lease: "mirrord-operator".to_owned(),
        replica: "mirrord-operator-1".to_owned(),
        license_secret: None,
        listen,
        listen_for_probes: listen,
        listen_for_metrics: listen,
        default_namespace: "default".to_owned(),
        session: SessionSettings {
            time_to_live: Duration::from_secs(60),
            max_resume: Duration::from_secs(900),
            max_age: None,
            review_interval: Duration::from_secs(300),
        },
        policy_confirmation_timeout: Duration::from_secs(10),
        agent_mode: AgentMode::Ephemeral,
        targetless: true,
        shows_filter_patterns: false,
        agent_image_pull_secrets: Vec::new(),
        agent: AgentSettings {
            image: "standind:1".to_owned(),
            image_pull_policy: "IfNotPresent".to_owned(),
            image_pull_secrets: Vec::new(),
            log_level: "info".to_owned(),
            ephemeral: None,
            startup_timeout: Duration::from_secs(60),
            resume_window: Duration::from_secs(60),
            pod: PodSettings::default(),
        },
        primary: None,
        member_authorization: None,
    }
}

/// The shared state of an operator, which is a Primary if there are clusters.
pub(crate) fn shared(
    client: Client,
    settings: Settings,
    clusters: Option<MultiCluster>,
) -> Arc<Shared> {
    let metrics = Metrics::new();
    let background = Background::new(CancellationToken::new(), metrics.failed_tasks.clone());
    let names = settings.host_names();
    let certificates = renew(None, Renewal::Authority, &names, Timestamp::now()).unwrap();
    let authority = (
        "requestheader-client-ca-file".to_owned(),
        certificates.bundle().to_owned(),
    );
    let front_proxy = FrontProxy::from_config_map(&ConfigMap {
        data: Some([authority].into()),
        ..ConfigMap::default()
    });
    let trust = Trust::new(front_proxy.unwrap(), &certificates).unwrap();
    Arc::new(Shared {
        sessions: SessionCache::start(client.clone(), &background, "sessions"),
        policies: PolicyCache::start(&client, &background),
        stopped_agents: StoppedAgents::new(),
        users: Users::start(client.clone(), &settings, &background),
        identity: certificates.identity().unwrap(),
        nodes: Nodes::new(
            client.clone(),
            &settings.namespace,
            certificates.identity().unwrap(),
            certificates.node().unwrap(),
        ),
        members: clusters.map(|clusters| MemberClusters::of(client.clone(), clusters)),
        client,
        metrics,
        trust: watch::Sender::new(Arc::new(trust)).subscribe(),
        background,
        ending: CancellationToken::new(),
        draining: CancellationToken::new(),
        relays: TaskTracker::new(),
        settings,
    })
}

/// The requests that write something: path and body.
pub(crate) type Writes = Arc<Mutex<Vec<(String, Value)>>>;

/// An API server that records what is written. It has no objects, except those in the responses of `respond`, which has the
/// path and the body as arguments.
pub(crate) fn api_server(
    respond: impl Fn(&str, &Value) -> Option<Value> + Send + Sync + 'static,
) -> (Client, Writes) {
    let writes = Writes::default();
    let recorded = Arc::clone(&writes);
    let client = stub::server(move |method, path, body| {
        let body = body.unwrap_or_default();
        if path.contains("watch=true") {
            return stub::pending_response();
        }
        let found = respond(path, &body);
        if *method == Method::GET {
            return found.map_or_else(empty_list, |found| ok(&found));
        }
        // A server returns what was written.
        let response = ok(found.as_ref().unwrap_or(&body));
        recorded.lock().push((path.to_owned(), body));
        response
    });
    (client, writes)
}

fn ok(value: &Value) -> StubResponse {
    stub::json_response(StatusCode::OK, value)
}

fn empty_list() -> StubResponse {
    ok(&json!({
        "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": [],
    }))
}
