//! The types of a session's local API.
//!
//! A session numbers its [`Event`]s and counts everything: [`Counters`] are totals, [`State`] has a row for each file, DNS name,
//! peer and port, and [`SessionInfo`] describes the session. The same types are used over the session's socket, in recordings and
//! by the web page.
//!
//! | module | what it has |
//! |---|---|
//! | `event` | events |
//! | `counters`, `latency` | totals and the histogram of latencies |
//! | `state` | rows by file, DNS name, peer and port |
//! | `info` | the session, its health and its configuration |
//! | [`stream`] | the event stream as Server-Sent Events |
//! | `recording` | a whole session in a file |

mod counters;
mod event;
mod info;
mod latency;
mod recording;
mod state;
pub mod stream;

pub use counters::{Counters, DnsTotals, FileTotals, IncomingTotals, OutgoingTotals};
pub use event::{Entry, Event, Handling, Keyword, Level, Mode, Side, Transport};
pub use info::{ConfigValue, Health, ProcessInfo, SessionInfo, Status};
pub use latency::Latencies;
pub use recording::{Recording, RecordingError, RecordingLine};
pub use state::{DnsRow, FileRow, Omitted, PeerRow, PortRow, State};

/// The version of the API. It changes with incompatible changes. New fields and events do not change it, so a reader must
/// ignore those that it does not know, and a new field must have a default for sessions that do not send it.
pub const PROTOCOL_VERSION: u32 = 1;
