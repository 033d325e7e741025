//! Does what was planned, and chooses nothing.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::Duration;

use api::node::{NodeAnswer, NodeOrder, NodeRequest, message};
use api::session::FINALIZER;
use api::{MirrordClusterSession, MirrordClusterSessionStatus};
use cluster::{AgentSettings, Cluster, Order, PodSettings};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use link::Pipe;
use protocol::grant::Grant;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::observe::{POD_LABEL, SESSION_LABEL, namespace_of_pods, on_node};
use super::plan::{Observed, ObservedAgent, Plan, Refused, Regrant, Report, STARTUP, Start, Told};
use super::validate::{Wanted, agent_mode};
use crate::error::{Doing as _, Result, chain};
use crate::nodes::{Trouble, dial_agent};
use crate::policies::{self, Granted, short_digest};
use crate::settings::AgentMode;
use crate::{Shared, audit};

/// How long an agent may take to hear that it is to end. It ends by itself when its client stays away.
const PATIENCE: Duration = Duration::from_secs(3);

/// Starts agents, and says in what was observed what came of it. One that cannot be started is tried again at the next
/// look; the others are not held up.
pub(super) async fn start(
    shared: &Shared,
    cluster: &Cluster,
    wanted: &Wanted,
    plan: &Plan,
    observed: &mut Observed,
) {
    let waits = wanted
        .resume_window
        .max(shared.settings.session.time_to_live);
    let settings = AgentSettings {
        resume_window: waits,
        pod: PodSettings {
            labels: labels(wanted),
            ..shared.settings.agent.pod.clone()
        },
        ..shared.settings.agent.clone()
    };
    for start in &plan.start {
        let starting = Starting {
            shared,
            cluster,
            wanted,
            settings: &settings,
            // The session itself waits so long for its client, and an agent must not give up before it does.
            patience: waits + STARTUP,
        };
        let started = starting.start(start).await;
        let (session, pod) = (wanted.id, &start.replica.pod);
        let found = observed.pods.iter_mut();
        let mut found = found.filter(|found| found.replica.uid == start.replica.uid);
        let Some(found) = found.next() else { continue };
        match started {
            Ok((agent, told)) => {
                tracing::info!(%session, pod, agent = start.name, "an agent is started");
                found.agents.extend(agent);
                found.told = Some(told);
            }
            Err(refused) => {
                tracing::warn!(%session, pod, why = refused.why, "an agent cannot be started");
                found.refused = Some(refused);
            }
        }
    }
}

fn labels(wanted: &Wanted) -> BTreeMap<String, String> {
    [(SESSION_LABEL.to_owned(), wanted.id.to_string())].into()
}

/// Secrets for the image's registry are in the operator's own namespace; other namespaces have none of that name, or another.
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

struct Starting<'look> {
    shared: &'look Shared,
    cluster: &'look Cluster,
    wanted: &'look Wanted,
    settings: &'look AgentSettings,
    patience: Duration,
}

impl Starting<'_> {
    /// The agent, where it is there already, and what it was told.
    async fn start(&self, start: &Start) -> Result<(Option<ObservedAgent>, Told), Refused> {
        let replica = &start.replica;
        let mut settings = self.settings.clone();
        let labels = &mut settings.pod.labels;
        labels.insert(POD_LABEL.to_owned(), replica.uid.clone());
        let granted = policies::granted(self.shared, self.wanted, replica).await;
        let granted = granted.map_err(|error| Refused {
            why: chain(&error),
            is_final: false,
        })?;
        let told = told(&granted);
        let grant = granted.grant;
        let mode = agent_mode(&self.wanted.named, self.shared.settings.agent_mode);
        if mode == AgentMode::Node {
            let served = self.serve(start, &grant).await?;
            return Ok((Some(served), told));
        }
        let grant = serde_json::to_string(&grant).map_err(|error| Refused {
            why: error.to_string(),
            is_final: true,
        })?;
        let order = Order {
            grant: &grant,
            name: &start.name,
            listen: (Ipv6Addr::UNSPECIFIED, start.port).into(),
            client: self.wanted.client,
            ended_by: self.shared.identity.fingerprint(),
            patience: self.patience,
            settings: &settings,
        };
        let started = match mode {
            AgentMode::Pod => {
                let namespace = namespace_of_pods(self.shared, self.wanted);
                let order = Order {
                    settings: &with_pull_secrets(settings.clone(), self.shared, namespace),
                    ..order
                };
                let beside = self.wanted.target.as_ref().map(|_| replica);
                order.start_as_pod(self.cluster, beside, namespace).await
            }
            _ => order.start(self.cluster, replica).await,
        };
        started.map(|()| (None, told)).map_err(|error| Refused {
            why: chain(&error),
            is_final: matches!(error, cluster::Error::Refused(_)),
        })
    }

    async fn serve(&self, start: &Start, grant: &Grant) -> Result<ObservedAgent, Refused> {
        let passing = |why: String| Refused {
            why,
            is_final: false,
        };
        let nodes = &self.shared.nodes;
        let hosts = nodes
            .hosts()
            .await
            .map_err(|error| passing(chain(&error)))?;
        let node = &start.replica.node;
        let host = hosts
            .get(node)
            .ok_or_else(|| passing(format!("no agent runs on its node {node}")))?;
        let order = NodeRequest::Serve(NodeOrder {
            name: start.name.clone(),
            pod: start.replica.uid.clone(),
            container: start.replica.container_id.clone(),
            client_certificate: self.wanted.client.to_string(),
            resume_window_secs: self.settings.resume_window.as_secs(),
            patience_secs: self.patience.as_secs(),
            port: start.port,
            grant: serde_json::to_value(grant).ok(),
        });
        let answer = nodes.ask(host, &order).await.map_err(passing)?;
        let served = answer.served.into_iter().next();
        let served = served.ok_or_else(|| passing("its node says nothing".to_owned()))?;
        Ok(on_node(host, served))
    }
}

