//! Targets of sessions: `deployment.checkout.container.app` in a resource name, `deployment/checkout` for users.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::GROUP_VERSION;
use crate::session::SessionPort;

/// The kinds of targets, with their names in resource names.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum TargetKind {
    Deployment,
    StatefulSet,
    DaemonSet,
    ReplicaSet,
    Job,
    CronJob,
    Service,
    Pod,
    Rollout,
    /// The pods that match a label selector.
    Label,
    /// No pod: the session only uses the cluster's network.
    Targetless,
}

impl TargetKind {
    pub const ALL: [TargetKind; 11] = [
        TargetKind::Deployment,
        TargetKind::StatefulSet,
        TargetKind::DaemonSet,
        TargetKind::ReplicaSet,
        TargetKind::Job,
        TargetKind::CronJob,
        TargetKind::Service,
        TargetKind::Pod,
        TargetKind::Rollout,
        TargetKind::Label,
        TargetKind::Targetless,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "deployment",
            Self::StatefulSet => "statefulset",
            Self::DaemonSet => "daemonset",
            Self::ReplicaSet => "replicaset",
            Self::Job => "job",
            Self::CronJob => "cronjob",
            Self::Service => "service",
            Self::Pod => "pod",
            Self::Rollout => "rollout",
            Self::Label => "label",
            Self::Targetless => "targetless",
        }
    }

    /// Whether a path of this kind names an object. Labels come in a parameter, and a session without a target has
    /// no object.
    pub fn is_named(self) -> bool {
        !matches!(self, Self::Label | Self::Targetless)
    }
}

impl fmt::Display for TargetKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// One target, as parsed from a resource name or from a user's configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetPath {
    pub kind: TargetKind,
    /// Empty for a kind that has no name.
    pub name: String,
    /// The target container. If absent, the operator chooses one.
    pub container: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTarget {
    #[error("`{0}` is no kind of target; there are {known}", known = kind_names())]
    UnknownKind(String),
    #[error(
        "`{0}` names no {kind}; write `{kind}.NAME` or `{kind}.NAME.container.CONTAINER`",
        kind = kind_part(.0)
    )]
    NoName(String),
    #[error("`{0}` is not a name that an object of Kubernetes can have")]
    InvalidName(String),
    #[error("`{0}` is not a name that a container can have")]
    InvalidContainer(String),
}

fn kind_names() -> String {
    TargetKind::ALL.map(TargetKind::as_str).join(", ")
}

fn kind_part(text: &str) -> &str {
    text.split(['.', '/']).next().unwrap_or(text)
}

impl TargetPath {
    /// Parses the form of resource names. The name of the object may contain dots, the container's cannot.
    pub fn from_address(text: &str) -> Result<Self, InvalidTarget> {
        let (kind, rest) = text.split_once('.').unwrap_or((text, ""));
        let kind = kind_of(kind)?;
        let (name, container) = match rest.rsplit_once(".container.") {
            Some((name, container)) => (name, Some(container)),
            None => match rest.strip_prefix("container.") {
                Some(container) if !kind.is_named() => ("", Some(container)),
                _ => (rest, None),
            },
        };
        Self::checked(kind, name, container, text)
    }

    fn checked(
        kind: TargetKind,
        name: &str,
        container: Option<&str>,
        text: &str,
    ) -> Result<Self, InvalidTarget> {
        if kind.is_named() && name.is_empty() {
            return Err(InvalidTarget::NoName(text.to_owned()));
        }
        if !kind.is_named() && !name.is_empty() || kind.is_named() && !is_object_name(name) {
            return Err(InvalidTarget::InvalidName(name.to_owned()));
        }
        if let Some(container) = container
            && !is_label(container)
        {
            return Err(InvalidTarget::InvalidContainer(container.to_owned()));
        }
        Ok(Self {
            kind,
            name: name.to_owned(),
            container: container.map(str::to_owned),
        })
    }

    /// The name of the object `targets/…`, which the `resourceNames` of RBAC rules contain.
    pub fn address(&self) -> String {
        self.joined(".")
    }

    fn joined(&self, separator: &str) -> String {
        let mut text = self.kind.as_str().to_owned();
        if !self.name.is_empty() {
            text = format!("{text}{separator}{}", self.name);
        }
        if let Some(container) = &self.container {
            text = format!("{text}{separator}container{separator}{container}");
        }
        text
    }

    /// The target without its container, for authorization.
    pub fn without_container(&self) -> Self {
        Self {
            container: None,
            ..self.clone()
        }
    }
}

