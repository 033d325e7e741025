//! Executes a plan. It makes no decisions.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::Duration;

use api::node::{NodeRequest, NodeResponse, ServeRequest, encode_message};
use api::session::FINALIZER;
use api::{MirrordClusterSession, MirrordClusterSessionStatus};
use cluster::{AgentSettings, AgentSpec, Cluster, PodSettings};
use error_chain::error_chain;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use link::Pipe;
use protocol::grant::Grant;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::observe::{POD_LABEL, SESSION_LABEL, namespace_of_pods, on_node};
use super::observed::{GrantDigests, Observed, ObservedAgent, StartFailure};
use super::plan::{Plan, Regrant, Report, STARTUP_TIMEOUT, Start};
use super::validate::{ValidatedSpec, agent_mode};
use crate::error::{KubeResultExt as _, Result};
use crate::nodes::{BoxError, dial_agent};
use crate::policies::{self, Granted, short_digest};
use crate::settings::AgentMode;
use crate::{Shared, audit};

/// The timeout of a request to an agent. An agent that does not get the request to end, ends when its client does not
/// reconnect.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Starts agents, and records the results in `observed`. A failed start is retried in the next reconciliation and does not
/// delay the others.
pub(super) async fn start(
    shared: &Shared,
    cluster: &Cluster,
    spec: &ValidatedSpec,
    plan: &Plan,
    observed: &mut Observed,
) {
    let resume_window = spec.resume_window.max(shared.settings.session.time_to_live);
    let settings = AgentSettings {
        resume_window,
        pod: PodSettings {
            labels: labels(spec),
            ..shared.settings.agent.pod.clone()
        },
        ..shared.settings.agent.clone()
    };
    for start in &plan.start {
        let starter = AgentStarter {
            shared,
            cluster,
            spec,
            settings: &settings,
            // The session waits for its client as long, and an agent must not time out before it.
            connect_timeout: resume_window + STARTUP_TIMEOUT,
        };
        let started = starter.start(start).await;
        let (session, pod) = (spec.id, &start.replica.pod);
        let found = observed.pods.iter_mut();
        let mut found = found.filter(|found| found.replica.uid == start.replica.uid);
        let Some(found) = found.next() else { continue };
        match started {
            Ok((agent, new_grant)) => {
                tracing::info!(%session, pod, agent = start.name, "agent started");
                found.agents.extend(agent);
                found.new_grant = Some(new_grant);
            }
            Err(failure) => {
                tracing::warn!(%session, pod, error = failure.reason, "agent start failed");
                found.start_failure = Some(failure);
            }
        }
    }
}

fn labels(spec: &ValidatedSpec) -> BTreeMap<String, String> {
    [(SESSION_LABEL.to_owned(), spec.id.to_string())].into()
}

/// Adds the image pull secrets. They are in the operator's namespace; a secret of the same name in another namespace is a
/// different one.
fn with_pull_secrets(
    mut settings: AgentSettings,
    shared: &Shared,
    namespace: &str,
) -> AgentSettings {
    if namespace == shared.settings.namespace {
        let secrets = &shared.settings.agent_image_pull_secrets;
        settings.image_pull_secrets.clone_from(secrets);
    }
    settings
}

struct AgentStarter<'a> {
    shared: &'a Shared,
    cluster: &'a Cluster,
    spec: &'a ValidatedSpec,
    settings: &'a AgentSettings,
    connect_timeout: Duration,
}

