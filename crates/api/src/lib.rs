//! The Kubernetes API of the operator, as types: custom resources, objects that are served live, addresses of targets,
//! and what a client says when it connects.
//!
//! Groups, kinds and fields have the names that existing clients, manifests and RBAC rules speak. Where a field is ours
//! alone, its documentation says so. Nothing here does I/O or reads a clock.

pub mod connect;
pub mod data;
pub mod feature;
pub mod multicluster;
pub mod node;
pub mod operator;
pub mod policy;
pub mod session;
pub mod target;

pub use connect::{ConnectParameters, InvalidParameters, OnConcurrentSteal};
pub use data::SessionData;
pub use feature::Feature;
pub use multicluster::{
    MirrordMultiClusterSession, MirrordMultiClusterSessionSpec, MirrordMultiClusterSessionStatus,
};
pub use operator::{MirrordOperator, MirrordOperatorSpec, MirrordOperatorStatus};
pub use policy::{MirrordClusterPolicy, MirrordPolicy};
pub use session::{MirrordClusterSession, MirrordClusterSessionSpec, MirrordClusterSessionStatus};
pub use target::{InvalidTarget, Target, TargetKind, TargetPath, TargetSpec};

/// The group that the operator serves live, and its version.
pub const GROUP: &str = "operator.metalbear.co";
pub const VERSION: &str = "v1";
pub const GROUP_VERSION: &str = "operator.metalbear.co/v1";

/// The custom resources that the operator stores, for charts and for tests.
pub fn custom_resource_definitions()
-> Vec<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition>
{
    use kube::CustomResourceExt as _;
    vec![
        MirrordClusterSession::crd(),
        MirrordMultiClusterSession::crd(),
        MirrordPolicy::crd(),
        MirrordClusterPolicy::crd(),
    ]
}