/// The form for users: `deployment/checkout/container/app`.
impl fmt::Display for TargetPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.joined("/"))
    }
}

impl FromStr for TargetPath {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<Self, InvalidTarget> {
        let mut parts = text.splitn(2, '/');
        let kind = kind_of(parts.next().unwrap_or_default())?;
        let rest = parts.next().unwrap_or_default();
        let (name, container) = match rest.split_once("/container/") {
            Some((name, container)) => (name, Some(container)),
            None => (rest, None),
        };
        Self::checked(kind, name, container, text)
    }
}

fn kind_of(text: &str) -> Result<TargetKind, InvalidTarget> {
    TargetKind::ALL
        .into_iter()
        .find(|kind| kind.as_str() == text)
        .ok_or_else(|| InvalidTarget::UnknownKind(text.to_owned()))
}

/// Whether this is a DNS subdomain name: labels joined by dots.
fn is_object_name(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_label)
}

fn is_label(label: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !label.is_empty()
        && label.len() <= 63
        && label.bytes().all(inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// A possible target of sessions, served live.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    pub api_version: String,
    pub kind: String,
    #[schemars(with = "AnyObject")]
    pub metadata: ObjectMeta,
    pub spec: TargetSpec,
    #[serde(default)]
    pub status: TargetStatus,
}

impl Target {
    pub const KIND: &str = "Target";

    pub fn new(namespace: &str, path: &TargetPath, spec: TargetSpec, status: TargetStatus) -> Self {
        Self {
            api_version: GROUP_VERSION.to_owned(),
            kind: Self::KIND.to_owned(),
            metadata: ObjectMeta {
                name: Some(path.address()),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            spec,
            status,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetSpec {
    /// The form for users: `deployment/checkout`.
    pub target: String,
    /// The containers that can be the target container.
    pub containers: Vec<String>,
    /// The ports that the containers declare.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetStatus {
    /// The desired number of pods, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The running sessions with this target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sessions: Vec<TargetSession>,
    /// The clusters that have the target, where the operator coordinates several. Ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
}

/// A running session with a target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetSession {
    pub id: String,
    pub user: String,
    /// The ports that the session steals from or mirrors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<SessionPort>,
}

/// Object metadata, whose schema Kubernetes defines.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct AnyObject {}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(kind: TargetKind, name: &str, container: Option<&str>) -> TargetPath {
        TargetPath {
            kind,
            name: name.to_owned(),
            container: container.map(str::to_owned),
        }
    }

    #[test]
    fn both_forms_parse_and_print() {
        use TargetKind::{CronJob, Deployment, Pod, Targetless};
        let cases = [
            (
                "deployment.checkout",
                "deployment/checkout",
                path(Deployment, "checkout", None),
            ),
            (
                "pod.web-0.container.app",
                "pod/web-0/container/app",
                path(Pod, "web-0", Some("app")),
            ),
            (
                "deployment.shop.example.container.app",
                "deployment/shop.example/container/app",
                path(Deployment, "shop.example", Some("app")),
            ),
            // Only the last `.container.` separates the container.
            (
                "cronjob.a.container.b.container.c",
                "cronjob/a.container.b/container/c",
                path(CronJob, "a.container.b", Some("c")),
            ),
            ("targetless", "targetless", path(Targetless, "", None)),
        ];
        for (address, written, expected) in cases {
            assert_eq!(TargetPath::from_address(address), Ok(expected.clone()));
            assert_eq!(written.parse(), Ok(expected.clone()));
            assert_eq!(expected.address(), address);
            assert_eq!(expected.to_string(), written);
        }
    }

    #[test]
    fn errors_explain_invalid_targets() {
        let cases = [
            (
                "deploy.checkout",
                "`deploy` is no kind of target; there are deployment, statefulset, daemonset, replicaset, job, \
                 cronjob, service, pod, rollout, label, targetless",
            ),
            (
                "deployment",
                "`deployment` names no deployment; write `deployment.NAME` or `deployment.NAME.container.CONTAINER`",
            ),
            (
                "deployment.Checkout",
                "`Checkout` is not a name that an object of Kubernetes can have",
            ),
            (
                "deployment.a/../b",
                "`a/../b` is not a name that an object of Kubernetes can have",
            ),
            (
                "pod.web.container.a_b",
                "`a_b` is not a name that a container can have",
            ),
            (
                "targetless.x",
                "`x` is not a name that an object of Kubernetes can have",
            ),
        ];
        for (address, message) in cases {
            let error = TargetPath::from_address(address).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }
}
