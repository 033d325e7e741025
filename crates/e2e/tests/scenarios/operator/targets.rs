//! Targets of every kind through the operator, with both forms of their API path.

use anyhow::{Context as _, Result, ensure};
use api::connect::{AgentEndpoint, ConnectParameters};
use api::session::SessionId;
use axum::http::{Request, Uri};
use cluster::{Cluster, OperatorConnection, OperatorSession};
use e2e::{TestNamespace, until};
use kube::client::Body;
use link::tls::Identity;

use super::Operator;

/// A target as in the API path, its labels if it is selected by labels, and the names of its pod and container.
type TargetCase<'case> = (&'case str, Option<&'case str>, &'case str, &'case str);

pub(super) async fn targets_of_every_kind_are_served(shop: &TestNamespace) -> Result<()> {
    shop.apply(include_str!("../../../fixtures/workloads.yaml"))?;
    shop.kubectl(&["create", "job", "now", "--from=cronjob/nightly"])?;
    let plain = client_without_proxy_path(shop);
    let by_labels = Some("app in (stateful, none)");
    let cases: [TargetCase<'_>; 9] = [
        (
            "deployment.deployed.container.helper",
            None,
            "deployed-",
            "helper",
        ),
        ("statefulset.stateful", None, "stateful-0", "app"),
        ("daemonset.daemon", None, "daemon-", "app"),
        ("replicaset.replicated", None, "replicated-", "app"),
        ("job.now", None, "now-", "app"),
        ("cronjob.nightly", None, "now-", "app"),
        ("service.served", None, "deployed-", "app"),
        ("pod.stateful-0", None, "stateful-0", "app"),
        ("label", by_labels, "stateful-0", "app"),
    ];
    for (number, case) in (0x7a7..).zip(cases) {
        // The pods may still be starting.
        until(case.0, async || {
            let kube = &shop.cluster.kube;
            let connection = connect_and_check(shop, kube, case, SessionId(number)).await?;
            end(&connection).await;
            Ok(Some(()))
        })
        .await?;
    }
    // The API server handles this path as a plain `get`, and it is a WebSocket nevertheless.
    let case = ("service.served", None, "deployed-", "app");
    let connection = connect_and_check(shop, &plain, case, SessionId(0x91a)).await?;
    end(&connection).await;
    until("the sessions to be gone", async || {
        let left = shop.kubectl(&["get", "mirrordclustersessions", "--output=name"])?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .await
}

/// Ends the session. A connection that is dropped before it has sent this leaves a session that waits for its client.
async fn end(connection: &OperatorConnection) {
    connection.end_session();
    connection.ended().await;
}

/// Connects, and checks that the agent is in the expected pod and has the expected container.
async fn connect_and_check(
    shop: &TestNamespace,
    kube: &kube::Client,
    (target, labels, pod, container): TargetCase<'_>,
    id: SessionId,
) -> Result<OperatorConnection> {
    let cluster = Cluster::new(kube.clone(), &*shop.name);
    let parameters = ConnectParameters {
        connect: true,
        label_target: labels.map(str::to_owned),
        ..ConnectParameters::default()
    };
    let path = api::TargetPath::from_address(target)?;
    let identity = Identity::generate()?;
    let namespace = &*shop.name;
    let session = OperatorSession::new(&cluster, namespace, &path, &parameters, id, &identity);
    let connection = session.connect().await?;
    let endpoint = until("an agent", async || Ok(ready_endpoint(&connection))).await?;
    let is_right = endpoint.pod.starts_with(pod) && endpoint.container == container;
    ensure!(is_right, "{target}: {endpoint:?}");
    super::connect_link(&connection, endpoint.number, &identity)
        .await
        .with_context(|| format!("{target}: {endpoint:?}"))?;
    Ok(connection)
}

fn ready_endpoint(connection: &OperatorConnection) -> Option<AgentEndpoint> {
    let endpoints = connection.endpoints.borrow();
    endpoints
        .endpoints
        .iter()
        .find(|endpoint| endpoint.ready)
        .cloned()
}

/// A client that uses the API path without `proxy`. `standin` uses the one with `proxy`, and other clients this one.
fn client_without_proxy_path(shop: &TestNamespace) -> kube::Client {
    let kube = shop.cluster.kube.clone();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let kube = kube.clone();
        let path = request.uri().to_string();
        let plain: Result<Uri, _> = path.replace("/proxy/namespaces/", "/namespaces/").parse();
        async move {
            *request.uri_mut() = plain.map_err(|error| kube::Error::Service(Box::new(error)))?;
            kube.send(request).await
        }
    });
    kube::Client::new(service, &*shop.name)
}

/// Checks the numbers of daily and monthly active users.
pub(super) async fn users_are_counted(operator: &Operator, min: u64) -> Result<()> {
    let counted = until("users to be counted", async || {
        let arguments = ["get", "mirrordoperators", "operator", "--output=json"];
        let found: serde_json::Value =
            serde_json::from_str(&operator.namespace.kubectl(&arguments)?)?;
        let statistics = found["status"]["statistics"].clone();
        let (dau, mau) = (&statistics["dau"], &statistics["mau"]);
        // The day may have just begun, so the daily number may be small.
        let is_right = mau.as_u64() >= dau.as_u64() && mau.as_u64() >= Some(min);
        ensure!(is_right, "{statistics}");
        Ok(Some(statistics))
    });
    counted.await.map(drop)
}
