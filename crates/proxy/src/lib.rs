//! The session on the developer's machine.
//!
//! [`FirstAgent::connect`] takes an [`AgentSource`] and connects its agents over links. The [`Session`] is then the
//! [`interceptor::Host`] of a process: operations that the rules of the configuration assign to the target are sent to an
//! agent, all others stay on this machine.
//!
//! | module | what it does |
//! |---|---|
//! | `agent` | connects and reconnects the agents, elects the stateful one |
//! | `session` | the rules of the configuration, and the `Host` of the processes |
//! | `files` | files of the target, as descriptors of this machine |
//! | `dns` | DNS as the target resolves it |
//! | `outgoing` | connections through the target |
//! | `incoming` | stolen and mirrored traffic of the target |
//! | `stream` | copies between sockets of the application and streams of the agent |
//! | `event` | events and their messages to the user |
//! | `monitor` | counters and events for `standin ui` and other readers |
//! | `temporary` | temporary folders of a session |
//!
//! The environment of the target is read once, before the process starts.

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

pub use crate::monitor::{EventBatch, EventSubscription, Monitor};
pub use agent::{
    AgentChange, AgentEndpoint, AgentId, AgentSource, Connected, Connector, FirstAgent, Preference,
    SingleAgent,
};
pub use error::Error;
pub use event::{
    EarlierSession, Event, EventKind, EventSink, FileProblem, IncomingEvent, IncomingEventKind,
    MissedReason, RedirectCheck, SubscriptionInfo,
};
pub use files::FileBackend;
pub use incoming::Holder;
/// Why a program could not be started.
pub use interceptor::Error as LaunchError;
/// Used to start processes in a session, and to find out whether this machine supports it.
pub use interceptor::{Diagnosis, Launch, Notice, PreparedLaunch, Signaller, check, diagnose};
pub use session::Session;
pub use temporary::{Remover, TemporaryFolder};
