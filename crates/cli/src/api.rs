//! The client of the local API of sessions. Each session has a socket in one folder, which only the user can open.

pub(crate) mod client;
pub(crate) mod folder;
