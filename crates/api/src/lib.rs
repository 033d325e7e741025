//! The Kubernetes API of the operator, as types: custom resources, objects that are served live, resource names of
//! targets, and the parameters of a connection.
//!
//! Groups, kinds and fields have the names that existing clients, manifests and RBAC rules use. A field that only this
//! operator has is marked "Ours" in its documentation. Nothing here does I/O or reads a clock.
//!
//! | module | contents |
//! |---|---|
//! | [`connect`] | connect parameters of a client, and the agent endpoints that the operator sends back |
//! | [`data`] | database branches and queue splits of a session |
//! | [`feature`] | the features that an operator advertises |
//! | [`hub`] | the HTTP API of a hub, and its messages to and from tunnel agents |
//! | [`managed_cluster`] | the registry of a hub |
//! | [`multicluster`] | the parent object of a session over several clusters |
//! | [`node`] | the protocol between the operator and agents: serve, list, grant, ports, end |
//! | [`operator`] | the object `mirrordoperators/operator`: version, features, running sessions |
//! | [`policy`] | the administrators' policies |
//! | [`session`] | the stored session object, and the one that `standin operator session` lists |
//! | [`target`] | target paths, and the object `targets/…` |

pub mod connect;
pub mod data;
pub mod feature;
pub mod hub;
pub mod managed_cluster;
pub mod multicluster;
pub mod node;
pub mod operator;
pub mod policy;
pub mod session;
pub mod target;

pub use connect::{ConnectParameters, InvalidParameters, OnConcurrentSteal};
pub use data::SessionData;
pub use feature::Feature;
pub use managed_cluster::{ManagedCluster, ManagedClusterSpec, ManagedClusterStatus};
pub use multicluster::{
    MirrordMultiClusterSession, MirrordMultiClusterSessionSpec, MirrordMultiClusterSessionStatus,
};
pub use operator::{MirrordOperator, MirrordOperatorSpec, MirrordOperatorStatus};
pub use policy::{MirrordClusterPolicy, MirrordPolicy};
pub use session::{MirrordClusterSession, MirrordClusterSessionSpec, MirrordClusterSessionStatus};
pub use target::{InvalidTarget, Target, TargetKind, TargetPath, TargetSpec};

/// The API group that the operator serves as an aggregated API server, and its version.
pub const GROUP: &str = "operator.metalbear.co";
pub const VERSION: &str = "v1";
pub const GROUP_VERSION: &str = "operator.metalbear.co/v1";

/// The definition of the custom resource that the hub stores, for its chart.
pub fn hub_custom_resource_definition()
-> k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition {
    use kube::CustomResourceExt as _;
    ManagedCluster::crd()
}

/// The definitions of the custom resources that the operator stores, for the chart and for tests.
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
