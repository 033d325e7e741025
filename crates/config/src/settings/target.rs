//! `target`: what the process stands in for.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::short_forms;

pub(super) const EXAMPLES: &[&str] = &[
    "process/1234",
    "container/checkout",
    "deployment/checkout",
    "pod/checkout-5d9/container/app",
    "selector/app=checkout",
];

/// What the process stands in for
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = short_forms::target)]
pub struct TargetSettings {
    /// The target: `process/<pid>` or `container/<name>` on this machine, `<kind>/<name>` with an optional
    /// `/container/<name>` in a cluster, or `targetless`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "Target::json_schema", extend("default" = null))]
    pub path: Option<Target>,

    /// The namespace of a workload in a cluster. The default is that of the current Kubernetes context.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null, "examples" = ["shop"]))]
    pub namespace: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Target {
    /// No target: only the network of a namespace.
    Targetless,
    /// A process on this machine.
    Process(u32),
    /// A container on this machine.
    Container(String),
    /// An object in a cluster that has pods.
    Workload {
        kind: WorkloadKind,
        name: String,
        container: Option<String>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkloadKind {
    Pod,
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
    Service,
    Rollout,
    /// Pods by their labels; the name is the selector.
    Selector,
}

/// Why a text is not a target.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TargetError {
    #[error("a target has a kind and a name, as in `deployment/checkout`")]
    NoName,
    #[error("there are no targets of the kind `{0}`")]
    UnknownKind(String),
    #[error("`{0}` is not a process id")]
    NotAProcess(String),
    #[error("after the name there can only be `/container/<name>`")]
    Rest,
}

impl WorkloadKind {
    pub const ALL: [Self; 10] = [
        Self::Pod,
        Self::Deployment,
        Self::ReplicaSet,
        Self::StatefulSet,
        Self::DaemonSet,
        Self::Job,
        Self::CronJob,
        Self::Service,
        Self::Rollout,
        Self::Selector,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Deployment => "deployment",
            Self::ReplicaSet => "replicaset",
            Self::StatefulSet => "statefulset",
            Self::Job => "job",
            Self::CronJob => "cronjob",
            Self::Service => "service",
            Self::Rollout => "rollout",
            Self::DaemonSet => "daemonset",
            Self::Selector => "selector",
        }
    }

    fn named(name: &str) -> Option<Self> {
        // The name in the API of existing operators.
        let name = if name == "label" { "selector" } else { name };
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl Target {
    /// The keys of labels may contain a slash, so a selector extends as far as possible.
    fn selector(parts: &[&str]) -> Self {
        let (parts, container) = match parts {
            [selector @ .., "container", container] if !selector.is_empty() => {
                (selector, Some((*container).to_owned()))
            }
            parts => (parts, None),
        };
        Self::Workload {
            kind: WorkloadKind::Selector,
            name: parts.join("/"),
            container,
        }
    }

    /// The possible first parts of a target's path.
    pub(crate) fn kinds() -> Vec<&'static str> {
        let workloads = WorkloadKind::ALL.into_iter().map(WorkloadKind::as_str);
        ["process", "container"]
            .into_iter()
            .chain(workloads)
            .collect()
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let parts: Vec<&str> = text.split('/').collect();
        match parts.as_slice() {
            ["targetless"] => return Ok(Self::Targetless),
            [_] => return Err(TargetError::NoName),
            parts if parts.contains(&"") => return Err(TargetError::NoName),
            ["process", id] => {
                return match id.parse() {
                    Ok(id) if id > 0 => Ok(Self::Process(id)),
                    _ => Err(TargetError::NotAProcess((*id).to_owned())),
                };
            }
            ["container", name] => return Ok(Self::Container((*name).to_owned())),
            _ => {}
        }
        let (kind, name, rest) = (parts[0], parts[1], &parts[2..]);
        if WorkloadKind::named(kind) == Some(WorkloadKind::Selector) {
            return Ok(Self::selector(&parts[1..]));
        }
        let Some(kind) = WorkloadKind::named(kind) else {
            return Err(match kind {
                "process" | "container" => TargetError::Rest,
                _ => TargetError::UnknownKind(kind.to_owned()),
            });
        };
        let container = match rest {
            [] => None,
            ["container", container] => Some((*container).to_owned()),
            _ => return Err(TargetError::Rest),
        };
        Ok(Self::Workload {
            kind,
            name: name.to_owned(),
            container,
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Targetless => formatter.write_str("targetless"),
            Self::Process(id) => write!(formatter, "process/{id}"),
            Self::Container(name) => write!(formatter, "container/{name}"),
            Self::Workload {
                kind,
                name,
                container,
            } => {
                write!(formatter, "{}/{name}", kind.as_str())?;
                match container {
                    Some(container) => write!(formatter, "/container/{container}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl TryFrom<String> for Target {
    type Error = TargetError;

    fn try_from(text: String) -> Result<Self, TargetError> {
        text.parse()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> Self {
        target.to_string()
    }
}

impl JsonSchema for Target {
    fn schema_name() -> Cow<'static, str> {
        "Target".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let kinds: serde_json::Map<String, serde_json::Value> = Self::kinds()
            .into_iter()
            .map(|kind| {
                let name = match kind {
                    "process" => serde_json::json!({ "type": ["string", "integer"] }),
                    _ => serde_json::json!({ "type": "string" }),
                };
                (kind.to_owned(), name)
            })
            .collect();
        let short =
            serde_json::json!({ "type": "string", "x-check": "target", "examples": EXAMPLES });
        json_schema!({
            "anyOf": [
                { "type": "object", "properties": kinds, "additionalProperties": false, "maxProperties": 2 },
                short,
            ],
            "x-expand": "target-path",
            "x-allowed": "text such as `deployment/checkout`, or a map of a kind and a name, with the name of a `container` if needed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_and_written_back() {
        for text in [
            "targetless",
            "process/1234",
            "container/checkout",
            "pod/a",
            "deployment/checkout",
            "deployment/checkout/container/app",
            "rollout/r/container/c",
            "cronjob/nightly",
            "statefulset/db",
            "service/front",
            "replicaset/x",
            "job/y",
            "daemonset/z/container/c",
            "selector/app=checkout,tier!=front",
            "selector/app.kubernetes.io/name=checkout",
            "selector/app.kubernetes.io/name=checkout/container/app",
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!(target.to_string(), text);
        }
    }

    #[test]
    fn invalid_targets_have_a_reason() {
        for (text, error) in [
            ("", TargetError::NoName),
            ("checkout", TargetError::NoName),
            ("pod/", TargetError::NoName),
            ("/pod/a", TargetError::NoName),
            ("pods/a", TargetError::UnknownKind("pods".to_owned())),
            ("process/x", TargetError::NotAProcess("x".to_owned())),
            ("process/0", TargetError::NotAProcess("0".to_owned())),
            ("process/1/container/x", TargetError::Rest),
            ("pod/a/b", TargetError::Rest),
            ("pod/a/container/b/c", TargetError::Rest),
        ] {
            assert_eq!(text.parse::<Target>(), Err(error), "{text}");
        }
    }
}
