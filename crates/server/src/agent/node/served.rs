//! What a node's agent serves: for each name one target and one client, as an agent of one session would.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::agent::{Agent, AllHeld, process_of_container};
use anyhow::{Context, Result, bail};
use api::node::{NodeOrder, Served, ServedEnd};
use link::ServerSettings;
use protocol::grant::Grant;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::agent::arrival::{Door, Proof};
use crate::agent::life::Sessions;
use crate::agent::{ENDS_WITHIN, serve_at, until_the_end};

/// How long an end is remembered, so that the operator knows how often something was tried.
const REMEMBERED: Duration = Duration::from_secs(600);
/// So many ports are tried, from the one that was asked for.
const PORTS_TRIED: u16 = 100;
/// How often to look whether a container is still there.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Clones are the same.
#[derive(Clone)]
pub(super) struct ServedTargets {
    /// Where clients arrive, at a port for each.
    address: IpAddr,
    entries: Arc<Mutex<BTreeMap<String, Entry>>>,
}

struct Entry {
    served: Served,
    /// As long as it serves.
    agent: Option<Agent>,
    /// Cancelled when it is to end.
    end: CancellationToken,
    /// Cancelled when it has ended.
    ended: CancellationToken,
    ended_at: Option<Instant>,
}

impl ServedTargets {
    pub(super) fn at(address: IpAddr) -> Self {
        Self {
            address,
            entries: Arc::default(),
        }
    }

    /// Serves a target from now on. What is served by this name already stays as it is.
    pub(super) async fn serve(&self, order: &NodeOrder) -> Result<Served> {
        if let Some(known) = self.lock().get(&order.name) {
            return Ok(known.served.clone());
        }
        let container = order.container.clone();
        let grant: Grant = match &order.grant {
            Some(grant) => serde_json::from_value(grant.clone())
                .context("what sessions may do cannot be understood")?,
            None => Grant::default(),
        };
        // It reads what the kernel says of every process.
        let agent = tokio::task::spawn_blocking(move || -> Result<Agent> {
            let process = process_of_container(&container)?;
            Ok(Agent::for_process_with_grant(process, &grant)?)
        })
        .await??;
        agent.check().await?;
        let proof = Proof::Certificate {
            client: order
                .client_certificate
                .parse()
                .context("the client's certificate is no SHA-256")?,
            ended_by: None,
        };
        let settings = ServerSettings {
            longest_resume_window: Duration::from_secs(order.resume_window_secs),
            ..ServerSettings::default()
        };
        let door = open(self.address, order.port, &proof, settings).await?;
        let certificate = door.certificate.context("it does not speak TLS")?;
        let served = Served {
            name: order.name.clone(),
            pod: order.pod.clone(),
            container: order.container.clone(),
            port: door.address.port(),
            certificate: certificate.to_string(),
            ended: None,
        };
        let entry = Entry {
            served: served.clone(),
            agent: Some(agent.clone()),
            end: CancellationToken::new(),
            ended: CancellationToken::new(),
            ended_at: None,
        };
        let (end, ended) = (entry.end.clone(), entry.ended.clone());
        {
            let mut entries = self.lock();
            // Somebody may have asked for the same meanwhile.
            if let Some(known) = entries.get(&order.name) {
                return Ok(known.served.clone());
            }
            entries.insert(order.name.clone(), entry);
        }
        tracing::info!(
            name = order.name,
            container = order.container,
            "a target is served"
        );
        let patience = Duration::from_secs(order.patience_secs);
        let (all, name) = (self.clone(), order.name.clone());
        tokio::spawn(async move {
            let how = live(&door, &agent, patience, &end).await;
            tracing::info!(name, why = how.why, "a target is not served any more");
            all.note_end(&name, how);
            ended.cancel();
        });
        Ok(served)
    }

    /// Changes what the session of a target may do. One that ends may do nothing any more.
    pub(super) async fn regrant(&self, name: &str, grant: serde_json::Value) -> Result<()> {
        let agent = self.lock().get(name).and_then(|entry| entry.agent.clone());
        match agent {
            Some(agent) => super::super::regrant(&agent, grant).await,
            None => Ok(()),
        }
    }

    /// Which ports the session of a target has. None, when it is not served.
    pub(super) fn ports(&self, name: &str) -> Option<watch::Receiver<AllHeld>> {
        let entries = self.lock();
        Some(entries.get(name)?.agent.as_ref()?.watch_ports())
    }

    /// What is served, and what has ended lately.
    pub(super) fn list(&self, prefix: &str) -> Vec<Served> {
        let mut entries = self.lock();
        entries.retain(|_, entry| {
            let is_old = |ended: Instant| ended.elapsed() > REMEMBERED;
            !entry.ended_at.is_some_and(is_old)
        });
        let found = entries.values();
        let found = found.filter(|entry| entry.served.name.starts_with(prefix));
        found.map(|entry| entry.served.clone()).collect()
    }

    pub(super) fn end(&self, name: &str) {
        if let Some(entry) = self.lock().get(name) {
            entry.end.cancel();
        }
    }

    /// Ends all, and waits until what others have through us is given back.
    pub(super) async fn end_all(&self) {
        let mut endings = JoinSet::new();
        for entry in self.lock().values() {
            entry.end.cancel();
            endings.spawn(entry.ended.clone().cancelled_owned());
        }
        let _ = timeout(ENDS_WITHIN * 2, endings.join_all()).await;
    }

    fn note_end(&self, name: &str, how: ServedEnd) {
        if let Some(entry) = self.lock().get_mut(name) {
            entry.served.ended = Some(how);
            entry.agent = None;
            entry.ended_at = Some(Instant::now());
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The port that was asked for, or the next one that nobody has.
async fn open(address: IpAddr, port: u16, proof: &Proof, settings: ServerSettings) -> Result<Door> {
    let mut last = None;
    for port in port..port.saturating_add(PORTS_TRIED) {
        let listen = SocketAddr::new(address, port);
        match Door::open(listen, proof, settings.clone()).await {
            Ok(door) => return Ok(door),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error),
        None => bail!("no port was asked for"),
    }
}

/// Serves until the session is over, the container is gone, or somebody ends it.
async fn live(
    door: &Door,
    agent: &Agent,
    patience: Duration,
    end: &CancellationToken,
) -> ServedEnd {
    let sessions = Sessions::default();
    let over = CancellationToken::new();
    let mut why = "it was told to end";
    let ending = async {
        why = tokio::select! {
            () = sessions.over(patience) => "its session is over",
            () = gone(agent) => "its container has ended",
            () = end.cancelled() => "it was told to end",
        };
    };
    let serving = serve_at(door, agent, &sessions, &over);
    let result = until_the_end(serving, ending, agent.end()).await;
    door.close(why);
    over.cancel();
    ServedEnd {
        has_failed: result.is_err(),
        why: match result {
            Ok(()) => why.to_owned(),
            Err(error) => format!("{error:#}"),
        },
    }
}

async fn gone(agent: &Agent) {
    while !agent.target_is_gone() {
        sleep(BETWEEN_LOOKS).await;
    }
}
