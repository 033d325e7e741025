//! One session over several clusters: this operator is the *Primary*, which clients connect to, and drives sessions in
//! *members* through their own operators.
//!
//! [`clusters`] is what the administrator configured, checked once. [`auth`] is how a member is convinced of who we are,
//! [`sync`] keeps a client for each member by it, and [`envoy`] is what the rest of the operator asks: it also carries the
//! bytes of clients to members. [`sessions`] are the objects, in the Primary and in members. [`targets`] is what all of
//! them have to stand in for.

pub(crate) mod auth;
pub(crate) mod clusters;
pub(crate) mod environment;
pub(crate) mod envoy;
pub(crate) mod sessions;
#[cfg(test)]
pub(crate) mod stub;
pub(crate) mod sync;
pub(crate) mod targets;

pub use self::clusters::{InvalidClusters, MultiCluster};
