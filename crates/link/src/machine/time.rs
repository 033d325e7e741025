//! What happens as time goes by.

use std::time::{Duration, Instant};

use super::{Attachment, Ending, Machine, Phase};
use crate::error::{Abort, LinkError};

impl Machine {
    /// When [`Machine::time_passed`] should be called next. It may come later than this, never much earlier.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Over(_) => None,
            Phase::Detached { since } => {
                Some(*since.max(&self.last_word_since(*since)) + self.patience())
            }
            Phase::Attached(attachment) => {
                let dead = attachment.last_received + self.limits.dead_after;
                let ping = attachment.next_ping(self.limits.ping_every);
                let lingering = self.abandoned.filter(|_| self.abort.is_none());
                let linger = lingering.map(|since| since + self.linger());
                Some(dead.min(ping).min(linger.unwrap_or(dead)))
            }
        }
    }

    /// Does what is due. Returns true when the connection has to be taken as lost.
    pub(crate) fn time_passed(&mut self, now: Instant) -> bool {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return false;
        }
        let linger = self.linger();
        match &mut self.phase {
            Phase::Over(_) => false,
            Phase::Detached { .. } => {
                let ending = match self.abort.take() {
                    Some(abort) => Ending::Aborted(abort),
                    None if self.is_complete() => Ending::Finished,
                    None => Ending::Failed(LinkError::WindowExpired {
                        window: self.window,
                    }),
                };
                self.end(ending);
                false
            }
            Phase::Attached(attachment) => {
                if now >= attachment.last_received + self.limits.dead_after {
                    return true;
                }
                if now >= attachment.next_ping(self.limits.ping_every) {
                    attachment.ping = Some(now);
                    attachment.ping_due = true;
                    // It is quiet.
                    self.outbox.shrink();
                }
                if self.abandoned.is_some_and(|since| now >= since + linger) {
                    self.abort.get_or_insert_with(Abort::dropped);
                }
                false
            }
        }
    }

    /// How long to stay without a connection.
    fn patience(&self) -> Duration {
        if self.abort.is_some() || self.is_complete() {
            self.limits.farewell.min(self.window)
        } else {
            self.window
        }
    }

    fn last_word_since(&self, since: Instant) -> Instant {
        self.abandoned
            .filter(|_| self.abort.is_some())
            .unwrap_or(since)
    }

    /// How long to stay without a user: as long as it takes to deliver what the user ended, within reason.
    fn linger(&self) -> Duration {
        if self.is_delivered() {
            self.limits.farewell
        } else {
            self.window.max(self.limits.farewell)
        }
    }
}

impl Attachment {
    /// Asks when nothing has come for a while, and again after as long.
    fn next_ping(&self, every: Duration) -> Instant {
        let last = self
            .ping
            .map_or(self.last_received, |ping| ping.max(self.last_received));
        last + every
    }
}
