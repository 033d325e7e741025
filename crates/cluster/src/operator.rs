//! Sessions through an operator: one WebSocket through the API server, and channels to an agent in each pod.
//!
//! ```text
//! has_operator -> OperatorSession -> ReconnectingOperator -> ReconnectingDialer -> a link to an agent
//! ```
//!
//! The operator starts the agents and relays encrypted bytes. The state of a session is in its Kubernetes object, so the
//! client can reconnect through any replica, and the links resume. The module `queries` has the other requests to an
//! operator: its status, its sessions, and the targets.

mod connection;
mod discovery;
mod queries;
mod reconnecting;
mod refusal;

pub use connection::{EndpointDialer, OperatorConnection, OperatorSession};
pub use discovery::has_operator;
pub use queries::{
    OperatorReplicas, end_session, get_operator, get_session, list_sessions, list_through_operator,
    operator_replicas,
};
pub use reconnecting::{ReconnectingDialer, ReconnectingOperator};
