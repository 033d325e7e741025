//! What a client gets when its request cannot be forwarded: what happened, and what to do about it.
//!
//! Kubernetes clients repeat any request whose response has `Retry-After`. So only responses to requests of which nothing was
//! sent have it.

use std::time::Duration;

use error_chain::error_chain;
use thiserror::Error;

use crate::sessions::Unavailable;
use crate::status::Status;

/// Why there is no response of an API server.
#[derive(Debug, Error)]
pub(crate) enum SendError {
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    #[error(transparent)]
    Tunnel(#[from] tunnel::Error),
    /// Another replica, which has the tunnel, cannot be reached.
    #[error("the replica of the hub with the tunnel cannot be reached")]
    Peer {
        source: Box<dyn std::error::Error + Send + Sync>,
        is_sent: bool,
    },
}

impl SendError {
    /// Whether nothing of the request was sent.
    pub(crate) fn is_unsent(&self) -> bool {
        match self {
            Self::Unavailable(_) => true,
            Self::Tunnel(error) => error.is_unsent(),
            Self::Peer { is_sent, .. } => !is_sent,
        }
    }

    /// Whether another tunnel to the cluster may serve the request.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(
            self,
            Self::Tunnel(tunnel::Error::Disconnected { .. }) | Self::Peer { .. }
        )
    }
}

/// The response for a request that could not be forwarded.
pub(crate) fn status(cluster: &str, error: &SendError) -> Status {
    let status = match error {
        SendError::Unavailable(unavailable) => return unavailable_status(cluster, unavailable),
        SendError::Tunnel(tunnel::Error::Limited(limit)) => {
            return Status::too_many_requests(format!("cluster {cluster:?}: {limit}"));
        }
        SendError::Tunnel(tunnel::Error::Disconnected { reason, .. }) => {
            let text = format!(
                "agent disconnected: the tunnel to cluster {cluster:?} ended before the response ({reason}); the agent \
                 connects again by itself, so repeat the request"
            );
            Status::unavailable(text)
        }
        SendError::Peer { .. } => Status::unavailable(format!(
            "the replica of the hub that has the tunnel to cluster {cluster:?} cannot be reached; repeat the request"
        )),
        SendError::Tunnel(error) => Status::bad_gateway(format!(
            "the agent of cluster {cluster:?} did not respond: {}; its log has the reason",
            error_chain(error)
        )),
    };
    if error.is_unsent() {
        status.retry_after(1)
    } else {
        status
    }
}

fn unavailable_status(cluster: &str, unavailable: &Unavailable) -> Status {
    match unavailable {
        Unavailable::NotRegistered => Status::not_found(format!(
            "there is no cluster {cluster:?}; `standin cluster list` shows the clusters, `standin cluster add` registers one"
        )),
        Unavailable::NotConnected {
            since: None,
            message,
        } => Status::unavailable(format!(
            "cluster {cluster:?} has never been connected: {message}; `standin cluster token {cluster}` shows how to install \
             its agent"
        )),
        Unavailable::NotConnected {
            since: Some(since),
            message,
        } => Status::unavailable(format!(
            "agent disconnected: cluster {cluster:?} has had no tunnel since {since}: {message}; the log of its tunnel agent has \
             the reason"
        )),
        Unavailable::Revoked => Status::unavailable(format!("cluster {cluster:?}: {unavailable}")),
    }
}

pub(super) fn timed_out(cluster: &str, limit: Duration) -> Status {
    Status::timed_out(format!(
        "the API server of cluster {cluster:?} did not begin its response in {} s",
        limit.as_secs()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tunnel::{EndReason, Limit};

    /// The code of the status, whether it may be repeated, and a part of its text.
    #[expect(clippy::needless_pass_by_value, reason = "the cases are made in place")]
    fn check(error: SendError, code: u16, may_repeat: bool, part: &str) {
        let status = status("prod", &error);
        let response = status.response();
        assert_eq!(response.status().as_u16(), code, "{error:?}");
        let has_retry = response.headers().contains_key("retry-after");
        assert_eq!(has_retry, may_repeat, "{error:?}");
        assert!(status.message.contains(part), "{}", status.message);
    }

    #[test]
    fn errors_say_what_to_do_and_only_unsent_requests_are_repeated() {
        let disconnected = |is_sent| {
            let reason = EndReason::Left;
            SendError::Tunnel(tunnel::Error::Disconnected { reason, is_sent })
        };
        let peer = |is_sent| SendError::Peer {
            source: "refused".into(),
            is_sent,
        };
        let not_connected = |since| Unavailable::NotConnected {
            since,
            message: "m".to_owned(),
        };
        let unavailable = SendError::Unavailable;
        let limited = tunnel::Error::Limited(Limit::Streams(5));
        check(SendError::Tunnel(limited), 429, true, "5 streams");
        check(disconnected(false), 503, true, "agent disconnected");
        check(disconnected(true), 503, false, "agent disconnected");
        check(peer(false), 503, true, "replica of the hub");
        check(peer(true), 503, false, "replica of the hub");
        let upgrade = tunnel::Error::Upgrade("x".to_owned());
        check(SendError::Tunnel(upgrade), 502, false, "its log");
        check(
            unavailable(Unavailable::NotRegistered),
            404,
            false,
            "standin cluster add",
        );
        check(unavailable(Unavailable::Revoked), 503, false, "revoked");
        check(
            unavailable(not_connected(None)),
            503,
            false,
            "never been connected: m",
        );
        let since = jiff::Timestamp::UNIX_EPOCH;
        check(
            unavailable(not_connected(Some(since))),
            503,
            false,
            "since 1970-01-01T00:00:00Z: m",
        );
    }
}
