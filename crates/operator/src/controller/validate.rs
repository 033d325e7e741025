//! Validates the spec of a session.

use std::time::Duration;

use api::session::SessionId;
use api::{InvalidTarget, MirrordClusterSession, TargetKind, TargetPath};
use cluster::{Kind, Workload};
use link::tls::Fingerprint;

use crate::settings::AgentMode;

/// A valid spec of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValidatedSpec {
    pub(crate) id: SessionId,
    /// The namespace of the target, or of a session without one.
    pub(crate) namespace: String,
    /// `None`: the session uses the network of its namespace, and nothing else.
    pub(crate) target: Option<Workload>,
    /// The target's path as the client requested it, without its container.
    pub(crate) target_path: String,
    /// The session's user, as authenticated by the API server.
    pub(crate) holder: String,
    pub(crate) client: Fingerprint,
    pub(crate) resume_window: Duration,
    /// The highest number that earlier sessions of the same name may have used for agents and channels.
    pub(crate) number_offset: u32,
}

/// The numbers of one generation. A session with more pods than this may use numbers of the next generation.
const NUMBERS_PER_GENERATION: u32 = 256;
/// After this many generations, numbers are reused. The numbers of all generations fit into the 20 bits of an endpoint
/// number.
const MAX_GENERATIONS: u32 = 4096;

impl ValidatedSpec {
    /// The prefix of the names of the session's agents.
    pub(crate) fn agent_prefix(&self) -> String {
        format!("standin-agent-{}-", self.id)
    }
}

/// The agent mode of a session. Without a target, there is no pod or node for the agent, so it is a separate pod.
pub(crate) fn agent_mode(target: &str, configured: AgentMode) -> AgentMode {
    match target == TargetKind::Targetless.as_str() {
        true => AgentMode::Pod,
        false => configured,
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("the session's object has the name `{0}`, which contains no session id")]
    Name(String),
    #[error(transparent)]
    Target(#[from] InvalidTarget),
    #[error("the client's certificate is no SHA-256")]
    Certificate,
    #[error("a target of the kind `label` needs `label_target`, such as `app=checkout`")]
    NoLabels,
}

pub(crate) fn validate(session: &MirrordClusterSession) -> Result<ValidatedSpec, Invalid> {
    let name = session.metadata.name.clone().unwrap_or_default();
    let spec = &session.spec;
    let path = spec.target_path()?;
    Ok(ValidatedSpec {
        id: SessionId::from_object_name(&name).ok_or(Invalid::Name(name))?,
        namespace: spec.namespace.clone(),
        target: workload(&spec.namespace, &path, spec.label_target.as_deref())?,
        target_path: path.without_container().to_string(),
        holder: spec.owner.k8s_username.clone(),
        client: spec
            .client_certificate
            .parse()
            .map_err(|_| Invalid::Certificate)?,
        resume_window: Duration::from_secs(spec.resume_window_secs),
        number_offset: spec.generation % MAX_GENERATIONS * NUMBERS_PER_GENERATION,
    })
}

/// The target as a workload of the crate `cluster`. `None` for a session without a target.
pub(crate) fn workload(
    namespace: &str,
    path: &TargetPath,
    labels: Option<&str>,
) -> Result<Option<Workload>, Invalid> {
    let kind = match path.kind {
        TargetKind::Deployment => Kind::Deployment,
        TargetKind::StatefulSet => Kind::StatefulSet,
        TargetKind::DaemonSet => Kind::DaemonSet,
        TargetKind::ReplicaSet => Kind::ReplicaSet,
        TargetKind::Job => Kind::Job,
        TargetKind::CronJob => Kind::CronJob,
        TargetKind::Service => Kind::Service,
        TargetKind::Pod => Kind::Pod,
        TargetKind::Rollout => Kind::Rollout,
        TargetKind::Label => Kind::Selector,
        TargetKind::Targetless => return Ok(None),
    };
    let name = match kind {
        Kind::Selector => labels
            .filter(|labels| !labels.is_empty())
            .ok_or(Invalid::NoLabels)?,
        _ => &path.name,
    };
    Ok(Some(Workload {
        namespace: namespace.to_owned(),
        kind,
        name: name.to_owned(),
        container: path.container.clone(),
    }))
}
