//! The agent: a target, and the thread pools that act as the target.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use protocol::grant::Grant;
use splitter::Memory;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::connection::Connection;
use crate::dns::SilentNameservers;
use crate::files::{Handles, LocalDevices, Tree};
use crate::grant::Rules;
use crate::identity::OwnIdentity;
use crate::incoming::{AllClaims, ClaimedPorts, Ports, ReachabilityWatch};
use crate::outgoing::{OpenConnections, SpareSockets};
use crate::target::Target;
use crate::workers::{Pool, Workers};
use crate::{Error, Result, connection};

/// The maximum number of concurrent file operations. They may block, for instance on a network file system of the target.
const MAX_FILE_THREADS: usize = 32;
/// One thread is enough: creating a socket never blocks.
const MAX_SOCKET_THREADS: usize = 1;

/// Serves the session protocol for one target. Cheap to clone; all clones are the same agent.
#[derive(Debug, Clone)]
pub struct Agent(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    target: Target,
    token: Option<Token>,
    /// What sessions may do. Running operations watch for changes.
    rules: watch::Sender<Arc<Rules>>,
    /// The open files of all clients, which are checked again when the rules change.
    open_files: Mutex<Vec<Weak<Handles>>>,
    open_connections: OpenConnections,
    files: Workers,
    sockets: Workers,
    uts: Workers,
    silent_nameservers: SilentNameservers,
    ports: Arc<Ports>,
    claimed_ports: Arc<ClaimedPorts>,
    spare_sockets: SpareSockets,
    memory: OnceLock<Memory>,
    local_devices: LocalDevices,
    /// The credentials of the runtime's threads.
    own_identity: OwnIdentity,
    /// Dropping the pools ends their threads.
    _pools: [Pool; 3],
}

/// The secret that a client must present. Its `Debug` output does not contain it.
struct Token(String);

impl Agent {
    /// An agent for a process of this machine. Fails if permissions to inspect the process are missing.
    pub fn for_process(pid: u32) -> Result<Self> {
        Self::build(Target::find(pid)?, None, Rules::default())
    }

    /// Like [`for_process`](Self::for_process), with a grant that restricts sessions.
    pub fn for_process_with_grant(pid: u32, grant: &Grant) -> Result<Self> {
        let rules = Rules::parse(grant)?;
        Self::build(Target::find(pid)?, None, rules)
    }

    /// Like [`for_process`](Self::for_process), only for clients with this token. An empty token means no token.
    pub fn for_process_with_token(pid: u32, token: impl Into<String>) -> Result<Self> {
        let token = Some(token.into()).filter(|token| !token.is_empty());
        Self::build(Target::find(pid)?, token, Rules::default())
    }

    fn build(target: Target, token: Option<String>, rules: Rules) -> Result<Self> {
        let inner = Arc::new_cyclic(|inner: &Weak<Inner>| {
            // The threads have only weak references, because dropping the agent must end them.
            let with_target = |setup: fn(&Target) -> Result<()>| {
                let inner = inner.clone();
                move || inner.upgrade().map_or(Ok(()), |inner| setup(&inner.target))
            };
            let pools = [
                Pool::new(
                    "files",
                    MAX_FILE_THREADS,
                    with_target(|target| target.identity.assume()),
                ),
                Pool::new(
                    "sockets",
                    MAX_SOCKET_THREADS,
                    with_target(|target| target.network.enter()),
                ),
                Pool::new("uts", 1, with_target(|target| target.uts.enter())),
            ];
            Inner {
                target,
                token: token.map(Token),
                rules: watch::Sender::new(Arc::new(rules)),
                open_files: Mutex::default(),
                open_connections: OpenConnections::default(),
                files: pools[0].workers(),
                sockets: pools[1].workers(),
                uts: pools[2].workers(),
                silent_nameservers: SilentNameservers::default(),
                ports: Arc::default(),
                claimed_ports: Arc::default(),
                spare_sockets: SpareSockets::default(),
                memory: OnceLock::new(),
                local_devices: LocalDevices::default(),
                own_identity: OwnIdentity::of_this_thread(),
                _pools: pools,
            }
        });
        Ok(Self(inner))
    }

    /// Starts one thread of each pool, so that missing permissions are reported before the first client connects.
    pub async fn check(&self) -> Result<()> {
        for workers in [self.files(), self.sockets(), self.uts()] {
            workers.run(|| Ok(())).await?;
        }
        Ok(())
    }

