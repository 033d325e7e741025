//! The session on the developer's machine.
//!
//! [`FirstAgent::wait`] takes a [`Source`] of agents and greets each of them over a link; the [`Session`] is then the [`interceptor::Host`] of a process: what the
//! rules of the configuration send to the target is asked of the agent, the rest stays here. The nouns are `files`,
//! `dns`, `outgoing` and `incoming`; the environment is asked for once, before the process starts.

mod agent;
mod dns;
mod error;
mod event;
mod files;
mod incoming;
mod monitor;
mod outgoing;
mod session;
mod stream;
mod sys;
mod temporary;

pub use crate::monitor::{Batch, Monitor, Subscription};
pub use agent::{AgentId, Change, FirstAgent, One, Place, Preference, Reach, Reached, Source};
pub use error::Error;
pub use event::{
    Checked, Earlier, Event, FileProblem, IncomingEvent, MissedReason, News, Subscribed, Tell,
};
pub use files::FilesThrough;
pub use incoming::Holder;
/// Why a program could not be started.
pub use interceptor::Error as LaunchError;
/// Programs start processes in a session, and learn whether this machine can, through its host.
pub use interceptor::{Diagnosis, Launch, Notice, Prepared, Signaller, check, diagnose};
pub use session::Session;
pub use temporary::TemporaryFolder;
