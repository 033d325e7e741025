//! The client side of Kubernetes: resolve a target to pods, start an agent beside one, and connect to it.
//!
//! ```text
//! Access -> Cluster -> Workload -> Replicas (a watch of pods) -> Replica -> ClusterAgent -> a dialer for a link
//! ```
//!
//! All requests use the rights of the user. Errors name the rule to ask for ([`Right`]), or the fields that the cluster
//! refuses ([`Refusal`]). An agent is either an ephemeral container in the target's pod or a pod on its node. Clients reach
//! it through the API server by port-forwards. Each of them is one connection of a link, and the link outlives them.
//!
//! Decisions are pure functions, apart from the requests to the API server: see `pod`, `agent/manifest` and `refusal`.
//!
//! | module | what it does |
//! |---|---|
//! | `access` | reads the kubeconfig: [`Cluster`] |
//! | `token` | the token of a context, for other servers that accept it: [`bearer_token`] |
//! | `client`, `bounded` | creates the HTTP client for the API server, and limits the responses of one that is not trusted |
//! | `target`, `resolve` | the target, and the selection of its pods |
//! | [`pod`] | decides which pods and containers are usable: [`Replica`] |
//! | `replicas`, `target_pods` | watch the pods of a target, or list them once |
//! | `owner` | decides which pods a target controls: [`PodOwners`] |
//! | `agent` | starts agents and connects to them: [`ClusterAgent`], [`AgentSpec`], [`AgentInstance`] |
//! | `forward` | dials a port of a pod through the API server |
//! | `operator` | sessions through an operator, and requests to it |
//! | `list` | lists possible targets |
//! | `rights`, [`refusal`], `error` | missing rights, denied agents, and all other errors |

mod access;
mod agent;
mod bounded;
mod client;
mod error;
mod forward;
mod list;
mod operator;
mod owner;
pub mod pod;
pub mod refusal;
mod replicas;
mod resolve;
mod rights;
mod target;
mod target_pods;
mod token;

pub use access::{Access, Cluster};
pub use agent::{
    AGENT_PORTS, AgentDialer, AgentInstance, AgentInstanceState, AgentSettings, AgentSpec,
    ClusterAgent, PodSettings, ReachableAgent, Toleration, agent_instances, job_agent_instance,
};
pub use bounded::{MAX_ERROR_BYTES, MAX_RESPONSE_BYTES, bounded};
pub use client::{client, client_with_roots};
pub use error::{Error, Result};
pub use list::{ListedTarget, Listing, has_namespace, list};
pub use operator::{
    EndpointDialer, OperatorConnection, OperatorReplicas, OperatorSession, ReconnectingDialer,
    ReconnectingOperator, end_session, get_operator, get_session, has_operator, list_sessions,
    list_through_operator, operator_replicas,
};
pub use owner::PodOwners;
pub use pod::{Replica, UnusablePod};
pub use refusal::Refusal;
pub use replicas::{Replicas, TargetPods};
pub use rights::{Right, role};
pub use target::{Kind, Workload};
pub use target_pods::list_target_pods;
pub use token::bearer_token;
