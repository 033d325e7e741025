//! The server's end: it is given pipes, and hands out links.
//!
//! A pipe that greets with a new id becomes a new link. One that greets with the id of a link that is here continues
//! that link, also when its old connection still seems to be alive: the client knows better. What has ended while its
//! client was away is remembered for a while, so that the client learns why.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::client::{report_ending, until_not};
use crate::dial::Pipe;
use crate::error::{Abort, LinkError};
use crate::greeting::{Hello, LinkId, PREAMBLE, Preamble, Refusal, Token, VERSION};
use crate::link::{Link, Status};
use crate::machine::{Ending, Machine, Side};
use crate::settings::{ServerSettings, limits};
use crate::shared::{Event, Shared, now};

/// As many ended links are remembered.
const REMEMBERED: usize = 1024;

/// Decides who may have a link.
pub trait Admit: Send + Sync + 'static {
    /// Names the peer who shows this token, or says why it is refused. It is asked for every connection; a link is only
    /// continued by the peer who made it.
    fn admit(&self, token: &Token) -> impl Future<Output = Result<String, String>> + Send;
}

/// Lets everybody in who knows one token.
#[derive(Debug)]
pub struct SharedToken(pub Token);

impl Admit for SharedToken {
    async fn admit(&self, token: &Token) -> Result<String, String> {
        if same(self.0.as_bytes(), token.as_bytes()) {
            Ok(String::new())
        } else {
            Err("it is not the one that was agreed on".to_owned())
        }
    }
}

/// Compares without telling by the time it takes where the difference is.
fn same(left: &[u8], right: &[u8]) -> bool {
    let differences = left.iter().zip(right).map(|(left, right)| left ^ right);
    let difference = differences.fold(0, |all, one| std::hint::black_box(all | one));
    left.len() == right.len() && difference == 0
}

/// What became of a pipe.
#[derive(Debug)]
pub enum Accepted {
    /// Somebody made a link.
    New(Link),
    /// The link with this id, handed out before, continues.
    Resumed(LinkId),
}

/// Turns pipes into links. Clones share their links.
pub struct LinkServer<A> {
    admit: Arc<A>,
    settings: Arc<ServerSettings>,
    registry: Arc<Mutex<Registry>>,
}

/// The links that there are, and what became of those that there were.
#[derive(Default)]
struct Registry {
    links: HashMap<LinkId, Entry>,
    endings: HashMap<LinkId, Ending>,
    /// The ids of `endings`, the oldest first.
    ended: VecDeque<LinkId>,
}

struct Entry {
    shared: Arc<Shared>,
    peer: String,
    /// That of the newest connection.
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

    /// Takes a pipe that somebody opened. An error is about this pipe only; a client that was refused has been told.
    /// It may take as long as [`ServerSettings::greeting_timeout`], so every pipe should be accepted by its own task.
    pub async fn accept(&self, mut pipe: impl Pipe) -> Result<Accepted, LinkError> {
        let greeting = timeout(self.settings.greeting_timeout, read_hello(&mut pipe)).await;
        let hello = match greeting {
            Ok(Ok(hello)) => hello,
            Ok(Err(Rejected::Refuse(refusal, error))) => {
                return self.refuse(pipe, &refusal, error).await;
            }
            Ok(Err(Rejected::Drop(error))) => return Err(error),
            Err(_) => {
                let error = std::io::Error::from(std::io::ErrorKind::TimedOut);
                return Err(LinkError::NoGreeting(Arc::new(error)));
            }
        };
        let peer = match self.admit.admit(&hello.token).await {
            Ok(peer) => peer,
            Err(text) => {
                let error = LinkError::WrongToken { text: text.clone() };
                return self.refuse(pipe, &Refusal::Token(text), error).await;
            }
        };
        match self.attach(&hello, peer, Box::new(pipe)) {
            Ok(accepted) => Ok(accepted),
            Err((pipe, refusal)) => {
                let error = error_of(&refusal);
                self.refuse(pipe, &refusal, error).await
            }
        }
    }

    /// How many links there are, with and without a connection.
    pub fn links(&self) -> usize {
        self.registry().links.len()
    }

    /// Gives up all links, and tells the peers why.
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

