//! The client side: the first connection, and the driver task that reconnects.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use backoff::Backoff;
use error_chain::error_chain;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

use crate::dial::{Dial, Pipe};
use crate::error::LinkError;
use crate::handshake::{HandshakeResponse, Hello, LinkId, PREAMBLE, Preamble, Refusal, VERSION};
use crate::link::{Link, Status};
use crate::machine::{EndReason, Machine, Side};
use crate::settings::{Settings, limits};
use crate::shared::{ConnectionState, Shared, now};

/// A connection that lasted this long was stable: after its loss the first attempt to reconnect is made immediately.
const STABLE_CONNECTION: Duration = Duration::from_secs(1);

pub(crate) async fn connect(dialer: impl Dial, settings: Settings) -> Result<Link, LinkError> {
    let limits = limits(settings.buffers, settings.keep_alive);
    let window = settings.redial.resume_window;
    let machine = Machine::new(Side::Client, limits, window, now());
    let mut client = Client {
        dialer,
        id: LinkId::random(),
        attempts: 0,
        shared: Shared::new(machine),
        settings,
    };
    client.connect_first().await?;
    let link = Link::new(Arc::clone(&client.shared), client.id, String::new());
    tokio::spawn(client.drive());
    Ok(link)
}

struct Client<D> {
    dialer: D,
    settings: Settings,
    id: LinkId,
    attempts: u32,
    shared: Arc<Shared>,
}

/// Why an attempt to connect failed.
enum AttemptError {
    /// Another attempt may succeed.
    Retry(LinkError),
    /// No further attempt can succeed.
    Final(LinkError),
    /// The link has finished, and the server's CLOSED frame was lost.
    Finished,
}

/// The delays before attempts to reconnect. The first attempt is made immediately.
struct ReconnectDelays {
    is_first: bool,
    backoff: Backoff,
}

impl ReconnectDelays {
    fn new(backoff: Backoff) -> Self {
        Self {
            is_first: true,
            backoff,
        }
    }

    fn next_delay(&mut self) -> Duration {
        if std::mem::take(&mut self.is_first) {
            Duration::ZERO
        } else {
            self.backoff.next_delay()
        }
    }

    /// Makes the next attempt immediately, after a stable connection.
    fn reset(&mut self) {
        self.is_first = true;
        self.backoff.reset();
    }

    /// Makes the next attempt after the minimum backoff at the latest, after a short connection that carried bytes. So a
    /// network that cuts every connection early slows a session down, and does not stop it.
    fn reset_to_min(&mut self) {
        self.backoff.reset();
    }
}

impl<D: Dial> Client<D> {
    async fn connect_first(&mut self) -> Result<(), LinkError> {
        let redial = self.settings.redial;
        let deadline = Instant::now() + redial.first_connection_timeout;
        let mut backoff = redial.backoff();
        loop {
            let error = match self.attempt().await {
                Ok(()) => return Ok(()),
                Err(AttemptError::Retry(error)) => error,
                Err(AttemptError::Final(error)) => return Err(error),
                Err(AttemptError::Finished) => return Err(LinkError::StateLost),
            };
            let delay = backoff.next_delay();
            if Instant::now() + delay >= deadline {
                return Err(error);
            }
            sleep(delay).await;
        }
    }

    /// Keeps the link connected until it ends.
    async fn drive(mut self) {
        let mut delays = ReconnectDelays::new(self.settings.redial.backoff());
        let mut progress = self.progress();
        loop {
            let attached = Instant::now();
            let state = tokio::select! {
                state = self.drive_while(ConnectionState::Attached) => state,
                pipe = self.dial_handover() => {
                    if self.hand_over_to(pipe).await {
                        continue;
                    }
                    ConnectionState::Detached
                }
            };
            if state == ConnectionState::Ended {
                break;
            }
            if attached.elapsed() >= STABLE_CONNECTION {
                delays.reset();
            } else if self.progress() > progress {
                delays.reset_to_min();
            }
            // Bytes that the peer received on this connection may only be acknowledged in the next handshake.
            progress = self.progress();
            let shared = Arc::clone(&self.shared);
            let ended = drive_while(&shared, ConnectionState::Detached);
            tokio::select! {
                () = self.reconnect(&mut delays) => {}
                _ = ended => {}
            }
        }
        self.shared.end_pipe().await;
        report_end(&self.shared);
    }

