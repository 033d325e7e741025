//! The server side: accepts pipes, and returns links.
//!
//! A pipe with a new link ID becomes a new link. A pipe with the ID of an existing link resumes that link, even if its old
//! connection still seems to be alive: only the client knows that it is lost. The end reasons of links that ended while
//! their client was disconnected are kept, so that the client gets the reason when it reconnects.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::client::{drive_while, report_end};
use crate::dial::Pipe;
use crate::error::{Abort, LinkError};
use crate::handshake::{Hello, LinkId, PREAMBLE, Preamble, Refusal, Token, VERSION};
use crate::link::{Link, Status};
use crate::machine::{EndReason, Machine, Side};
use crate::settings::{ServerSettings, limits};
use crate::shared::{ConnectionState, Shared, now};

/// Maximum number of ended links whose end reason is kept.
const MAX_ENDED_LINKS: usize = 1024;

/// Authenticates clients.
pub trait Admit: Send + Sync + 'static {
    /// Returns the name of the peer with this token, or the reason for rejecting it. It is called for every connection. A
    /// link can only be resumed by the peer that created it.
    fn admit(&self, token: &Token) -> impl Future<Output = Result<String, String>> + Send;
}

/// Admits every client that has one shared token.
#[derive(Debug)]
pub struct SharedToken(pub Token);

impl Admit for SharedToken {
    async fn admit(&self, token: &Token) -> Result<String, String> {
        if constant_time_eq(self.0.as_bytes(), token.as_bytes()) {
            Ok(String::new())
        } else {
            Err("it is not the expected one".to_owned())
        }
    }
}

/// Compares in constant time, so that the duration does not reveal where the difference is.
fn constant_time_eq(left: &[u8], right: &[u8]) -> bool {
    let differences = left.iter().zip(right).map(|(left, right)| left ^ right);
    let difference = differences.fold(0, |all, one| std::hint::black_box(all | one));
    left.len() == right.len() && difference == 0
}

/// The result of accepting a pipe.
#[derive(Debug)]
pub enum Accepted {
    /// A client created a link.
    New(Link),
    /// The existing link with this ID was resumed.
    Resumed(LinkId),
}

/// Turns pipes into links. Clones share their links.
pub struct LinkServer<A> {
    admit: Arc<A>,
    settings: Arc<ServerSettings>,
    registry: Arc<Mutex<Registry>>,
}

/// The existing links, and the end reasons of earlier ones.
#[derive(Default)]
struct Registry {
    links: HashMap<LinkId, Entry>,
    end_reasons: HashMap<LinkId, EndReason>,
    /// The IDs of `end_reasons`, the oldest first.
    ended: VecDeque<LinkId>,
}

struct Entry {
    shared: Arc<Shared>,
    peer: String,
    /// The attempt number of the newest connection.
    attempt: u32,
}

impl<A: Admit> LinkServer<A> {
    pub fn new(settings: ServerSettings, admit: A) -> Self {
        Self {
            admit: Arc::new(admit),
            settings: Arc::new(settings),
            registry: Arc::default(),
        }
    }

    /// Accepts a pipe. An error only concerns this pipe; a client that was refused has received the reason. It may take
    /// as long as [`ServerSettings::handshake_timeout`], so every pipe should be accepted in its own task.
    pub async fn accept(&self, pipe: impl Pipe) -> Result<Accepted, LinkError> {
        self.accept_from(pipe, None).await
    }

    /// Accepts a pipe of a peer whose name is known already, as from its certificate. It is not asked for a token.
    pub async fn accept_authenticated(
        &self,
        pipe: impl Pipe,
        peer: &str,
    ) -> Result<Accepted, LinkError> {
        self.accept_from(pipe, Some(peer.to_owned())).await
    }

