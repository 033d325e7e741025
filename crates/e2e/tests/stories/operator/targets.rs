//! Whatever can be a target, through the operator, and whichever form of its address a client uses.

use anyhow::{Context as _, Result, ensure};
use api::connect::{ConnectParameters, Place};
use api::session::SessionId;
use axum::http::{Request, Uri};
use cluster::{Cluster, OperatorConnection, OperatorSession};
use e2e::{Stage, until};
use kube::client::Body;
use link::tls::Identity;

use super::Operator;

/// A target as addresses have it, the labels of one that is chosen by labels, and what its pod and container are called.
type Expected<'case> = (&'case str, Option<&'case str>, &'case str, &'case str);

pub(super) async fn targets_of_every_kind_are_served(shop: &Stage) -> Result<()> {
    shop.apply(include_str!("../../../fixtures/workloads.yaml"))?;
    shop.kubectl(&["create", "job", "now", "--from=cronjob/nightly"])?;
    let plain = by_plain_addresses(shop);
    let by_labels = Some("app in (stateful, none)");
    let cases: [Expected<'_>; 9] = [
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
        // Their pods may be on their way.
        until(case.0, async || {
            let kube = &shop.cluster.kube;
            let connection = has_a_session(shop, kube, case, SessionId(number)).await?;
            connection.say_farewell();
            Ok(Some(()))
        })
        .await?;
    }
    // It is a plain `get` for the API server, and a WebSocket all the same.
    let case = ("service.served", None, "deployed-", "app");
    let connection = has_a_session(shop, &plain, case, SessionId(0x91a)).await?;
    connection.say_farewell();
    until("the sessions to be gone", async || {
        let left = shop.kubectl(&["get", "mirrordclustersessions", "--output=name"])?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .await
}

/// Connects, and sees that the right pod has an agent beside the right container.
async fn has_a_session(
    shop: &Stage,
    kube: &kube::Client,
    (target, labels, pod, container): Expected<'_>,
    id: SessionId,
) -> Result<OperatorConnection> {
    let cluster = Cluster::new(kube.clone(), &*shop.namespace);
    let parameters = ConnectParameters {
        connect: true,
        label_target: labels.map(str::to_owned),
        ..ConnectParameters::default()
    };
    let path = api::TargetPath::from_address(target)?;
    let identity = Identity::generate()?;
    let namespace = &*shop.namespace;
    let session = OperatorSession::new(&cluster, namespace, &path, &parameters, id, &identity);
    let connection = session.connect().await?;
    let place = until("an agent", async || Ok(ready_place(&connection))).await?;
    let is_right = place.pod.starts_with(pod) && place.container == container;
    ensure!(is_right, "{target}: {place:?}");
    super::greet(&connection, place.number, &identity)
        .await
        .with_context(|| format!("{target}: {place:?}"))?;
    Ok(connection)
}

fn ready_place(connection: &OperatorConnection) -> Option<Place> {
    let places = connection.places.borrow();
    places.places.iter().find(|place| place.ready).cloned()
}

/// Of the two forms of an address our own client uses the one with `proxy`; others use the other one.
fn by_plain_addresses(shop: &Stage) -> kube::Client {
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
    kube::Client::new(service, &*shop.namespace)
}

/// How many different people had sessions, today and lately.
pub(super) async fn users_are_counted(operator: &Operator, fewest: u64) -> Result<()> {
    let counted = until("users to be counted", async || {
        let question = ["get", "mirrordoperators", "operator", "--output=json"];
        let found: serde_json::Value = serde_json::from_str(&operator.stage.kubectl(&question)?)?;
        let statistics = found["status"]["statistics"].clone();
        let (dau, mau) = (&statistics["dau"], &statistics["mau"]);
        // The day may have just begun.
        let is_right = mau.as_u64() >= dau.as_u64() && mau.as_u64() >= Some(fewest);
        ensure!(is_right, "{statistics}");
        Ok(Some(statistics))
    });
    counted.await.map(drop)
}