    fn progress(&self) -> u64 {
        self.shared.lock().machine.progress()
    }

    async fn drive_while(&self, state: ConnectionState) -> ConnectionState {
        drive_while(&self.shared, state).await
    }

    /// Waits until the dialer requests a handover, and opens another pipe. The current one is used until then.
    async fn dial_handover(&self) -> D::Pipe {
        self.dialer.handover().await;
        let redial = self.settings.redial;
        let mut backoff = redial.backoff();
        loop {
            match timeout(redial.attempt_timeout, self.dialer.dial()).await {
                Ok(Ok(pipe)) => return pipe,
                Ok(Err(error)) => tracing::debug!(%error, "handover failed, retrying"),
                Err(_) => tracing::debug!("handover timed out, retrying"),
            }
            sleep(backoff.next_delay()).await;
        }
    }

    /// Hands the link over to another pipe. The old one stays open until the handshake on the new one is complete, so that
    /// the peer never sees a disconnect. Returns false if it failed: the link is then disconnected, or has ended.
    async fn hand_over_to(&mut self, pipe: D::Pipe) -> bool {
        self.attempts = self.attempts.wrapping_add(1);
        let Some(old_pipe) = self.shared.take_pipe() else {
            return false;
        };
        let limit = self.settings.redial.attempt_timeout;
        let handover = timeout(limit, self.attach(pipe)).await;
        drop(old_pipe);
        let is_handed_over = matches!(handover, Ok(Ok(())));
        if !is_handed_over {
            self.shared
                .report_reconnecting("the handover failed".to_owned());
        }
        is_handed_over
    }

    /// Retries until the link is connected, or cannot be resumed any more.
    async fn reconnect(&mut self, delays: &mut ReconnectDelays) {
        let mut attempts = 0;
        loop {
            sleep(delays.next_delay()).await;
            attempts += 1;
            let final_error = match self.attempt().await {
                Ok(()) => {
                    self.shared.status.send_replace(Status::Connected);
                    return;
                }
                Err(AttemptError::Retry(error)) => {
                    self.report_failure(attempts, &error);
                    continue;
                }
                Err(AttemptError::Final(error)) => Some(error),
                Err(AttemptError::Finished) => None,
            };
            let machine = &mut self.shared.lock().machine;
            match final_error {
                Some(error) => machine.end(EndReason::Failed(error)),
                None => machine.end_finished_by_server(),
            }
            return;
        }
    }

    fn report_failure(&self, count: u32, error: &LinkError) {
        self.shared.status.send_if_modified(|status| {
            let Status::Reconnecting {
                attempts,
                last_error,
                ..
            } = status
            else {
                return false;
            };
            *attempts = count;
            *last_error = error_chain(error);
            true
        });
    }

    /// Opens one pipe, performs the handshake, and attaches it.
    async fn attempt(&mut self) -> Result<(), AttemptError> {
        self.attempts = self.attempts.wrapping_add(1);
        let limit = self.settings.redial.attempt_timeout;
        let attached = timeout(limit, async {
            let pipe = self.dialer.dial().await;
            let pipe =
                pipe.map_err(|error| AttemptError::Retry(LinkError::Unreachable(Arc::new(error))))?;
            self.attach(pipe).await
        });
        attached.await.unwrap_or_else(|_| {
            let error = io::Error::from(io::ErrorKind::TimedOut);
            Err(AttemptError::Retry(LinkError::NoHandshake(Arc::new(error))))
        })
    }

