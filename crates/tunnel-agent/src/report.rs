//! Log events of the tunnel's state, each once: an agent without a hub tries every few seconds to connect.

use std::sync::Arc;

use error_chain::error_chain;
use jiff::Timestamp;
use tunnel::{Error, Status};

use crate::condition::Condition;

/// What to do about a certificate that the hub will never accept.
pub(crate) const REGISTER_AGAIN: &str = "make a token with `standin cluster token NAME`, and set `agent.registrationToken` with `helm upgrade`, \
     or replace the token in the Secret `agent.registrationTokenSecretName`; the agent then registers by itself";

/// What was reported last.
pub(crate) struct Report {
    condition: Arc<Condition>,
    last: Option<String>,
}

impl Report {
    pub(crate) const fn new(condition: Arc<Condition>) -> Self {
        Self {
            condition,
            last: None,
        }
    }

    /// Reports a state. Returns why the agent may have to register again, if that could help.
    pub(crate) fn status(
        &mut self,
        status: &Status,
        expires: Timestamp,
        now: Timestamp,
    ) -> Option<String> {
        match status {
            Status::Connecting => None,
            Status::Connected { .. } => {
                if self.is_new("connected".to_owned()) {
                    tracing::info!("tunnel connected");
                }
                self.condition.set_connected();
                None
            }
            Status::Interrupted { error, .. } => {
                if self.is_new(format!("interrupted {error}")) {
                    tracing::warn!(error, "tunnel interrupted, resuming");
                }
                // Requests wait for the connection, so the agent still serves.
                None
            }
            Status::Disconnected { error, .. } => self.disconnected(error, expires, now),
        }
    }

    fn disconnected(
        &mut self,
        error: &Error,
        expires: Timestamp,
        now: Timestamp,
    ) -> Option<String> {
        let reason = error_chain(error);
        let is_new = self.is_new(reason.clone());
        if expires <= now {
            let problem = format!("the agent's certificate expired at {expires}");
            if is_new {
                let hint = REGISTER_AGAIN;
                tracing::error!(%expires, reason, hint, "certificate expired");
            }
            self.condition.set_problem(problem.clone());
            return Some(problem);
        }
        self.condition.set_problem(reason.clone());
        let needs_registration = match error {
            Error::Tls { .. } => true,
            Error::Refused { status, .. } => matches!(status, 401 | 403),
            _ => false,
        };
        if is_new && error.is_final() {
            tracing::error!(reason, "hub refused this agent");
        } else if is_new {
            tracing::warn!(reason, "tunnel disconnected, reconnecting");
        }
        needs_registration.then_some(reason)
    }

    fn is_new(&mut self, state: String) -> bool {
        let is_new = self.last.as_ref() != Some(&state);
        self.last = Some(state);
        is_new
    }
}
