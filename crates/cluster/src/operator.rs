//! Sessions through an operator: one WebSocket through the API server, and channels to an agent in each pod.
//!
//! ```text
//! has_operator -> OperatorSession -> Carrier (connections that come and go) -> CarriedDialer -> a link to an agent
//! ```
//!
//! The operator makes the agents and relays bytes that it cannot read. What it needs to carry a session on is in the
//! session's object, so a lost connection is made again through whichever replica answers, and the links resume. What the
//! operator is asked beside that (what it is, who uses it, what there is to stand in for) is in `ask`.

mod ask;
mod carrier;
mod connection;
mod find;
mod refusal;

pub use ask::{
    OperatorReplicas, end_session, list_through_operator, operator, operator_replicas, session,
    sessions,
};
pub use carrier::{CarriedDialer, Carrier};
pub use connection::{OperatorConnection, OperatorSession, PlaceDialer};
pub use find::has_operator;
