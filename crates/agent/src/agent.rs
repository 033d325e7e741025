//! The agent: a target, and the threads that act for it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use protocol::grant::Grant;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::connection::Connection;
use crate::dns::Silent;
use crate::files::{Handles, LocalDevices, Tree};
use crate::grant::Rules;
use crate::identity::OwnIdentity;
use crate::incoming::{AllHeld, HeldPorts, Ports, Reachable};
use crate::outgoing::{OpenConnections, Spare};
use crate::target::Target;
use crate::workers::{Pool, Workers};
use crate::{Error, Result, connection};

/// File operations that may block at the same time, for instance on a network file system of the target.
const FILE_THREADS: usize = 32;
/// Making a socket never blocks.
const SOCKET_THREADS: usize = 1;

/// Serves the session protocol for one target. Cheap to clone; all clones are the same agent.
#[derive(Debug, Clone)]
pub struct Agent(Arc<Inside>);

#[derive(Debug)]
struct Inside {
    target: Target,
    token: Option<Token>,
    /// From whoever decides what sessions may do to everything that is under way.
    rules: watch::Sender<Arc<Rules>>,
    /// What the clients have open, to judge it again.
    open_files: Mutex<Vec<Weak<Handles>>>,
    open_connections: OpenConnections,
    files: Workers,
    sockets: Workers,
    names: Workers,
    silent_nameservers: Silent,
    ports: Arc<Ports>,
    held_ports: Arc<HeldPorts>,
    spare_sockets: Spare,
    local_devices: LocalDevices,
    /// As whom the runtime's threads access files.
    own_identity: OwnIdentity,
    /// End the threads with the agent.
    _pools: [Pool; 3],
}

/// The secret that a client must know. It is never shown.
struct Token(String);

impl Agent {
    /// An agent for a process of this machine. Says at once when the rights for it are lacking.
    pub fn for_process(pid: u32) -> Result<Self> {
        Self::build(Target::find(pid)?, None, Rules::default())
    }

    /// The same, for sessions that may do only what they are granted.
    pub fn for_process_with_grant(pid: u32, grant: &Grant) -> Result<Self> {
        let rules = Rules::understand(grant)?;
        Self::build(Target::find(pid)?, None, rules)
    }

    /// The same, for clients that know `token` only. An empty token is none.
    pub fn for_process_with_token(pid: u32, token: impl Into<String>) -> Result<Self> {
        let token = Some(token.into()).filter(|token| !token.is_empty());
        Self::build(Target::find(pid)?, token, Rules::default())
    }

    fn build(target: Target, token: Option<String>, rules: Rules) -> Result<Self> {
        let inside = Arc::new_cyclic(|inside: &std::sync::Weak<Inside>| {
            // The threads never keep the agent alive: it ends them.
            let with_target = |act: fn(&Target) -> Result<()>| {
                let inside = inside.clone();
                move || {
                    inside
                        .upgrade()
                        .map_or(Ok(()), |inside| act(&inside.target))
                }
            };
            let pools = [
                Pool::new(
                    "files",
                    FILE_THREADS,
                    with_target(|target| target.identity.take()),
                ),
                Pool::new(
                    "sockets",
                    SOCKET_THREADS,
                    with_target(|target| target.network.enter()),
                ),
                Pool::new("names", 1, with_target(|target| target.names.enter())),
            ];
            Inside {
                target,
                token: token.map(Token),
                rules: watch::Sender::new(Arc::new(rules)),
                open_files: Mutex::default(),
                open_connections: OpenConnections::default(),
                files: pools[0].workers(),
                sockets: pools[1].workers(),
                names: pools[2].workers(),
                silent_nameservers: Silent::default(),
                ports: Arc::default(),
                held_ports: Arc::default(),
                spare_sockets: Spare::default(),
                local_devices: LocalDevices::default(),
                own_identity: OwnIdentity::of_this_thread(),
                _pools: pools,
            }
        });
        Ok(Self(inside))
    }

    /// Tries everything that needs a right once, so that what is lacking is said before the first client comes.
    pub async fn check(&self) -> Result<()> {
        for workers in [self.files(), self.sockets(), self.names()] {
            workers.run(|| Ok(())).await?;
        }
        Ok(())
    }