impl AgentStarter<'_> {
    /// Starts an agent. Returns the agent, if it runs already, and the digests of its grant.
    async fn start(
        &self,
        start: &Start,
    ) -> Result<(Option<ObservedAgent>, GrantDigests), StartFailure> {
        let replica = &start.replica;
        let mut settings = self.settings.clone();
        let labels = &mut settings.pod.labels;
        labels.insert(POD_LABEL.to_owned(), replica.uid.clone());
        let granted = policies::granted(self.shared, self.spec, replica).await;
        let granted = granted.map_err(|error| StartFailure {
            reason: error_chain(&error),
            is_final: false,
        })?;
        let digests = grant_digests(&granted);
        let grant = granted.grant;
        let mode = agent_mode(&self.spec.target_path, self.shared.settings.agent_mode);
        if mode == AgentMode::Node {
            let served = self.serve(start, &grant).await?;
            return Ok((Some(served), digests));
        }
        let grant = serde_json::to_string(&grant).map_err(|error| StartFailure {
            reason: error.to_string(),
            is_final: true,
        })?;
        let agent = AgentSpec {
            grant: &grant,
            name: &start.name,
            listen: (Ipv6Addr::UNSPECIFIED, start.port).into(),
            client: self.spec.client,
            ended_by: self.shared.identity.fingerprint(),
            first_client_timeout: self.connect_timeout,
            settings: &settings,
        };
        let started = match mode {
            AgentMode::Pod => {
                let namespace = namespace_of_pods(self.shared, self.spec);
                let agent = AgentSpec {
                    settings: &with_pull_secrets(settings.clone(), self.shared, namespace),
                    ..agent
                };
                let target = self.spec.target.as_ref().map(|_| replica);
                agent.start_as_pod(self.cluster, target, namespace).await
            }
            _ => agent.start(self.cluster, replica).await,
        };
        started
            .map(|()| (None, digests))
            .map_err(|error| StartFailure {
                reason: error_chain(&error),
                is_final: matches!(error, cluster::Error::Refused(_)),
            })
    }

    async fn serve(&self, start: &Start, grant: &Grant) -> Result<ObservedAgent, StartFailure> {
        let temporary = |reason: String| StartFailure {
            reason,
            is_final: false,
        };
        let nodes = &self.shared.nodes;
        let hosts = nodes
            .hosts()
            .await
            .map_err(|error| temporary(error_chain(&error)))?;
        let node = &start.replica.node;
        let host = hosts
            .get(node)
            .ok_or_else(|| temporary(format!("no node agent runs on its node {node}")))?;
        let request = NodeRequest::Serve(ServeRequest {
            name: start.name.clone(),
            pod: start.replica.uid.clone(),
            container: start.replica.container_id.clone(),
            client_certificate: self.spec.client.to_string(),
            resume_window_secs: self.settings.resume_window.as_secs(),
            connect_timeout_secs: self.connect_timeout.as_secs(),
            port: start.port,
            grant: serde_json::to_value(grant).ok(),
        });
        let response = nodes.request(host, &request).await.map_err(temporary)?;
        let served = response.served.into_iter().next();
        let served = served.ok_or_else(|| temporary("its node agent serves nothing".to_owned()))?;
        Ok(on_node(host, served))
    }
}

fn grant_digests(granted: &Granted) -> GrantDigests {
    let grant = serde_json::to_string(&granted.grant).unwrap_or_default();
    GrantDigests {
        policies: granted.policies.clone(),
        grant: short_digest(&grant),
    }
}

/// Sends agents their new grants. An agent that rejects its grant is ended, because it would not enforce the policies.
pub(super) async fn regrant(
    shared: &Shared,
    spec: &ValidatedSpec,
    plan: &Plan,
    observed: &mut Observed,
) {
    for regrant in &plan.regrant {
        let (session, pod) = (spec.id, &regrant.replica.pod);
        let found = observed.pods.iter_mut();
        let mut found = found.filter(|found| found.replica.uid == regrant.replica.uid);
        let Some(found) = found.next() else { continue };
        match send_grant(shared, spec, regrant).await {
            Ok(Some(new_grant)) => {
                tracing::info!(%session, pod, "grant updated");
                found.new_grant = Some(new_grant);
            }
            Ok(None) => {}
            // The next reconciliation retries it soon.
            Err(error) => {
                tracing::warn!(%session, pod, error, "grant update failed");
                found.grant_failure = Some(error);
            }
        }
    }
}