/// What is remembered of what an agent was told.
fn told(granted: &Granted) -> Told {
    let grant = serde_json::to_string(&granted.grant).unwrap_or_default();
    Told {
        policies: granted.policies.clone(),
        grant: short_digest(&grant),
    }
}

/// Tells agents what is forbidden now. One that does not understand it ends: it would let through what it does not know.
pub(super) async fn regrant(
    shared: &Shared,
    wanted: &Wanted,
    plan: &Plan,
    observed: &mut Observed,
) {
    for regrant in &plan.regrant {
        let (session, pod) = (wanted.id, &regrant.replica.pod);
        let found = observed.pods.iter_mut();
        let mut found = found.filter(|found| found.replica.uid == regrant.replica.uid);
        let Some(found) = found.next() else { continue };
        match told_again(shared, wanted, regrant).await {
            Ok(Some(told)) => {
                tracing::info!(%session, pod, "an agent knows of the policies of now");
                found.told = Some(told);
            }
            Ok(None) => {}
            // It is tried again at the next look, which is soon.
            Err(why) => {
                tracing::warn!(%session, pod, why, "an agent does not know of new policies");
            }
        }
    }
}

/// None: the policies are those that the agent knows of.
async fn told_again(
    shared: &Shared,
    wanted: &Wanted,
    regrant: &Regrant,
) -> Result<Option<Told>, String> {
    let granted = policies::granted(shared, wanted, &regrant.replica).await;
    let granted = granted.map_err(|error| chain(&error))?;
    if regrant.knows.as_ref() == Some(&granted.policies) {
        return Ok(None);
    }
    let mode = agent_mode(&wanted.named, shared.settings.agent_mode);
    let request = NodeRequest::Grant {
        name: regrant.agent.ordered.name.clone(),
        grant: serde_json::to_value(&granted.grant).map_err(|error| error.to_string())?,
    };
    let asked = timeout(PATIENCE, ask(shared, &regrant.agent, mode, &request)).await;
    match asked.map_err(|_| "it is silent".to_owned())? {
        Ok(NodeAnswer { error: None, .. }) => Ok(Some(told(&granted))),
        Ok(NodeAnswer {
            error: Some(why), ..
        }) => {
            let ended = timeout(PATIENCE, end(shared, &regrant.agent, mode)).await;
            drop(ended);
            Err(why)
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Says something to an agent, wherever it is.
async fn ask(
    shared: &Shared,
    agent: &ObservedAgent,
    mode: AgentMode,
    request: &NodeRequest,
) -> Result<NodeAnswer, Trouble> {
    if mode == AgentMode::Node {
        let host = agent.host.as_deref().ok_or("nobody knows where it is")?;
        return Ok(shared.nodes.ask(host, request).await?);
    }
    let mut pipe = reach(shared, agent).await?;
    pipe.write_all(&message(request)?).await?;
    pipe.flush().await?;
    crate::nodes::answer(&mut pipe).await
}

async fn reach(shared: &Shared, agent: &ObservedAgent) -> Result<impl Pipe + use<>, Trouble> {
    let address = agent.address().ok_or("nobody knows where it is")?;
    dial_agent(&shared.identity, address.parse()?).await
}

/// Ends agents, writes the status, and lets the object go.
pub(super) async fn report(
    shared: &Shared,
    session: &MirrordClusterSession,
    plan: &Plan,
) -> Result<()> {
    let sessions: Api<MirrordClusterSession> = Api::all(shared.client.clone());
    let name = session.name_any();
    let mode = agent_mode(&session.spec.target, shared.settings.agent_mode);
    for agent in &plan.end {
        if let Err(error) = timeout(PATIENCE, end(shared, agent, mode))
            .await
            .unwrap_or_else(|late| Err(late.into()))
        {
            let agent = &agent.ordered.name;
            tracing::debug!(session = name, agent, %error, "an agent does not hear that it is to end");
        }
    }
    if let Some(report) = &plan.report {
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
        // Nobody else is left to say so.
        for port in session.status.iter().flat_map(|status| &status.ports) {
            audit::port_ends(session, port);
        }
        audit::session_ends(session);
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

fn gone_is_fine(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}

async fn end(shared: &Shared, agent: &ObservedAgent, mode: AgentMode) -> Result<(), Trouble> {
    let name = agent.ordered.name.clone();
    let request = NodeRequest::End { name };
    if mode == AgentMode::Node {
        return ask(shared, agent, mode, &request).await.map(drop);
    }
    let mut pipe = reach(shared, agent).await?;
    pipe.write_all(&message(&request)?).await?;
    pipe.flush().await?;
    // It says nothing, and ends: then so does the connection.
    let _ = pipe.read(&mut [0; 1]).await;
    Ok(())
}
