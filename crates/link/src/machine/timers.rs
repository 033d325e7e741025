//! Timeouts and keep-alives.

use std::time::{Duration, Instant};

use super::{Attachment, EndReason, Machine, Phase};
use crate::error::{Abort, LinkError};

impl Machine {
    /// When [`Machine::handle_timeout`] should be called next. It may be called later, and not much earlier.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Ended(_) => None,
            Phase::Detached { since } => {
                Some(*since.max(&self.abort_since(*since)) + self.detached_timeout())
            }
            Phase::Attached(attachment) => {
                let dead = attachment.last_received + self.limits.keep_alive_timeout;
                let ping = attachment.next_ping(self.limits.ping_interval);
                let lingering = self.abandoned.filter(|_| self.abort.is_none());
                let linger = lingering.map(|since| since + self.linger());
                Some(dead.min(ping).min(linger.unwrap_or(dead)))
            }
        }
    }

    /// Handles expired timeouts. Returns true when the connection has to be treated as lost.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> bool {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return false;
        }
        let linger = self.linger();
        match &mut self.phase {
            Phase::Ended(_) => false,
            Phase::Detached { .. } => {
                let end_reason = match self.abort.take() {
                    Some(abort) => EndReason::Aborted(abort),
                    None if self.is_complete() => EndReason::Finished,
                    None => EndReason::Failed(LinkError::WindowExpired {
                        window: self.window,
                    }),
                };
                self.end(end_reason);
                false
            }
            Phase::Attached(attachment) => {
                if now >= attachment.last_received + self.limits.keep_alive_timeout {
                    return true;
                }
                if now >= attachment.next_ping(self.limits.ping_interval) {
                    attachment.ping = Some(now);
                    attachment.ping_due = true;
                    // The link is idle.
                    self.replay_buffer.shrink();
                }
                if self.abandoned.is_some_and(|since| now >= since + linger) {
                    self.abort.get_or_insert_with(Abort::dropped);
                }
                false
            }
        }
    }

    /// How long the link may be disconnected.
    fn detached_timeout(&self) -> Duration {
        if self.abort.is_some() || self.is_complete() {
            self.limits.close_timeout.min(self.window)
        } else {
            self.window
        }
    }

    fn abort_since(&self, since: Instant) -> Instant {
        self.abandoned
            .filter(|_| self.abort.is_some())
            .unwrap_or(since)
    }

    /// How long the link stays after its user dropped it: long enough to deliver the stream that the user has ended.
    fn linger(&self) -> Duration {
        if self.is_delivered() {
            self.limits.close_timeout
        } else {
            self.window.max(self.limits.close_timeout)
        }
    }
}

impl Attachment {
    /// Pings are sent one interval after the last received byte, and then once per interval.
    fn next_ping(&self, interval: Duration) -> Instant {
        let last = self
            .ping
            .map_or(self.last_received, |ping| ping.max(self.last_received));
        last + interval
    }
}
