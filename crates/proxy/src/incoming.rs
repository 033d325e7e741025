//! Connections that arrive at the target.
//!
//! The application listens with its own socket. For each port at the target there is one subscription at each agent,
//! however many sockets of the application share the port; a task of its own looks after the port, from the first
//! listener to the last, and one more after each agent's part of it.

mod arrival;
mod datagrams;
mod door;
mod doors;
mod port;
mod request;
mod subscription;
mod tls;
mod verify;
mod watch;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use config::{IncomingMode, IncomingRules, IncomingSettings};
use interceptor::{ListenerChoice, Listening, Transport};
use protocol::rpc::Failure;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use crate::agent::Agent;

use self::door::Asking;
use self::port::Port;
pub use self::request::Holder;
use self::request::Wishes;
use self::tls::TlsDelivery;
use crate::error::Error;

/// What a session does about the target's traffic. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Incoming {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    agent: Agent,
    rules: IncomingRules,
    wishes: Wishes,
    tls: Option<Arc<TlsDelivery>>,
    ports: Mutex<HashMap<Key, mpsc::UnboundedSender<Asking>>>,
}

/// A port of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    is_udp: bool,
    port: u16,
}

impl Incoming {
    pub(crate) fn new(
        agent: Agent,
        settings: &IncomingSettings,
        holder: Holder,
    ) -> Result<Self, Error> {
        let shared = Shared {
            agent,
            rules: IncomingRules::new(settings),
            wishes: Wishes::new(settings, holder),
            tls: TlsDelivery::new(&settings.tls_delivery)?.map(Arc::new),
            ports: Mutex::default(),
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
            // Whoever wants certain requests does not want everybody's datagrams.
            Transport::Udp if rules.filter(address.port(), port).is_none() => {
                ListenerChoice::Target
            }
            _ => ListenerChoice::Local,
        }
    }

    pub(crate) fn choose_port(&self, address: SocketAddr) -> Option<u16> {
        self.shared.rules.listen_port(address.port())
    }

    /// Subscribes on the session's runtime; returns at once.
    pub(crate) fn listen(&self, listening: Listening) {
        self.ask(Asking::from(listening));
    }

    fn ask(&self, asking: Asking) {
        let Some(port) = self.shared.rules.choose(asking.address) else {
            asking.accept();
            return;
        };
        let is_udp = asking.is_udp;
        let local = asking.address.port();
        let key = Key { is_udp, port };
        let mut ports = self.shared.lock();
        let asking = match ports.get(&key) {
            Some(sender) => match sender.send(asking) {
                Ok(()) => return,
                Err(back) => back.0,
            },
            None => asking,
        };
        let (sender, askings) = mpsc::unbounded_channel();
        // The receiver is right here.
        let _ = sender.send(asking);
        ports.insert(key, sender);
        drop(ports);
        let port = Port::new(Arc::clone(&self.shared), key, local, askings);
        self.shared.agent.runtime.spawn(port.live());
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, mpsc::UnboundedSender<Asking>>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn steals(&self) -> bool {
        self.rules.mode() == IncomingMode::Steal
    }
}

/// Whether an agent has decided not to do what it was asked for. Anything else has happened on the way.
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
