//! A byte pipe that survives the network, and HTTP/2 over it.
//!
//! Connections between a laptop and a cluster are lost all the time: Wi-Fi changes, a lid is closed, a relay on the way
//! is restarted. A [`Link`] is a stream of bytes in both directions that does not end with the connection that carries
//! it. Bytes are numbered; the sender keeps them until they are acknowledged; after a loss a new connection is made,
//! both ends say how far they have read, and the rest is sent again. Whoever reads and writes the link sees a pause.
//!
//! ```text
//!   user   read, write                     HTTP/2, gRPC, anything
//!          --------------------------------------------------------
//!   Link   numbers, acknowledgements, replay, keep-alive, re-dialling
//!          --------------------------------------------------------
//!   pipe   TCP, TLS, WebSocket, a port of a pod through Kubernetes: comes and goes
//! ```
//!
//! The client makes a link with [`Link::connect`] and a [`Dial`], which makes pipes. The server gives each pipe that
//! somebody opened to [`LinkServer::accept`], which hands out new links and gives pipes to links that come back.
//!
//! What can be decided without I/O is decided without it: `machine` is the whole protocol as a state machine, `frame`
//! and `greeting` are what travels. The rest of the crate is a thin shell around them.
//!
//! Three bounds hold at all times: the sender keeps at most [`Buffers::replay_capacity`] bytes, the receiver at most
//! [`Buffers::receive_window`], and a peer that is gone is found within [`KeepAlive::dead_after`].

pub mod channels;
mod client;
mod dial;
mod error;
mod frame;
mod greeting;
pub mod http2;
mod inbox;
mod link;
mod machine;
#[cfg(any(test, feature = "measure"))]
pub mod measure;
mod outbox;
mod server;
mod settings;
mod shared;
pub mod tls;
pub mod upgrade;
mod wakers;
pub mod websocket;

pub use dial::{Dial, Pipe, TcpDialer, set_tcp_options};
pub use error::{Abort, LinkError, Malformed};
pub use greeting::{LinkId, MAX_TOKEN, Token, VERSION};
pub use link::{Link, Meter, Statistics, Status};
pub use server::{Accepted, Admit, LinkServer, SharedToken};
pub use settings::{Buffers, KeepAlive, Redial, ServerSettings, Settings, worker_threads};

#[cfg(test)]
mod tests;
