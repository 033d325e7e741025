//! A resumable byte stream, and HTTP/2 over it.
//!
//! Connections between a laptop and a cluster are lost all the time: Wi-Fi changes, a lid is closed, a proxy on the path
//! is restarted. A [`Link`] is a bidirectional byte stream that outlives the connections that carry it. Bytes have
//! offsets; the sender keeps them until they are acknowledged. After a lost connection the client reconnects, both ends
//! exchange the offset up to which they have received, and the rest is sent again. The user of the link only sees a delay.
//!
//! ```text
//!   user   read, write                     HTTP/2, gRPC, anything
//!          --------------------------------------------------------
//!   Link   offsets, acknowledgements, replay, keep-alive, reconnecting
//!          --------------------------------------------------------
//!   pipe   one connection: TCP, TLS, WebSocket, a port of a pod through Kubernetes
//! ```
//!
//! The client creates a link with [`Link::connect`] and a [`Dial`], which opens pipes. The server passes each incoming pipe
//! to [`LinkServer::accept`], which returns new links and attaches pipes to links that are resumed.
//!
//! The protocol itself does no I/O: `machine` is the whole protocol as a state machine, `frame` and `handshake` are the
//! wire format. The rest of the crate is a thin layer around them.
//!
//! Three limits hold at all times: the sender keeps at most [`Buffers::replay_capacity`] bytes, the receiver at most
//! [`Buffers::receive_window`], and a dead peer is detected within [`KeepAlive::timeout`].
//!
//! | module | what it does |
//! |---|---|
//! | `link` | the link as its user sees it: reads, writes, status, statistics |
//! | `client`, `dial` | the client side: dials, reconnects, hands over to another pipe |
//! | `server` | the server side: accepts pipes, creates and resumes links |
//! | `machine` | the protocol as a state machine without I/O |
//! | `handshake`, `frame` | the wire format: the handshake of a connection, and the frames after it |
//! | `replay_buffer`, `receive_buffer` | bytes that are not acknowledged yet, and bytes that are not read yet |
//! | `shared`, `wakers` | the state that the user and the driver task of a link share |
//! | `settings`, `error` | limits and timeouts, errors |
//! | [`channels`] | several pipes over one WebSocket |
//! | [`http2`] | HTTP/2 over a link |
//! | [`tls`] | TLS as a transport |
//! | [`websocket`], [`upgrade`] | WebSockets and HTTP upgrades as transports, as the Kubernetes API server proxies them |
//! | `measure` | benchmarks (feature `measure`) |

pub mod channels;
mod client;
mod dial;
mod error;
mod frame;
mod handshake;
pub mod http2;
mod link;
mod machine;
#[cfg(any(test, feature = "measure"))]
pub mod measure;
mod receive_buffer;
mod replay_buffer;
mod server;
mod settings;
mod shared;
pub mod tls;
pub mod upgrade;
mod wakers;
pub mod websocket;

pub use dial::{Dial, Pipe, TcpDialer, set_tcp_options};
pub use error::{Abort, LinkError, Malformed};
pub use handshake::{LinkId, MAX_TOKEN, Token, VERSION};
pub use link::{Aborter, Link, Meter, Statistics, Status};
pub use server::{Accepted, Admit, LinkServer, SharedToken};
pub use settings::{Buffers, KeepAlive, Redial, ServerSettings, Settings, worker_threads};

#[cfg(test)]
mod tests;
