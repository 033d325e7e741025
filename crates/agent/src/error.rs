//! Everything that can go wrong in the agent, and how the client is told.

use protocol::failure::{Failure, Reason};
use rustix::io::Errno;
use tonic::Status;

use crate::incoming::redirect::{MeetingPoint, Port};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What the target itself would have got.
    #[error("cannot {action}")]
    Operation {
        action: &'static str,
        #[source]
        source: Errno,
    },

    #[error("there is no process {0}: look for the target again")]
    NoTarget(u32),

    #[error(
        "process {0} is a thread of the kernel, which has neither files nor an environment: choose a program"
    )]
    KernelThread(u32),
    #[error("there is no container {0} here: look for the target again")]
    NoContainer(String),

    #[error("the target, process {0}, has ended: start the session again on a running one")]
    TargetGone(u32),

    /// The agent lacks a right or a resource.
    #[error("the agent cannot {action}: {hint}")]
    Agent {
        action: &'static str,
        hint: &'static str,
        #[source]
        source: Errno,
    },

    #[error(
        "{port} of the target is already redirected by {holder}: end that session, or leave the port out of this one"
    )]
    PortTaken {
        port: Port,
        holder: String,
        /// Where the holder can be asked to share it.
        meeting_point: Option<MeetingPoint>,
    },

    #[error(
        "nothing that is sent to {port} of the target arrives at the agent: look for rules that take it before, with `nft \
         list ruleset` and `iptables-legacy -t mangle -S` in the target's network"
    )]
    NothingArrives { port: Port },

    /// A filter that cannot be, or somebody else who has the port.
    #[error(transparent)]
    Claim(#[from] splitter::Error),

    #[error("the target's certificate cannot be used: {0}")]
    Certificate(&'static str),

    #[error("there is no subscription {0}: subscribe, and use the number that the first event has")]
    NoSubscription(u64),

    /// What another agent answered, which has the port.
    #[error("{}", .0.detail)]
    Peer(Failure),

    #[error("the agent that has the port cannot be reached")]
    PeerGone,

    #[error("the agent is about to end: start the session again")]
    Ending,

    #[error("the subscription has ended")]
    SubscriptionEnded,

    #[error("a policy of the cluster's administrators does not let sessions {0}")]
    Forbidden(&'static str),

    #[error("what sessions may do cannot be understood: {0}")]
    Grant(String),

    #[error("the token is not this agent's: use the one it was started with")]
    WrongToken,

    #[error(
        "the client speaks version {client} of the protocol and the agent (standind {release}) version {agent}: install the same release on both sides",
        release = env!("CARGO_PKG_VERSION")
    )]
    WrongVersion { client: u32, agent: u32 },

    #[error(
        "the connection did not begin with a Hello that was accepted: connect again, and say Hello first"
    )]
    NoHello,

    #[error("the request names no {0}")]
    Missing(&'static str),

    #[error("the request does not follow the protocol")]
    Protocol(#[from] protocol::Error),

    #[error("the connection to the client failed")]
    Connection(#[from] hyper::Error),
}

impl Error {
    pub(crate) fn operation(action: &'static str) -> impl FnOnce(Errno) -> Self {
        move |source| Self::Operation { action, source }
    }

    /// A failure of the standard library or of the runtime in something that the target would have done.
    pub(crate) fn io(action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::Operation {
            action,
            source: errno_of(&error),
        }
    }

    pub(crate) fn to_failure(&self) -> Failure {
        let reason = match self {
            Self::Operation { source, .. } => {
                return Failure::from_errno(source.raw_os_error(), self.to_string());
            }
            Self::NoTarget(_) | Self::NoContainer(_) | Self::TargetGone(_) | Self::Ending => {
                Reason::TargetGone
            }
            Self::PortTaken { .. } | Self::Claim(splitter::Error::Conflict(_)) => {
                return Failure::from_errno(Errno::ADDRINUSE.raw_os_error(), self.to_string());
            }
            Self::Forbidden(_) => {
                return Failure::from_errno(Errno::PERM.raw_os_error(), self.to_string());
            }
            Self::Peer(failure) => return failure.clone(),
            Self::KernelThread(_)
            | Self::NothingArrives { .. }
            | Self::PeerGone
            | Self::Grant(_) => Reason::Agent,
            Self::Claim(error) => return Failure::new(Reason::BadRequest, chain(error)),
            Self::NoSubscription(_) | Self::SubscriptionEnded | Self::Certificate(_) => {
                Reason::BadRequest
            }
            Self::Agent { source, .. } => {
                return Failure::new(Reason::Agent, format!("{self} ({source})"));
            }
            Self::WrongToken => Reason::WrongToken,
            Self::WrongVersion { .. } => Reason::WrongVersion,
            Self::NoHello => Reason::NoHello,
            Self::Protocol(source) => {
                return Failure::new(Reason::BadRequest, source.to_string());
            }
            Self::Missing(_) => Reason::BadRequest,
            Self::Connection(_) => Reason::Unspecified,
        };
        Failure::new(reason, self.to_string())
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        error.to_failure().to_status()
    }
}

/// An error and what caused it, as one text: the client gets no more than that.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// The error number in an error of the standard library. One without a number did not come from the system.
pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    error
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error)
}
