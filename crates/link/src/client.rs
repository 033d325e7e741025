//! The client's end: the first connection, and the driver that makes all the others.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

use crate::dial::{Dial, Pipe};
use crate::error::LinkError;
use crate::greeting::{Answer, Hello, LinkId, PREAMBLE, Preamble, Refusal, VERSION};
use crate::link::{Link, Status};
use crate::machine::{Ending, Machine, Side};
use crate::settings::{Settings, limits};
use crate::shared::{Event, Shared, now};

/// A connection that lasted this long was a good one: the next loss is answered at once again.
const GOOD_CONNECTION: Duration = Duration::from_secs(1);
/// A shorter one that carried bytes was of use. It is made again after the shortest pause, so that a network that cuts
/// every connection soon slows a session down, and does not stop it.
const AFTER_A_USEFUL_CONNECTION: u32 = 1;

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

/// Why an attempt brought no connection.
enum Failure {
    /// Another attempt may work.
    Retry(LinkError),
    /// None will.
    Final(LinkError),
    /// The link has ended well, and only this end had not heard of it.
    Finished,
}

impl<D: Dial> Client<D> {
    async fn connect_first(&mut self) -> Result<(), LinkError> {
        let redial = self.settings.redial;
        let give_up = Instant::now() + redial.first_connection;
        let mut failures = 0;
        loop {
            let error = match self.attempt().await {
                Ok(()) => return Ok(()),
                Err(Failure::Retry(error)) => error,
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Finished) => return Err(LinkError::StateLost),
            };
            failures += 1;
            let pause = redial.pause(failures, rand::random());
            if Instant::now() + pause >= give_up {
                return Err(error);
            }
            sleep(pause).await;
        }
    }

    /// Keeps the link alive until it is over.
    async fn drive(mut self) {
        let mut failures = 0;
        let mut progress = self.progress();
        loop {
            let attached = Instant::now();
            let event = tokio::select! {
                event = self.until_not(Event::Attached) => event,
                pipe = self.another_pipe() => {
                    if self.move_to(pipe).await {
                        continue;
                    }
                    Event::Lost
                }
            };
            if event == Event::Over {
                break;
            }
            if attached.elapsed() >= GOOD_CONNECTION {
                failures = 0;
            } else if self.progress() > progress {
                failures = failures.min(AFTER_A_USEFUL_CONNECTION);
            }
            // What the peer got over this connection may be known only when it greets the next time.
            progress = self.progress();
            let shared = Arc::clone(&self.shared);
            let over = until_not(&shared, Event::Lost);
            tokio::select! {
                () = self.redial(&mut failures) => {}
                _ = over => {}
            }
        }
        self.shared.end_pipe().await;
        report_ending(&self.shared);
    }

    fn progress(&self) -> u64 {
        self.shared.lock().machine.progress()
    }

    async fn until_not(&self, seen: Event) -> Event {
        until_not(&self.shared, seen).await
    }

    /// Makes another pipe when the one that there is should be left. Until then that one is used.
    async fn another_pipe(&self) -> D::Pipe {
        self.dialer.moved().await;
        let redial = self.settings.redial;
        let mut failures = 0;
        loop {
            match timeout(redial.attempt_timeout, self.dialer.dial()).await {
                Ok(Ok(pipe)) => return pipe,
                Ok(Err(error)) => tracing::debug!(%error, "a link cannot move yet"),
                Err(_) => tracing::debug!("a link cannot move yet: nobody answers"),
            }
            failures += 1;
            sleep(redial.pause(failures, rand::random())).await;
        }
    }

    /// Moves to another pipe. The peer has the old one until it knows of the new, so that it never misses us. False if it
    /// did not work: the link is then without a connection, or over.
    async fn move_to(&mut self, pipe: D::Pipe) -> bool {
        self.attempts = self.attempts.wrapping_add(1);
        let Some(left) = self.shared.set_aside() else {
            return false;
        };
        let limit = self.settings.redial.attempt_timeout;
        let moved = timeout(limit, self.attach(pipe)).await;
        drop(left);
        let is_moved = matches!(moved, Ok(Ok(())));
        if !is_moved {
            self.shared.report_loss("it could not move".to_owned());
        }
        is_moved
    }

    /// Tries until there is a connection, or there can be none.
    async fn redial(&mut self, failures: &mut u32) {
        let redial = self.settings.redial;
        let mut in_vain = 0;
        loop {
            sleep(redial.pause(*failures, rand::random())).await;
            *failures += 1;
            in_vain += 1;
            let ending = match self.attempt().await {
                Ok(()) => {
                    self.shared.status.send_replace(Status::Connected);
                    return;
                }
                Err(Failure::Retry(error)) => {
                    self.report_failure(in_vain, &error);
                    continue;
                }
                Err(Failure::Final(error)) => Some(error),
                Err(Failure::Finished) => None,
            };
            let machine = &mut self.shared.lock().machine;
            match ending {
                Some(error) => machine.end(Ending::Failed(error)),
                None => machine.end_as_finished_there(),
            }
            return;
        }
    }

    fn report_failure(&self, failures: u32, error: &LinkError) {
        self.shared.status.send_if_modified(|status| {
            let Status::Reconnecting {
                attempts,
                last_error,
                ..
            } = status
            else {
                return false;
            };
            *attempts = failures;
            *last_error = described(error);
            true
        });
    }

    /// Makes one connection, greets, and attaches it.
    async fn attempt(&mut self) -> Result<(), Failure> {
        self.attempts = self.attempts.wrapping_add(1);
        let limit = self.settings.redial.attempt_timeout;
        let attached = timeout(limit, async {
            let pipe = self.dialer.dial().await;
            let pipe =
                pipe.map_err(|error| Failure::Retry(LinkError::Unreachable(Arc::new(error))))?;
            self.attach(pipe).await
        });
        attached.await.unwrap_or_else(|_| {
            let error = io::Error::from(io::ErrorKind::TimedOut);
            Err(Failure::Retry(LinkError::NoGreeting(Arc::new(error))))
        })
    }

    /// Greets over a pipe, and makes it the link's.
    async fn attach(&self, mut pipe: D::Pipe) -> Result<(), Failure> {
        match greet(&mut pipe, &self.hello()).await? {
            Answer::Welcome(welcome) => {
                let mut inner = self.shared.lock();
                let attached = inner.machine.welcomed(now(), &welcome);
                attached.map_err(Failure::Final)?;
                self.shared.set_pipe(&mut inner, Box::new(pipe));
                Ok(())
            }
            Answer::Refuse { refusal, version } => Err(failure(refusal, version)),
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

async fn greet(pipe: &mut impl Pipe, hello: &Hello) -> Result<Answer, Failure> {
    let broken = |error| Failure::Retry(LinkError::NoGreeting(Arc::new(error)));
    // A relay that is being restarted may well answer with something else, so this is no reason to give up.
    let nonsense = |malformed| Failure::Retry(LinkError::Protocol(malformed));
    pipe.write_all(&hello.encode()).await.map_err(broken)?;
    pipe.flush().await.map_err(broken)?;
    let mut preamble = [0; PREAMBLE];
    pipe.read_exact(&mut preamble).await.map_err(broken)?;
    let preamble = Preamble::decode(&preamble).map_err(nonsense)?;
    let mut body = vec![0; preamble.length];
    pipe.read_exact(&mut body).await.map_err(broken)?;
    Answer::decode(preamble, &body).map_err(nonsense)
}

fn failure(refusal: Refusal, version: u16) -> Failure {
    let error = match refusal {
        Refusal::Version => LinkError::VersionMismatch {
            ours: VERSION,
            theirs: version,
        },
        Refusal::Token(text) => LinkError::WrongToken { text },
        Refusal::StateLost => LinkError::StateLost,
        Refusal::WindowExpired(window) => LinkError::WindowExpired { window },
        Refusal::Aborted(abort) => LinkError::Aborted(abort),
        Refusal::Finished => return Failure::Finished,
        Refusal::Superseded => {
            let text = "a newer connection of this link is there".to_owned();
            return Failure::Retry(LinkError::Refused { text });
        }
        Refusal::Other(text) => LinkError::Refused { text },
    };
    Failure::Final(error)
}

/// Drives a link until what was seen last is not true any more.
pub(crate) async fn until_not(shared: &Shared, seen: Event) -> Event {
    let mut timer = pin!(sleep(Duration::ZERO));
    poll_fn(|context| shared.poll_drive(context, timer.as_mut(), seen)).await
}

/// The last status of a link that is over.
pub(crate) fn report_ending(shared: &Shared) {
    let ending = shared.lock().machine.ending().cloned();
    let status = match ending {
        Some(Ending::Failed(error)) => {
            tracing::debug!(error = described(&error), "a link failed");
            Status::Failed(error)
        }
        _ => Status::Finished,
    };
    shared.status.send_replace(status);
}

/// An error with everything behind it.
fn described(error: &LinkError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