    async fn accept_from(
        &self,
        mut pipe: impl Pipe,
        authenticated: Option<String>,
    ) -> Result<Accepted, LinkError> {
        let handshake = timeout(self.settings.handshake_timeout, read_hello(&mut pipe)).await;
        let hello = match handshake {
            Ok(Ok(hello)) => hello,
            Ok(Err(HandshakeError::Refuse(refusal, error))) => {
                return self.refuse(pipe, &refusal, error).await;
            }
            Ok(Err(HandshakeError::Drop(error))) => return Err(error),
            Err(_) => {
                let error = std::io::Error::from(std::io::ErrorKind::TimedOut);
                return Err(LinkError::NoHandshake(Arc::new(error)));
            }
        };
        let admitted = match authenticated {
            Some(peer) => Ok(peer),
            None => self.admit.admit(&hello.token).await,
        };
        let peer = match admitted {
            Ok(peer) => peer,
            Err(text) => {
                let error = LinkError::WrongToken { text: text.clone() };
                return self.refuse(pipe, &Refusal::Token(text), error).await;
            }
        };
        match self.attach(&hello, peer, Box::new(pipe)) {
            Ok(accepted) => Ok(accepted),
            Err((pipe, refusal)) => {
                let error = refusal_error(&refusal);
                self.refuse(pipe, &refusal, error).await
            }
        }
    }

    /// The number of links, with and without a connection.
    pub fn links(&self) -> usize {
        self.registry().links.len()
    }

    /// Aborts all links, and sends the reason to the peers.
    pub fn abort_all(&self, reason: &Abort) {
        let links: Vec<_> = self
            .registry()
            .links
            .values()
            .map(|entry| Arc::clone(&entry.shared))
            .collect();
        for shared in links {
            shared.abort(reason.clone());
        }
    }

    /// Checks the handshake and attaches the pipe, under one lock. Returns the pipe if it is refused.
    fn attach(
        &self,
        hello: &Hello,
        peer: String,
        pipe: Box<dyn Pipe>,
    ) -> Result<Accepted, (Box<dyn Pipe>, Refusal)> {
        let mut registry = self.registry();
        let exists = registry.links.contains_key(&hello.id);
        let checked = registry.check(hello, &peer, self.settings.max_links);
        let entry = match checked {
            Ok(()) => registry.links.entry(hello.id).or_insert_with(|| Entry {
                shared: Shared::new(self.machine()),
                peer: peer.clone(),
                attempt: 0,
            }),
            Err(refusal) => return Err((pipe, refusal)),
        };
        let shared = Arc::clone(&entry.shared);
        let mut inner = shared.lock();
        let window = hello.window.min(self.settings.max_resume_window);
        if let Err(refusal) = inner.machine.accept_hello(now(), hello, window) {
            drop(inner);
            if !exists {
                registry.links.remove(&hello.id);
            }
            return Err((pipe, refusal));
        }
        entry.attempt = hello.attempt;
        shared.set_pipe(&mut inner, pipe);
        drop(inner);
        if exists {
            shared.status.send_replace(Status::Connected);
            return Ok(Accepted::Resumed(hello.id));
        }
        tokio::spawn(drive(
            Arc::clone(&shared),
            hello.id,
            Arc::clone(&self.registry),
        ));
        Ok(Accepted::New(Link::new(shared, hello.id, peer)))
    }

    fn machine(&self) -> Machine {
        let limits = limits(self.settings.buffers, self.settings.keep_alive);
        let window = self.settings.max_resume_window;
        Machine::new(Side::Server, limits, window, now())
    }

    async fn refuse(
        &self,
        mut pipe: impl Pipe,
        refusal: &Refusal,
        error: LinkError,
    ) -> Result<Accepted, LinkError> {
        let send_refusal = async {
            pipe.write_all(&refusal.encode()).await?;
            pipe.shutdown().await
        };
        // A client that does not receive it retries.
        let _ = timeout(self.settings.handshake_timeout, send_refusal).await;
        Err(error)
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock()
    }
}

