//! Keeps the tunnel to the hub, and reports its state.
//!
//! Usually there is one tunnel. When the hub's replica at its other end shuts down, a second one is opened first, to another
//! replica, and the first one ends when its requests have ended.

use std::sync::Arc;
use std::time::Duration;

use error_chain::error_chain;
use jiff::Timestamp;
use rustls::ClientConfig;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tunnel::{Credentials, Ended, Status};

use crate::condition::Condition;
use crate::control::Control;
use crate::identity::Identity;
use crate::report::Report;
use crate::service::{AgentService, Gate};

/// How often an agent that the hub refuses looks for a new registration token.
const TOKEN_INTERVAL: Duration = Duration::from_secs(5);

impl Credentials for Identity {
    fn tls(&self) -> Arc<ClientConfig> {
        Identity::tls(self)
    }
}

/// What a tunnel needs.
pub(crate) struct Connector {
    pub(crate) settings: tunnel::Settings,
    pub(crate) identity: Arc<Identity>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) condition: Arc<Condition>,
}

/// Why there is no connection to keep any more.
#[derive(Debug)]
pub(crate) enum Outcome {
    Shutdown,
    /// The agent should register again, for this reason.
    Register(String),
    Failed(tunnel::Error),
}

/// What happens while there is a tunnel.
enum Event {
    Changed,
    /// The task of the tunnel has ended by itself.
    Ended,
    /// The hub's replica shuts down.
    Draining,
    SuccessorConnected,
    /// It is time to check whether there is a new registration token.
    Tick,
    Shutdown,
}

/// A running tunnel, which reconnects by itself.
struct Tunnel {
    status: watch::Receiver<Status>,
    draining: watch::Receiver<bool>,
    stop: CancellationToken,
    running: JoinHandle<Ended>,
}

impl Connector {
    /// Keeps a tunnel until the shutdown. `can_register` says whether there is a token that was not used yet, and is asked
    /// while the hub refuses this agent.
    pub(crate) async fn run<F>(
        &self,
        can_register: impl Fn(String) -> F,
        shutdown: &CancellationToken,
    ) -> Outcome
    where
        F: Future<Output = bool>,
    {
        let tasks = TaskTracker::new();
        let mut tunnel = self.open(&tasks);
        let mut successor: Option<Tunnel> = None;
        let mut report = Report::new(Arc::clone(&self.condition));
        let mut ticks = interval(TOKEN_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let outcome = loop {
            let expires = self.identity.current().facts.not_after;
            let status = tunnel.status.borrow_and_update().clone();
            let problem = report.status(&status, expires, Timestamp::now());
            let event = tokio::select! {
                changed = tunnel.status.changed() => match changed {
                    Ok(()) => Event::Changed,
                    Err(_) => Event::Ended,
                },
                () = draining(&mut tunnel.draining), if successor.is_none() => Event::Draining,
                () = connected(&mut successor) => Event::SuccessorConnected,
                _ = ticks.tick(), if problem.is_some() => Event::Tick,
                () = shutdown.cancelled() => Event::Shutdown,
            };
            match event {
                Event::Changed => {}
                Event::Ended => break ended(&mut tunnel.running).await,
                Event::Draining => successor = Some(self.open(&tasks)),
                Event::SuccessorConnected => {
                    // Its requests may still end; new ones go through the other tunnel.
                    tunnel.stop.cancel();
                    if let Some(next) = successor.take() {
                        tunnel = next;
                    }
                }
                Event::Tick => {
                    if let Some(problem) = problem
                        && can_register(problem.clone()).await
                    {
                        break Outcome::Register(problem);
                    }
                }
                Event::Shutdown => break Outcome::Shutdown,
            }
        };
        tunnel.stop.cancel();
        if let Some(successor) = successor {
            successor.stop.cancel();
        }
        tasks.close();
        tasks.wait().await;
        outcome
    }

    fn open(&self, tasks: &TaskTracker) -> Tunnel {
        let (status_sender, status) = watch::channel(Status::Connecting);
        let (draining_sender, draining) = watch::channel(false);
        let control = Control {
            identity: Arc::clone(&self.identity),
            api_server: Arc::clone(&self.gate.api_server),
            draining: draining_sender,
        };
        let service = AgentService::new(Arc::clone(&self.gate), Arc::new(control));
        let stop = CancellationToken::new();
        let running = tasks.spawn(tunnel::run(
            self.settings.clone(),
            Arc::clone(&self.identity) as Arc<dyn Credentials>,
            service,
            status_sender,
            stop.clone(),
        ));
        Tunnel {
            status,
            draining,
            stop,
            running,
        }
    }
}

/// Waits until the hub's replica shuts down.
async fn draining(draining: &mut watch::Receiver<bool>) {
    if draining.wait_for(|draining| *draining).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits until the second tunnel is connected, if there is one.
async fn connected(successor: &mut Option<Tunnel>) {
    let is_connected = |status: &Status| matches!(status, Status::Connected { .. });
    if let Some(tunnel) = successor
        && tunnel.status.wait_for(is_connected).await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

async fn ended(running: &mut JoinHandle<Ended>) -> Outcome {
    match running.await {
        Ok(Ended::Failed(error)) => Outcome::Failed(error),
        Ok(Ended::Shutdown) => Outcome::Shutdown,
        Err(error) => {
            let reason = error_chain(&error);
            tracing::error!(reason, "tunnel task failed");
            Outcome::Register(reason)
        }
    }
}
