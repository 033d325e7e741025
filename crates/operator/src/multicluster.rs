//! Sessions over several clusters: this operator is the *Primary*, which clients connect to. It coordinates sessions in
//! *member clusters* through their own operators.
//!
//! | module | what it does |
//! |---|---|
//! | [`auth`] | credentials for members |
//! | [`bounds`] | limits of what a member may write into memory and objects |
//! | [`clusters`] | the administrator's configuration, validated |
//! | [`configuration`] | reads and follows the configuration |
//! | [`environment`] | environment variables |
//! | [`member_client`] | keeps a client for each member: watches credentials, checks health |
//! | [`member_clusters`] | all members; admits clients and relays their connections to members |
//! | [`sessions`] | the controller of parent and child sessions |
//! | [`targets`] | the targets of all clusters |

pub(crate) mod auth;
pub(crate) mod bounds;
pub(crate) mod clusters;
pub(crate) mod configuration;
pub(crate) mod environment;
#[cfg(test)]
mod hostile;
pub(crate) mod member_client;
pub(crate) mod member_clusters;
pub(crate) mod sessions;
#[cfg(test)]
pub(crate) mod stub;

pub(crate) mod targets;
