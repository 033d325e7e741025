//! Errors of the agent, and their conversion to failures for the client.

use error_chain::error_chain;
use protocol::failure::{Failure, Reason};
use rustix::io::Errno;
use tonic::Status;

use crate::incoming::redirect::{PeerEndpoint, Port};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed, as it would have for the target.
    #[error("cannot {action}")]
    Operation {
        action: &'static str,
        #[source]
        source: Errno,
    },

    #[error("there is no process {0}: find the target again")]
    NoTarget(u32),

    #[error(
        "process {0} is a kernel thread, which has neither files nor an environment: choose another process"
    )]
    KernelThread(u32),
    #[error("there is no container {0} here: find the target again")]
    NoContainer(String),

    #[error("the target, process {0}, has ended: start the session again on a running one")]
    TargetGone(u32),

    /// The agent lacks permissions or resources.
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
        /// Where the holder accepts other agents that want to share the port.
        peer_endpoint: Option<PeerEndpoint>,
    },

    #[error(
        "traffic to {port} of the target does not reach the agent: check for rules that redirect it before, with `nft list \
         ruleset` and `iptables-legacy -t mangle -S` in the target's network"
    )]
    NotRedirected { port: Port },

    /// An invalid filter, or a conflict with another session.
    #[error(transparent)]
    Claim(#[from] splitter::Error),

    #[error("the target's certificate cannot be used: {0}")]
    Certificate(&'static str),

    #[error("there is no subscription {0}: subscribe, and use the id in the first event")]
    NoSubscription(u64),

    /// The failure that another agent, which redirects the port, returned.
    #[error("{}", .0.detail)]
    Peer(Failure),

    #[error("the agent that redirects the port is unreachable")]
    PeerGone,

    #[error("the agent is shutting down: start the session again")]
    Ending,

    #[error("the subscription has ended")]
    SubscriptionEnded,

    #[error("a policy of the cluster's administrators does not let sessions {0}")]
    Forbidden(&'static str),

    #[error("the grant cannot be parsed: {0}")]
    Grant(String),

    #[error("the token is not this agent's: use the one it was started with")]
    WrongToken,

    #[error(
        "the client uses version {client} of the protocol and the agent (standind {release}) uses version {agent}: install the same release on both sides",
        release = env!("CARGO_PKG_VERSION")
    )]
    WrongVersion { client: u32, agent: u32 },

    #[error("the connection has no accepted Hello: connect again, and send Hello first")]
    NoHello,

    #[error("the request has no {0}")]
    Missing(&'static str),

    #[error("the filter is nested too deeply: at most {0} levels are allowed")]
    FilterDepth(usize),

    #[error("the request does not follow the protocol")]
    Protocol(#[from] protocol::Error),

    #[error("the connection to the client failed")]
    Connection(#[from] h2::Error),
}

impl Error {
    pub(crate) fn operation(action: &'static str) -> impl FnOnce(Errno) -> Self {
        move |source| Self::Operation { action, source }
    }

    /// An error of the standard library or the runtime in an operation of the target.
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
            | Self::NotRedirected { .. }
            | Self::PeerGone
            | Self::Grant(_) => Reason::Agent,
            Self::Claim(error) => return Failure::new(Reason::BadRequest, error_chain(error)),
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
            Self::Missing(_) | Self::FilterDepth(_) => Reason::BadRequest,
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

/// The error number of an I/O error. An error without a number did not come from the system and becomes `EIO`.
pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    error
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error)
}