    /// Performs the handshake on a pipe, and attaches it to the link.
    async fn attach(&self, mut pipe: D::Pipe) -> Result<(), AttemptError> {
        match handshake(&mut pipe, &self.hello()).await? {
            HandshakeResponse::Welcome(welcome) => {
                let mut inner = self.shared.lock();
                let attached = inner.machine.accept_welcome(now(), &welcome);
                attached.map_err(AttemptError::Final)?;
                self.shared.set_pipe(&mut inner, Box::new(pipe));
                Ok(())
            }
            HandshakeResponse::Refuse { refusal, version } => Err(attempt_error(refusal, version)),
        }
    }

    fn hello(&self) -> Hello {
        let machine = &self.shared.lock().machine;
        Hello {
            id: self.id,
            attempt: self.attempts,
            fresh: machine.is_fresh(),
            position: machine.position(),
            window: self.settings.redial.resume_window,
            token: self.settings.token.clone(),
        }
    }
}

async fn handshake(pipe: &mut impl Pipe, hello: &Hello) -> Result<HandshakeResponse, AttemptError> {
    let broken = |error| AttemptError::Retry(LinkError::NoHandshake(Arc::new(error)));
    // A proxy that is being restarted may send something else, so malformed responses are retried.
    let malformed = |error| AttemptError::Retry(LinkError::Protocol(error));
    pipe.write_all(&hello.encode()).await.map_err(broken)?;
    pipe.flush().await.map_err(broken)?;
    let mut preamble = [0; PREAMBLE];
    pipe.read_exact(&mut preamble).await.map_err(broken)?;
    let preamble = Preamble::decode(&preamble).map_err(malformed)?;
    let mut body = vec![0; preamble.length];
    pipe.read_exact(&mut body).await.map_err(broken)?;
    HandshakeResponse::decode(preamble, &body).map_err(malformed)
}

fn attempt_error(refusal: Refusal, version: u16) -> AttemptError {
    let error = match refusal {
        Refusal::Version => LinkError::VersionMismatch {
            ours: VERSION,
            theirs: version,
        },
        Refusal::Token(text) => LinkError::WrongToken { text },
        Refusal::StateLost => LinkError::StateLost,
        Refusal::WindowExpired(window) => LinkError::WindowExpired { window },
        Refusal::Aborted(abort) => LinkError::Aborted(abort),
        Refusal::Finished => return AttemptError::Finished,
        Refusal::Superseded => {
            let text = "the link has a newer connection".to_owned();
            return AttemptError::Retry(LinkError::Refused { text });
        }
        Refusal::Other(text) => LinkError::Refused { text },
    };
    AttemptError::Final(error)
}

/// Drives a link for as long as it is in this state, and returns the new one.
pub(crate) async fn drive_while(shared: &Shared, state: ConnectionState) -> ConnectionState {
    let mut timer = pin!(sleep(Duration::ZERO));
    poll_fn(|context| shared.poll_drive(context, timer.as_mut(), state)).await
}

/// Reports the final status of a link.
pub(crate) fn report_end(shared: &Shared) {
    let end_reason = shared.lock().machine.end_reason().cloned();
    let status = match end_reason {
        Some(EndReason::Failed(error)) => {
            tracing::debug!(error = error_chain(&error), "link failed");
            Status::Failed(error)
        }
        _ => Status::Finished,
    };
    shared.status.send_replace(status);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_attempt_is_immediate_and_later_ones_are_delayed() {
        let min = Duration::from_millis(100);
        let mut delays = ReconnectDelays::new(Backoff::new(min, min * 4));
        let check = |delays: &mut ReconnectDelays, steps: &[u32]| {
            for step in steps {
                let (delay, step) = (delays.next_delay(), min * *step);
                assert!(delay >= step / 2 && delay <= step, "{delay:?} of {step:?}");
            }
        };
        check(&mut delays, &[0, 1, 2, 4, 4]);
        delays.reset_to_min();
        check(&mut delays, &[1, 2]);
        delays.reset();
        check(&mut delays, &[0, 1]);
        delays.reset();
        delays.reset_to_min();
        check(&mut delays, &[0, 1]);
    }
}
