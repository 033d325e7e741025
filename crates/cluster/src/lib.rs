//! Kubernetes verbs: resolve a target to pods, start an agent beside one, and reach it.
//!
//! ```text
//! Access -> Cluster -> Workload -> Replicas (pods that come and go) -> Replica -> Agent -> a dialer for a link
//! ```
//!
//! Everything is done with the rights of the user. What is missing is said as the rule to ask for ([`Right`]), and what the
//! cluster refuses as the field that it refuses ([`Refusal`]). An agent is either a container in the target's pod
//! or a pod on its node; it is reached through the API server by port-forwards, each
//! of which is one connection of a link that outlives them.
//!
//! What decides is pure, and apart from what asks the API server: [`pod`] which pods can be used, `agent/manifest` what an
//! agent is made of, [`refusal`] what an answer means.

mod access;
mod agent;
mod client;
mod error;
mod forward;
mod list;
mod look;
mod operator;
pub mod pod;
pub mod refusal;
mod replicas;
mod resolve;
mod rights;
mod target;

pub use access::{Access, Cluster};
pub use agent::{
    Agent, AgentDialer, AgentSettings, Order, Ordered, OrderedState, PORTS, PodSettings, Reachable,
    Toleration, ordered, ordered_as_pod,
};
pub use client::client;
pub use error::{Error, Result};
pub use list::{Listed, Listing, has_namespace, list};
pub use look::pods_of;
pub use operator::{
    CarriedDialer, Carrier, OperatorConnection, OperatorReplicas, OperatorSession, PlaceDialer,
    end_session, has_operator, list_through_operator, operator, operator_replicas, session,
    sessions,
};
pub use pod::{Replica, Unfit};
pub use refusal::Refusal;
pub use replicas::{Known, Replicas};
pub use rights::{Right, role};
pub use target::{Kind, Workload};