    /// Decides and does all that has to happen at once. A pipe that is refused comes back.
    fn attach(
        &self,
        hello: &Hello,
        peer: String,
        pipe: Box<dyn Pipe>,
    ) -> Result<Accepted, (Box<dyn Pipe>, Refusal)> {
        let mut registry = self.registry();
        let known = registry.links.contains_key(&hello.id);
        let decided = registry.decide(hello, &peer, self.settings.most_links);
        let entry = match decided {
            Ok(()) => registry.links.entry(hello.id).or_insert_with(|| Entry {
                shared: Shared::new(self.machine()),
                peer: peer.clone(),
                attempt: 0,
            }),
            Err(refusal) => return Err((pipe, refusal)),
        };
        let shared = Arc::clone(&entry.shared);
        let mut inner = shared.lock();
        let window = hello.window.min(self.settings.longest_resume_window);
        if let Err(refusal) = inner.machine.greeted(now(), hello, window) {
            drop(inner);
            if !known {
                registry.links.remove(&hello.id);
            }
            return Err((pipe, refusal));
        }
        entry.attempt = hello.attempt;
        shared.set_pipe(&mut inner, pipe);
        drop(inner);
        if known {
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
        let window = self.settings.longest_resume_window;
        Machine::new(Side::Server, limits, window, now())
    }

    async fn refuse(
        &self,
        mut pipe: impl Pipe,
        refusal: &Refusal,
        error: LinkError,
    ) -> Result<Accepted, LinkError> {
        let tell = async {
            pipe.write_all(&refusal.encode()).await?;
            pipe.shutdown().await
        };
        // A client that does not hear it asks again.
        let _ = timeout(self.settings.greeting_timeout, tell).await;
        Err(error)
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }
}

impl Registry {
    /// Whether this greeting may make or continue a link.
    fn decide(&self, hello: &Hello, peer: &str, most_links: usize) -> Result<(), Refusal> {
        if let Some(entry) = self.links.get(&hello.id) {
            return if entry.peer != peer {
                Err(Refusal::Token(
                    "the link belongs to somebody else".to_owned(),
                ))
            } else if hello.attempt <= entry.attempt {
                Err(Refusal::Superseded)
            } else {
                Ok(())
            };
        }
        match self.endings.get(&hello.id) {
            Some(ending) => Err(ending.refusal()),
            None if !hello.fresh => Err(Refusal::StateLost),
            None if self.links.len() >= most_links => {
                Err(Refusal::Other(format!("it has {most_links} links already")))
            }
            None => Ok(()),
        }
    }

    fn remember(&mut self, id: LinkId, ending: Ending) {
        self.links.remove(&id);
        self.endings.insert(id, ending);
        self.ended.push_back(id);
        if self.ended.len() > REMEMBERED
            && let Some(oldest) = self.ended.pop_front()
        {
            self.endings.remove(&oldest);
        }
    }
}

/// Keeps a link alive until it is over.
async fn drive(shared: Arc<Shared>, id: LinkId, registry: Arc<Mutex<Registry>>) {
    loop {
        if until_not(&shared, Event::Attached).await == Event::Over {
            break;
        }
        if until_not(&shared, Event::Lost).await == Event::Over {
            break;
        }
    }
    let ending = shared.lock().machine.ending().cloned();
    lock(&registry).remember(id, ending.unwrap_or(Ending::Finished));
    shared.end_pipe().await;
    report_ending(&shared);
}

/// Why a greeting leads nowhere.
enum Rejected {
    Refuse(Refusal, LinkError),
    /// It is not even a link; there is nobody to tell.
    Drop(LinkError),
}

async fn read_hello(pipe: &mut impl Pipe) -> Result<Hello, Rejected> {
    let broken = |error| Rejected::Drop(LinkError::NoGreeting(Arc::new(error)));
    let nonsense = |malformed| Rejected::Drop(LinkError::Protocol(malformed));
    let mut preamble = [0; PREAMBLE];
    pipe.read_exact(&mut preamble).await.map_err(broken)?;
    let preamble = Preamble::decode(&preamble).map_err(nonsense)?;
    let mut body = vec![0; preamble.length];
    // Also of another version: closing a connection with unread bytes could swallow the answer.
    pipe.read_exact(&mut body).await.map_err(broken)?;
    if preamble.version != VERSION {
        let error = LinkError::VersionMismatch {
            ours: VERSION,
            theirs: preamble.version,
        };
        return Err(Rejected::Refuse(Refusal::Version, error));
    }
    Hello::decode(preamble, &body).map_err(nonsense)
}

fn error_of(refusal: &Refusal) -> LinkError {
    match refusal {
        Refusal::StateLost => LinkError::StateLost,
        Refusal::WindowExpired(window) => LinkError::WindowExpired { window: *window },
        Refusal::Token(text) => LinkError::WrongToken { text: text.clone() },
        Refusal::Aborted(abort) => LinkError::Aborted(abort.clone()),
        Refusal::Other(text) => LinkError::Refused { text: text.clone() },
        Refusal::Superseded => LinkError::Refused {
            text: "a newer connection of this link is there".to_owned(),
        },
        Refusal::Finished | Refusal::Version => LinkError::Refused {
            text: "the link has ended".to_owned(),
        },
    }
}

fn lock(registry: &Mutex<Registry>) -> MutexGuard<'_, Registry> {
    // Nobody panics while holding it.
    registry.lock().unwrap_or_else(PoisonError::into_inner)
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
            .field("links", &lock(&self.registry).links.len())
            .finish_non_exhaustive()
    }
}
