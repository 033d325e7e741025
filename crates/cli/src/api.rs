//! The local API of sessions: each has a socket in one folder, which only the user can open.

pub(crate) mod client;
pub(crate) mod folder;
