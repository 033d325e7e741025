//! Incoming traffic of the target.
//!
//! The application listens with its own socket. For each port of the target there is one subscription at each agent, even if
//! several sockets of the application share the port. A task of its own runs for each port, from the first listener to the
//! last, and another one for the subscription at each agent.
//!
//! | module | what it does |
//! |---|---|
//! | `port` | the task of a port: completes `listen` calls, follows the agents, emits events |
//! | `subscription` | the subscription of a port at one agent |
//! | `request` | the subscribe request, from the settings |
//! | `accept_pool` | streams that wait at the agent for connections, and the delivery of these |
//! | `app_listener`, `app_listeners` | the application's listeners |
//! | `closed_listeners` | receives the kernel's events about closed listeners |
//! | `datagrams` | the datagrams of one client |
//! | `tls`, `verify` | TLS towards the application |
//! | `diagnostics` | detects silent ports and missed requests |

mod accept_pool;
mod app_listener;
mod app_listeners;
mod closed_listeners;
mod datagrams;
mod diagnostics;
mod port;
mod request;
mod subscription;
mod tls;
mod verify;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use config::{IncomingMode, IncomingRules, IncomingSettings};
use interceptor::{ListenerChoice, PendingListener, Transport};
use parking_lot::Mutex;
use protocol::rpc::Failure;
use tokio::sync::{mpsc, oneshot};
use tonic::{Code, Status};

use crate::agent::SessionContext;

use self::app_listener::PendingListen;
use self::closed_listeners::ClosedListeners;
pub(crate) use self::port::UNSUBSCRIBE_TIMEOUT;
use self::port::{PortMessage, PortTask};
pub use self::request::Holder;
use self::request::SubscribeOptions;
use self::tls::TlsDelivery;
use crate::error::Error;

const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The incoming traffic of a session. Clones share the same state.
#[derive(Debug, Clone)]
pub(crate) struct Incoming {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    context: SessionContext,
    rules: IncomingRules,
    options: SubscribeOptions,
    tls: Option<Arc<TlsDelivery>>,
    ports: Mutex<HashMap<PortKey, mpsc::UnboundedSender<PortMessage>>>,
    closed_listeners: ClosedListeners,
    /// How often it is checked whether the application still listens. Events report it earlier where the kernel has them.
    poll_interval: Duration,
}

/// A port of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PortKey {
    is_udp: bool,
    port: u16,
}

impl Incoming {
    pub(crate) fn new(
        context: SessionContext,
        settings: &IncomingSettings,
        holder: Holder,
    ) -> Result<Self, Error> {
        Self::with_poll_interval(context, settings, holder, POLL_INTERVAL)
    }

    fn with_poll_interval(
        context: SessionContext,
        settings: &IncomingSettings,
        holder: Holder,
        poll_interval: Duration,
    ) -> Result<Self, Error> {
        let shared = Shared {
            context,
            rules: IncomingRules::new(settings),
            options: SubscribeOptions::new(settings, holder),
            tls: TlsDelivery::new(&settings.tls_delivery)?.map(Arc::new),
            ports: Mutex::default(),
            closed_listeners: ClosedListeners::default(),
            poll_interval,
        };
        let shared = Arc::new(shared);
        Ok(Self { shared })
    }

    pub(crate) fn choose(&self, transport: Transport, address: SocketAddr) -> ListenerChoice {
        let rules = &self.shared.rules;
        let Some(port) = rules.choose(address) else {
            return ListenerChoice::Local;
        };
        match transport {
            Transport::Tcp => ListenerChoice::Target,
            // A session with an HTTP filter does not get the datagrams of all clients.
            Transport::Udp if rules.filter(address.port(), port).is_none() => {
                ListenerChoice::Target
            }
            _ => ListenerChoice::Local,
        }
    }

    pub(crate) fn choose_port(&self, address: SocketAddr) -> Option<u16> {
        self.shared.rules.listen_port(address.port())
    }

    /// Subscribes on the session's runtime. Returns at once.
    pub(crate) fn listen(&self, listener: PendingListener) {
        self.start_listen(PendingListen::from(listener));
    }

    /// For a connection to a TCP port of the target: if the application had a listener on the port and has closed it, the
    /// connection must not reach the redirection, which is about to be removed. The connection may be opened when the receiver
    /// completes, with or without a value.
    pub(crate) fn wait_for_closed_port(&self, port: u16) -> Option<oneshot::Receiver<()>> {
        let key = PortKey {
            is_udp: false,
            port,
        };
        let (sender, receiver) = oneshot::channel();
        let ports = self.shared.ports.lock();
        ports
            .get(&key)?
            .send(PortMessage::Check(Some(sender)))
            .ok()?;
        Some(receiver)
    }

    fn start_listen(&self, listen: PendingListen) {
        let Some(port) = self.shared.rules.choose(listen.address) else {
            listen.accept();
            return;
        };
        let is_udp = listen.is_udp;
        let local_port = listen.address.port();
        let key = PortKey { is_udp, port };
        let mut ports = self.shared.ports.lock();
        // This comes before the call is completed: the application may close the socket right after it.
        let closed_listeners = &self.shared.closed_listeners;
        closed_listeners.watch(&self.shared, listen.cookie, key);
        let message = PortMessage::Listen(listen);
        let message = match ports.get(&key) {
            Some(sender) => match sender.send(message) {
                Ok(()) => return,
                Err(error) => error.0,
            },
            None => message,
        };
        let (sender, messages) = mpsc::unbounded_channel();
        // The receiver is still in scope, so the channel is open.
        let _ = sender.send(message);
        ports.insert(key, sender);
        drop(ports);
        let task = PortTask::new(Arc::clone(&self.shared), key, local_port, messages);
        self.shared.context.runtime.spawn(task.run());
    }
}

impl Shared {
    /// Lets the tasks of these ports check whether the application still listens.
    fn check_ports(&self, is_affected: impl Fn(&PortKey) -> bool) {
        let ports = self.ports.lock();
        for (_, sender) in ports.iter().filter(|(key, _)| is_affected(key)) {
            // A task that has ended needs no check.
            let _ = sender.send(PortMessage::Check(None));
        }
    }

    fn steals(&self) -> bool {
        self.rules.mode() == IncomingMode::Steal
    }
}

/// Whether the agent itself refused the request. Any other failure happened in transit.
fn is_final(status: &Status) -> bool {
    status.code() == Code::Unimplemented || Failure::from_status(status).is_some()
}

fn reason_of(status: &Status) -> String {
    match Failure::from_status(status) {
        Some(failure) => failure.detail,
        None if status.code() == Code::Unimplemented => {
            "the agent is of an older release; install the same one on both sides".to_owned()
        }
        None => status.message().to_owned(),
    }
}

#[cfg(test)]
mod tests;