    /// Serves one client until it closes the connection. All resources of the client are then closed.
    pub async fn serve_connection<IO>(&self, io: IO) -> Result<()>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.serve_resumable_connection(io, ReachabilityWatch::always())
            .await
    }

    /// Like [`serve_connection`](Self::serve_connection), for a client that may be temporarily unreachable. Meanwhile,
    /// incoming requests that the application can handle are not sent to it.
    pub async fn serve_resumable_connection<IO>(
        &self,
        io: IO,
        reachable: ReachabilityWatch,
    ) -> Result<()>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connection = Connection::of_session(self.clone(), reachable);
        connection::serve(Arc::new(connection), io).await
    }

    /// Prepares for shutdown: stops redirecting the target's traffic, and waits until the connections through this agent are
    /// idle. Not all of them belong to a session. The caller may apply a timeout.
    pub async fn end(&self) {
        self.ports().end().await;
    }

    /// The process for which this agent acts.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.target.pid
    }

    /// Whether the target has exited. Operations then fail with a separate reason.
    #[must_use]
    pub fn target_has_exited(&self) -> bool {
        self.0.target.has_exited()
    }

    /// Replaces the grant. Subscriptions, connections and open files that are now forbidden are closed. Returns whether the
    /// grant has changed. A grant that cannot be parsed changes nothing.
    pub async fn regrant(&self, grant: &Grant) -> Result<bool> {
        let rules = Rules::parse(grant)?;
        let has_changed = self.0.rules.send_if_modified(|current| {
            let has_changed = current.grant() != grant;
            if has_changed {
                *current = Arc::new(rules);
            }
            has_changed
        });
        if has_changed {
            self.open_connections().reset_forbidden(&self.rules());
            self.close_forbidden_files().await?;
        }
        Ok(has_changed)
    }

    /// Closes the open files of all sessions that the current rules forbid.
    pub(crate) async fn close_forbidden_files(&self) -> Result<()> {
        let agent = self.clone();
        let close = move || {
            let rules = agent.rules();
            let tree = Tree::of(&agent, &rules);
            for handles in agent.0.open_files.lock().iter().filter_map(Weak::upgrade) {
                handles.retain(|file| tree.still_allows(file));
            }
            Ok(())
        };
        self.files().run(close).await
    }

    /// Registers the open files of a connection, which are checked whenever the grant changes.
    pub(crate) fn track_handles(&self, handles: &Arc<Handles>) {
        let mut all = self.0.open_files.lock();
        all.retain(|handles| handles.strong_count() > 0);
        all.push(Arc::downgrade(handles));
    }

    pub(crate) fn open_connections(&self) -> &OpenConnections {
        &self.0.open_connections
    }

    /// The current rules.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.0.rules.borrow())
    }

    /// Resolves with the error of `is_allowed` as soon as the rules forbid the operation.
    pub(crate) async fn until_forbidden(&self, is_allowed: impl Fn(&Rules) -> Result<()>) -> Error {
        let mut rules = self.0.rules.subscribe();
        loop {
            let verdict = is_allowed(&rules.borrow_and_update());
            if let Err(error) = verdict {
                return error;
            }
            if rules.changed().await.is_err() {
                // The agent was dropped, so the rules no longer change.
                std::future::pending::<()>().await;
            }
        }
    }

    pub(crate) fn target(&self) -> &Target {
        &self.0.target
    }

    /// Threads with the target's credentials.
    pub(crate) fn files(&self) -> &Workers {
        &self.0.files
    }

    /// A thread in the target's network namespace.
    pub(crate) fn sockets(&self) -> &Workers {
        &self.0.sockets
    }

    /// A thread in the target's UTS namespace, which has the target's host name.
    pub(crate) fn uts(&self) -> &Workers {
        &self.0.uts
    }

    pub(crate) fn local_devices(&self) -> &LocalDevices {
        &self.0.local_devices
    }

    pub(crate) fn own_identity(&self) -> &OwnIdentity {
        &self.0.own_identity
    }

    /// Sets the budget for everything that is buffered, which agents of the same process share. Only possible before the first
    /// client connects.
    #[must_use]
    pub fn with_memory(self, memory: Memory) -> Self {
        let _ = self.0.memory.set(memory);
        self
    }

    /// The budget for everything that is buffered.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        self.0.memory.get_or_init(Memory::default)
    }

    /// Sockets that were created in the target's network in advance.
    pub(crate) fn spare_sockets(&self) -> &SpareSockets {
        &self.0.spare_sockets
    }

    pub(crate) fn silent_nameservers(&self) -> &SilentNameservers {
        &self.0.silent_nameservers
    }

    /// The ports whose traffic is redirected to this agent.
    pub(crate) fn ports(&self) -> &Arc<Ports> {
        &self.0.ports
    }

    /// Watches the ports that sessions have claimed, until the agent ends.
    #[must_use]
    pub fn watch_ports(&self) -> watch::Receiver<AllClaims> {
        self.claimed_ports().subscribe()
    }

    pub(crate) fn claimed_ports(&self) -> &Arc<ClaimedPorts> {
        &self.0.claimed_ports
    }

    /// Whether `token` is the agent's token. Compares in constant time.
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

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token")
    }
}
