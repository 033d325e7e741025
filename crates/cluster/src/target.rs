//! The target of a session in a cluster: an object that has pods.

use std::fmt;

/// A target in a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    pub namespace: String,
    pub kind: Kind,
    /// The object's name. For a [`Kind::Selector`], the label selector.
    pub name: String,
    /// The container, if the pods have several.
    pub container: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Deployment,
    StatefulSet,
    DaemonSet,
    ReplicaSet,
    Rollout,
    CronJob,
    Job,
    Service,
    Selector,
    Pod,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "deployment",
            Self::StatefulSet => "statefulset",
            Self::DaemonSet => "daemonset",
            Self::ReplicaSet => "replicaset",
            Self::Rollout => "rollout",
            Self::CronJob => "cronjob",
            Self::Job => "job",
            Self::Service => "service",
            Self::Selector => "selector",
            Self::Pod => "pod",
        }
    }

    /// The API group and the resource in RBAC rules. A selector is no object and has none.
    pub(crate) fn resource(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Self::Deployment => ("apps", "deployments"),
            Self::StatefulSet => ("apps", "statefulsets"),
            Self::DaemonSet => ("apps", "daemonsets"),
            Self::ReplicaSet => ("apps", "replicasets"),
            Self::Rollout => ("argoproj.io", "rollouts"),
            Self::CronJob => ("batch", "cronjobs"),
            Self::Job => ("batch", "jobs"),
            Self::Service => ("", "services"),
            Self::Pod => ("", "pods"),
            Self::Selector => return None,
        })
    }
}

/// The format of the command line, without the namespace.
impl fmt::Display for Workload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.kind.as_str(), self.name)?;
        match &self.container {
            Some(container) => write!(formatter, "/container/{container}"),
            None => Ok(()),
        }
    }
}