/// Returns `None` if the agent's grant is current.
async fn send_grant(
    shared: &Shared,
    spec: &ValidatedSpec,
    regrant: &Regrant,
) -> Result<Option<GrantDigests>, String> {
    let granted = policies::granted(shared, spec, &regrant.replica).await;
    let granted = granted.map_err(|error| error_chain(&error))?;
    if regrant.known_policies.as_ref() == Some(&granted.policies) {
        return Ok(None);
    }
    let mode = agent_mode(&spec.target_path, shared.settings.agent_mode);
    let request = NodeRequest::Grant {
        name: regrant.agent.instance.name.clone(),
        grant: serde_json::to_value(&granted.grant).map_err(|error| error.to_string())?,
    };
    let sent = send_request(shared, &regrant.agent, mode, &request);
    let response = timeout(REQUEST_TIMEOUT, sent).await;
    match response.map_err(|_| "the request timed out".to_owned())? {
        Ok(NodeResponse { error: None, .. }) => Ok(Some(grant_digests(&granted))),
        Ok(NodeResponse {
            error: Some(error), ..
        }) => {
            let ended = timeout(REQUEST_TIMEOUT, end(shared, &regrant.agent, mode)).await;
            drop(ended);
            Err(error)
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Sends a request to an agent, in any agent mode.
async fn send_request(
    shared: &Shared,
    agent: &ObservedAgent,
    mode: AgentMode,
    request: &NodeRequest,
) -> Result<NodeResponse, BoxError> {
    if mode == AgentMode::Node {
        let host = agent.host.as_deref().ok_or("its address is unknown")?;
        return Ok(shared.nodes.request(host, request).await?);
    }
    let mut pipe = connect(shared, agent).await?;
    pipe.write_all(&encode_message(request)?).await?;
    pipe.flush().await?;
    crate::nodes::read_response(&mut pipe).await
}

async fn connect(shared: &Shared, agent: &ObservedAgent) -> Result<impl Pipe + use<>, BoxError> {
    let address = agent.address().ok_or("its address is unknown")?;
    dial_agent(&shared.identity, address.parse()?).await
}

/// Ends agents, writes the status, deletes the object and removes its finalizer, as planned.
pub(super) async fn report(
    shared: &Shared,
    session: &MirrordClusterSession,
    plan: &Plan,
) -> Result<()> {
    let sessions: Api<MirrordClusterSession> = Api::all(shared.client.clone());
    let name = session.name_any();
    let mode = agent_mode(&session.spec.target, shared.settings.agent_mode);
    for agent in &plan.end {
        if let Err(error) = timeout(REQUEST_TIMEOUT, end(shared, agent, mode))
            .await
            .unwrap_or_else(|late| Err(late.into()))
        {
            let agent = &agent.instance.name;
            tracing::debug!(session = name, agent, %error, "agent shutdown failed");
        }
    }
    if let Some(report) = &plan.report {
        let patch = status_patch(report);
        sessions
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .action(format!("write the status of {name}"))?;
    }
    if plan.delete {
        ignore_not_found(
            sessions
                .delete(&name, &DeleteParams::default())
                .await
                .map(drop),
        )
        .action(format!("delete {name}"))?;
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
        ignore_not_found(released.map(drop)).action(format!("release {name}"))?;
        shared.metrics.sessions_ended.inc();
        // The relay of the session has ended, so the release of its ports is logged here.
        for port in session.status.iter().flat_map(|status| &status.ports) {
            audit::port_released(session, port);
        }
        audit::session_ended(session);
    }
    Ok(())
}

/// A merge patch with exactly the fields of the controller. Absent values are `null`, so that the patch removes them.
fn status_patch(report: &Report) -> Value {
    let status = MirrordClusterSessionStatus {
        phase: Some(report.phase),
        message: report.message.clone(),
        pods: report.pods.clone(),
        next_channel: report.next_channel,
        closed: report.closed.clone(),
        failed_timestamp: report.failed_timestamp.clone(),
        ..MirrordClusterSessionStatus::default()
    };
    json!({"status": {
        "phase": status.phase,
        "message": status.message,
        "pods": status.pods,
        "nextChannel": status.next_channel,
        "closed": status.closed,
        "failedTimestamp": status.failed_timestamp,
    }})
}

fn ignore_not_found(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}

async fn end(shared: &Shared, agent: &ObservedAgent, mode: AgentMode) -> Result<(), BoxError> {
    let name = agent.instance.name.clone();
    let request = NodeRequest::End { name };
    if mode == AgentMode::Node {
        return send_request(shared, agent, mode, &request).await.map(drop);
    }
    let mut pipe = connect(shared, agent).await?;
    pipe.write_all(&encode_message(&request)?).await?;
    pipe.flush().await?;
    // The agent exits without a response, which closes the connection.
    let _ = pipe.read(&mut [0; 1]).await;
    Ok(())
}