impl Registry {
    /// Whether this handshake may create or resume a link.
    fn check(&self, hello: &Hello, peer: &str, max_links: usize) -> Result<(), Refusal> {
        if let Some(entry) = self.links.get(&hello.id) {
            return if entry.peer != peer {
                Err(Refusal::Token(
                    "the link belongs to another peer".to_owned(),
                ))
            } else if hello.attempt <= entry.attempt {
                Err(Refusal::Superseded)
            } else {
                Ok(())
            };
        }
        match self.end_reasons.get(&hello.id) {
            Some(end_reason) => Err(end_reason.refusal()),
            None if !hello.fresh => Err(Refusal::StateLost),
            None if self.links.len() >= max_links => {
                Err(Refusal::Other(format!("it has {max_links} links already")))
            }
            None => Ok(()),
        }
    }

    fn record_end(&mut self, id: LinkId, end_reason: EndReason) {
        self.links.remove(&id);
        self.end_reasons.insert(id, end_reason);
        self.ended.push_back(id);
        if self.ended.len() > MAX_ENDED_LINKS
            && let Some(oldest) = self.ended.pop_front()
        {
            self.end_reasons.remove(&oldest);
        }
    }
}

/// Drives a link until it ends.
async fn drive(shared: Arc<Shared>, id: LinkId, registry: Arc<Mutex<Registry>>) {
    loop {
        if drive_while(&shared, ConnectionState::Attached).await == ConnectionState::Ended {
            break;
        }
        if drive_while(&shared, ConnectionState::Detached).await == ConnectionState::Ended {
            break;
        }
    }
    let end_reason = shared.lock().machine.end_reason().cloned();
    registry
        .lock()
        .record_end(id, end_reason.unwrap_or(EndReason::Finished));
    shared.end_pipe().await;
    report_end(&shared);
}

/// Why a handshake failed.
enum HandshakeError {
    Refuse(Refusal, LinkError),
    /// The peer does not use the link protocol, so no refusal is sent.
    Drop(LinkError),
}

async fn read_hello(pipe: &mut impl Pipe) -> Result<Hello, HandshakeError> {
    let broken = |error| HandshakeError::Drop(LinkError::NoHandshake(Arc::new(error)));
    let malformed = |error| HandshakeError::Drop(LinkError::Protocol(error));
    let mut preamble = [0; PREAMBLE];
    pipe.read_exact(&mut preamble).await.map_err(broken)?;
    let preamble = Preamble::decode(&preamble).map_err(malformed)?;
    let mut body = vec![0; preamble.length];
    // The body is read for other versions too: closing a connection with unread bytes resets it, and the peer might not
    // receive the response.
    pipe.read_exact(&mut body).await.map_err(broken)?;
    if preamble.version != VERSION {
        let error = LinkError::VersionMismatch {
            ours: VERSION,
            theirs: preamble.version,
        };
        return Err(HandshakeError::Refuse(Refusal::Version, error));
    }
    Hello::decode(preamble, &body).map_err(malformed)
}

fn refusal_error(refusal: &Refusal) -> LinkError {
    match refusal {
        Refusal::StateLost => LinkError::StateLost,
        Refusal::WindowExpired(window) => LinkError::WindowExpired { window: *window },
        Refusal::Token(text) => LinkError::WrongToken { text: text.clone() },
        Refusal::Aborted(abort) => LinkError::Aborted(abort.clone()),
        Refusal::Other(text) => LinkError::Refused { text: text.clone() },
        Refusal::Superseded => LinkError::Refused {
            text: "the link has a newer connection".to_owned(),
        },
        Refusal::Finished | Refusal::Version => LinkError::Refused {
            text: "the link has ended".to_owned(),
        },
    }
}

impl<A> Clone for LinkServer<A> {
    fn clone(&self) -> Self {
        Self {
            admit: Arc::clone(&self.admit),
            settings: Arc::clone(&self.settings),
            registry: Arc::clone(&self.registry),
        }
    }
}

impl<A> fmt::Debug for LinkServer<A> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("LinkServer");
        debug
            .field("links", &self.registry.lock().links.len())
            .finish_non_exhaustive()
    }
}
