//! Does what was planned, and chooses nothing.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use api::session::FINALIZER;
use api::{MirrordClusterSession, MirrordClusterSessionStatus};
use cluster::{AgentSettings, Cluster, Order};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use link::tls::{FirstSeen, TlsDialer, Trust};
use link::{Dial as _, TcpDialer};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::plan::{Plan, Report};
use super::validate::Wanted;
use crate::Shared;
use crate::error::{Doing as _, Result, chain};

/// How long an agent may take to hear that it is to end. It ends by itself when its client stays away.
const PATIENCE: Duration = Duration::from_secs(3);

/// Starts agents. One that cannot be started is tried again at the next look; the others are not held up.
pub(super) async fn start(
    shared: &Shared,
    cluster: &Cluster,
    wanted: &Wanted,
    settings: &AgentSettings,
    plan: &Plan,
) {
    let ended_by = shared.identity.fingerprint();
    for start in &plan.start {
        let order = Order {
            name: &start.name,
            listen: (Ipv4Addr::UNSPECIFIED, start.port).into(),
            client: wanted.client,
            ended_by,
            settings,
        };
        let (session, pod) = (wanted.id, &start.replica.pod);
        match order.start(cluster, &start.replica).await {
            Ok(()) => tracing::info!(%session, pod, agent = start.name, "an agent is started"),
            Err(error) => {
                tracing::warn!(%session, pod, error = chain(&error), "an agent cannot be started");
            }
        }
    }
}

/// Ends agents, writes the status, and lets the object go.
pub(super) async fn report(
    shared: &Shared,
    session: &MirrordClusterSession,
    plan: &Plan,
) -> Result<()> {
    let sessions: Api<MirrordClusterSession> = Api::all(shared.client.clone());
    let name = session.name_any();
    for address in &plan.end {
        if let Err(error) = timeout(PATIENCE, end(shared, address))
            .await
            .unwrap_or_else(|late| Err(late.into()))
        {
            tracing::debug!(session = name, address, %error, "an agent does not hear that it is to end");
        }
    }
    if let Some(report) = &plan.report {
        if report.closed.is_some() {
            let reason = report.closed.as_ref().map(|closed| closed.reason.as_str());
            tracing::info!(target: "audit", session = name, reason, "a session is over");
        }
        let patch = status_patch(report);
        sessions
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .doing(format!("write the status of {name}"))?;
    }
    if plan.delete {
        gone_is_fine(
            sessions
                .delete(&name, &DeleteParams::default())
                .await
                .map(drop),
        )
        .doing(format!("delete {name}"))?;
    }
    if plan.release
        && session
            .finalizers()
            .iter()
            .any(|finalizer| finalizer == FINALIZER)
    {
        let others: Vec<&String> = session
            .finalizers()
            .iter()
            .filter(|finalizer| *finalizer != FINALIZER)
            .collect();
        let patch = json!({"metadata": {"finalizers": others}});
        let released = sessions
            .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        gone_is_fine(released.map(drop)).doing(format!("release {name}"))?;
        shared.metrics.sessions_ended.inc();
    }
    Ok(())
}

/// The controller's fields, and no others: a field that is absent must be said to be.
fn status_patch(report: &Report) -> Value {
    let status = MirrordClusterSessionStatus {
        phase: Some(report.phase),
        message: report.message.clone(),
        pods: report.pods.clone(),
        next_channel: report.next_channel,
        closed: report.closed.clone(),
        ..MirrordClusterSessionStatus::default()
    };
    json!({"status": {
        "phase": status.phase,
        "message": status.message,
        "pods": status.pods,
        "nextChannel": status.next_channel,
        "closed": status.closed,
    }})
}

fn gone_is_fine(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}

/// Coming with the operator's certificate is all that it takes.
async fn end(
    shared: &Shared,
    address: &str,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let address: SocketAddr = address.parse()?;
    let name = ServerName::try_from("agent")?;
    let trust = Trust::FirstSeen(FirstSeen::default());
    let dialer = TlsDialer::with_identity(TcpDialer::new(address), name, trust, &shared.identity)?;
    let mut pipe = dialer.dial().await?;
    // It says nothing, and ends: then so does the connection.
    let _ = tokio::io::AsyncReadExt::read(&mut pipe, &mut [0; 1]).await;
    Ok(())
}
