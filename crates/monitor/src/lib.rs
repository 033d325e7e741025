//! What a session tells about itself, in the words of its local API.
//!
//! A session numbers its [`Event`]s and counts everything else: [`Counters`] are sums, [`State`] has a row for each file,
//! name, peer and port. [`SessionInfo`] says what the session is. Whoever reads or writes these, over the session's
//! socket, in a recording or in a browser, uses the same types. [`stream`] has the stream of events as text,
//! [`Recording`] a whole session.

mod counters;
mod event;
mod info;
mod latency;
mod recording;
mod state;
pub mod stream;

pub use counters::{Counters, FileTotals, IncomingTotals, NameTotals, OutgoingTotals};
pub use event::{Entry, Event, Handling, Level, Mode, Side, Transport, Word};
pub use info::{ConfigValue, Health, ProcessInfo, SessionInfo, Status};
pub use latency::Latencies;
pub use recording::{Line, NoRecording, Recording};
pub use state::{FileRow, NameRow, PeerRow, PortRow, State};

/// The version of everything here. It changes when a reader of before would misunderstand; fields and kinds of events
/// that are new do not change it, so a reader ignores those that it does not know.
pub const PROTOCOL_VERSION: u32 = 1;
