//! What a session asks for, checked once.

use std::time::Duration;

use api::session::SessionId;
use api::{InvalidTarget, MirrordClusterSession, TargetKind, TargetPath};
use cluster::{Kind, Workload};
use link::tls::Fingerprint;

use crate::settings::AgentMode;

/// A session that can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) id: SessionId,
    /// Where the target is, or the session that has none.
    pub(crate) namespace: String,
    /// None: the session has the network of its namespace, and nothing else.
    pub(crate) target: Option<Workload>,
    /// The target as the client named it, without its container.
    pub(crate) named: String,
    /// Whose session it is, as the API server knows.
    pub(crate) holder: String,
    pub(crate) client: Fingerprint,
    pub(crate) resume_window: Duration,
    /// The last numbers that sessions of the same name may have given to agents and channels.
    pub(crate) numbered_after: u32,
}

/// So many pods come and go in a session before one that follows it may repeat a number.
const NUMBERS: u32 = 256;
/// So many sessions follow one another before a number comes again. Places have 20 bits for all of them.
const GENERATIONS: u32 = 4096;

impl Wanted {
    /// What the names of the session's agents begin with.
    pub(crate) fn agent_prefix(&self) -> String {
        format!("standin-agent-{}-", self.id)
    }
}

/// Where the agents of a session are. Without a target there is no pod to be in, and no node to be on.
pub(crate) fn agent_mode(target: &str, configured: AgentMode) -> AgentMode {
    match target == TargetKind::Targetless.as_str() {
        true => AgentMode::Pod,
        false => configured,
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("the session's object has the name `{0}`, which is not made of a session's id")]
    Name(String),
    #[error(transparent)]
    Target(#[from] InvalidTarget),
    #[error("the client's certificate is no SHA-256")]
    Certificate,
    #[error("a target of the kind `label` needs `label_target`, such as `app=checkout`")]
    NoLabels,
}

pub(crate) fn validate(session: &MirrordClusterSession) -> Result<Wanted, Invalid> {
    let name = session.metadata.name.clone().unwrap_or_default();
    let spec = &session.spec;
    let path = spec.target_path()?;
    Ok(Wanted {
        id: SessionId::from_object_name(&name).ok_or(Invalid::Name(name))?,
        namespace: spec.namespace.clone(),
        target: workload(&spec.namespace, &path, spec.label_target.as_deref())?,
        named: path.without_container().to_string(),
        holder: spec.owner.k8s_username.clone(),
        client: spec
            .client_certificate
            .parse()
            .map_err(|_| Invalid::Certificate)?,
        resume_window: Duration::from_secs(spec.resume_window_secs),
        numbered_after: spec.generation % GENERATIONS * NUMBERS,
    })
}

/// A target as the cluster's crate knows it, if there is to be one.
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
