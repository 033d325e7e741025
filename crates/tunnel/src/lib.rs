//! The reverse tunnel's carrier: an agent dials out, and the hub sends requests to it over that connection.
//!
//! The hub cannot reach the agent, so the agent opens one connection and keeps it. Over it, HTTP/2 has its roles reversed:
//! the hub is the client, and each request is a stream of its own. The connection may be lost at any time; a
//! [link](::link) below HTTP/2 resumes it, so that a watch, a shell or a download continues after an interruption that is
//! shorter than the resume window.
//!
//! ```text
//!   hub                                              agent
//!   Session::send, upgrade                           a tower service
//!   -------------------- HTTP/2, the hub is its client ---------------------
//!   stream windows: how far a sender may be ahead of each reader
//!   -------------------- link: resumes after a lost connection -------------
//!   WebSocket, binary messages
//!   HTTP/1.1 upgrade with the protocol's version
//!   TLS with certificates of both ends
//!   TCP, or CONNECT through a proxy
//! ```
//!
//! This crate knows nothing of Kubernetes, and nothing of what is in a certificate: the hub says which peer it has
//! authenticated, and the agent gets its TLS configuration for every dial.
//!
//! | module | what it does |
//! |---|---|
//! | `acceptor` | the hub's side: answers an agent's upgrade request |
//! | `session` | the hub's side: requests to one agent, limits, the end and its reason |
//! | `run`, `backoff` | the agent's side: connects, serves, connects again |
//! | `dial`, `proxy`, `tls` | the agent's side: one connection to the hub, and why it failed |
//! | `greeting` | the upgrade request and its response, without I/O |
//! | `flow` | windows of streams that grow while their reader keeps up |
//! | `limits` | how many streams, new streams per second and bytes a tunnel may have |
//! | [`upgrade`] | upgraded HTTP/1.1 connections as streams of the tunnel |
//! | [`lines`] | JSON messages as lines of a body |
//! | `websocket` | a byte stream in binary WebSocket messages |
//! | `settings`, `error` | limits and timeouts, errors |

mod acceptor;
mod backoff;
mod body;
mod dial;
mod error;
mod flow;
mod greeting;
mod limits;
pub mod lines;
mod proxy;
mod run;
mod serve;
mod session;
mod settings;
mod tls;
pub mod upgrade;
mod websocket;

pub use link::http2::{BodySender, BoxBody, BoxError, StreamingBody, body};

pub use self::acceptor::{Accepted, Acceptor, Refused};
pub use self::body::Body;
pub use self::error::{EndReason, Error};
pub use self::greeting::{
    CLUSTER_HEADER, CONNECT_PATH, MIN_VERSION, RESERVED_PATH, VERSION, VERSION_HEADER,
};
pub use self::limits::{Limit, Limits};
pub use self::proxy::{Proxy, ProxyRules};
pub use self::run::{Credentials, Ended, Status, run};
pub use self::session::{Session, SessionId, SessionStatus, Statistics};
pub use self::settings::{AcceptorSettings, KeepAlive, Reconnect, Settings};
pub use self::tls::accept_tls;

#[cfg(test)]
mod tests;
