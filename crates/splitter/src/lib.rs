//! Splits a target's incoming connections between sessions and the original application.
//!
//! Several developers stand in for the same service at the same time, while all other clients keep using it. Each
//! request of each connection therefore goes to the session whose filter matches it, and every other request goes to the
//! application, which must not notice the proxy.
//!
//! ```text
//!              claims: which session takes which requests
//!                       |
//!   client ---- Port::serve ----+---- the original application
//!                               +---- session of one developer
//!                               +---- session of another
//! ```
//!
//! A [`Port`] has [`Claims`] and serves connections. The first bytes of a connection determine its protocol
//! ([`detect`]). HTTP/1 is split without rewriting it: bytes are forwarded as they were received, and when they could be
//! parsed in two ways the whole connection goes to the application. HTTP/2 is split by stream. Every other protocol is
//! forwarded unchanged to a single upstream.
//!
//! Every upstream is a [`Destination`], which opens plain byte streams. This crate does not know how a stream reaches a
//! developer's machine, or how a connection was redirected here.
//!
//! | module | what it does |
//! |---|---|
//! | `port` | serves the connections of one port; detects who speaks first and which protocol (`port::sniff`) |
//! | `claims` | which session takes which requests; conflicts between sessions |
//! | `filter` | matches requests by header, path, method and JSON body |
//! | `detect` | tells HTTP/1, HTTP/2, TLS and other protocols apart by their first bytes |
//! | `http1` | splits HTTP/1 connections by request without changing their bytes |
//! | `http2` | splits HTTP/2 connections by stream |
//! | `tls` | terminates TLS with the target's certificate, and originates TLS to the application |
//! | `relay` | forwards bytes unchanged in both directions |
//! | `mirror`, `flush_schedule` | copies of incoming traffic that never slow it down |
//! | `pool` | idle connections to the application |
//! | `memory` | the budget for everything that is buffered, and who is evicted when it is exhausted |
//! | `probes` | recognizes health probes |
//! | `stream`, `read_buffer` | byte streams, write buffers, and the shared read buffer |
//! | `settings`, `error` | limits and timeouts, notices to sessions, errors |

mod claims;
mod detect;
mod error;
mod filter;
mod flush_schedule;
mod http1;
mod http2;
mod memory;
mod mirror;
mod pool;
mod port;
mod probes;
mod read_buffer;
mod relay;
mod settings;
mod stream;
mod tls;

pub use claims::{Claim, ClaimGuard, Claims, EarlierSession, Mode, OnConflict};
pub use detect::{Protocol, detect};
pub use error::{ClaimedTraffic, Conflict, Error};
pub use filter::{Filter, JsonBody, Pattern};
pub use memory::{
    Charge, DEFAULT_MEMORY, Holder, InFlight, MeasuredReader, MeasuredStream, Memory,
};
pub use port::Port;
pub use probes::Probes;
pub use settings::{FailureReason, Notice, NoticeHandler, RequestLine, Settings};
pub use stream::{
    BoxFuture, BoxStream, ClientTls, ConnectionMeta, Destination, Stream, Unreachable,
};
pub use tls::TlsTermination;