    /// Serves one client until it closes the connection. Everything that the client has opened is closed with it.
    pub async fn serve_connection<IO>(&self, io: IO) -> Result<()>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.serve_connection_while(io, Reachable::always()).await
    }

    /// The same, for a client that may be out of reach for a while: then it is not given what somebody else can answer.
    pub async fn serve_connection_while<IO>(&self, io: IO, reachable: Reachable) -> Result<()>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connection = Connection::of_session(self.clone(), reachable);
        connection::serve(Arc::new(connection), io).await
    }

    /// Prepares for the end: gives the target's traffic back, and waits until nothing seems to be under way on the connections
    /// that pass through here. Not all of them are a session's. The caller may be less patient.
    pub async fn end(&self) {
        self.ports().end().await;
    }

    /// The process for which this agent acts.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.target.pid
    }

    /// Whether the target has ended. Operations then fail with a reason of their own.
    #[must_use]
    pub fn target_is_gone(&self) -> bool {
        self.0.target.is_gone()
    }

    /// What sessions may do from now on. What they may not do any more ends: subscriptions, connections and open files.
    /// Answers whether anything is different. What cannot be understood changes nothing.
    pub async fn regrant(&self, grant: &Grant) -> Result<bool> {
        let rules = Rules::understand(grant)?;
        let is_news = self.0.rules.send_if_modified(|current| {
            let is_news = current.grant() != grant;
            if is_news {
                *current = Arc::new(rules);
            }
            is_news
        });
        if is_news {
            self.open_connections().reset_forbidden(&self.rules());
            let agent = self.clone();
            self.files()
                .run(move || {
                    agent.close_forbidden_files();
                    Ok(())
                })
                .await?;
        }
        Ok(is_news)
    }

    fn close_forbidden_files(&self) {
        let rules = self.rules();
        let tree = Tree::of(self, &rules);
        for handles in self.open_files().iter().filter_map(Weak::upgrade) {
            handles.retain(|file| tree.still_allows(file));
        }
    }

    /// Has these files judged whenever what sessions may do changes.
    pub(crate) fn watch_over(&self, handles: &Arc<Handles>) {
        let mut all = self.open_files();
        all.retain(|handles| handles.strong_count() > 0);
        all.push(Arc::downgrade(handles));
    }

    fn open_files(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Handles>>> {
        let all = self.0.open_files.lock();
        all.unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open_connections(&self) -> &OpenConnections {
        &self.0.open_connections
    }

    /// What sessions may do now.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.0.rules.borrow())
    }

    /// Waits until something is forbidden that was not.
    pub(crate) async fn until_forbidden(&self, is_allowed: impl Fn(&Rules) -> Result<()>) -> Error {
        let mut rules = self.0.rules.subscribe();
        loop {
            let judged = is_allowed(&rules.borrow_and_update());
            if let Err(error) = judged {
                return error;
            }
            if rules.changed().await.is_err() {
                // Nobody is left to decide anything.
                std::future::pending::<()>().await;
            }
        }
    }

    pub(crate) fn target(&self) -> &Target {
        &self.0.target
    }

    /// Threads that are the target's user.
    pub(crate) fn files(&self) -> &Workers {
        &self.0.files
    }

    /// A thread inside the target's network.
    pub(crate) fn sockets(&self) -> &Workers {
        &self.0.sockets
    }

    /// A thread that has the target's hostname.
    pub(crate) fn names(&self) -> &Workers {
        &self.0.names
    }

    pub(crate) fn local_devices(&self) -> &LocalDevices {
        &self.0.local_devices
    }

    pub(crate) fn own_identity(&self) -> &OwnIdentity {
        &self.0.own_identity
    }

    /// Sockets of the target's network that are there already.
    pub(crate) fn spare_sockets(&self) -> &Spare {
        &self.0.spare_sockets
    }

    pub(crate) fn silent_nameservers(&self) -> &Silent {
        &self.0.silent_nameservers
    }

    /// What of the target's traffic is redirected to this agent.
    pub(crate) fn ports(&self) -> &Arc<Ports> {
        &self.0.ports
    }

    /// Which ports sessions have, now and as it changes, until the agent is gone.
    #[must_use]
    pub fn watch_ports(&self) -> watch::Receiver<AllHeld> {
        self.held_ports().subscribe()
    }

    pub(crate) fn held_ports(&self) -> &Arc<HeldPorts> {
        &self.0.held_ports
    }

    /// Whether a client that sends `token` may go on. Takes the same time wherever they differ.
    pub(crate) fn accepts(&self, token: &str) -> bool {
        let Some(Token(expected)) = &self.0.token else {
            return true;
        };
        let different = expected
            .bytes()
            .zip(token.bytes())
            .fold(0, |different, (left, right)| different | (left ^ right));
        expected.len() == token.len() && different == 0
    }
}

/// Lets this process hold as many descriptors as the system allows it: each connection of a session is one. For the
/// program that hosts the agent; the agent itself changes nothing that others share.
pub fn raise_descriptor_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).map_err(|source| crate::Error::Agent {
        action: "raise its limit of descriptors",
        hint: "raise it from outside (`ulimit -n`), or go on with fewer connections",
        source,
    })
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token")
    }
}
