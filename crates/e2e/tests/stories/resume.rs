//! Connections between a session and its agent that are cut, again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::Recipe;
use e2e::machine::{Ended, RunningAgent, Target, Transport};
use e2e::{LaterWorld, Needs, tell};
use libtest_mimic::Trial;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::surroundings::{cache, programs};

const WORKERS: usize = 50;
const EACH: usize = 60;
/// So often all connections are cut.
const BETWEEN_CUTS: Duration = Duration::from_millis(200);
/// Fewer would prove nothing.
const LEAST_CUTS: u32 = 5;

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![
        tell(
            world,
            "requests_survive_a_connection_that_is_cut",
            Needs::Machine,
            async |_| requests_survive_cuts(Transport::Tcp).await,
        ),
        tell(
            world,
            "requests_survive_a_tls_connection_that_is_cut",
            Needs::Machine,
            async |_| requests_survive_cuts(Transport::Tls).await,
        ),
    ]
}

async fn requests_survive_cuts(transport: Transport) -> Result<()> {
    let target = Target::start()?;
    let agent = RunningAgent::start(&programs()?, &target, transport)?;
    let relay = Relay::start(&agent.address).await?;
    let mut session = agent.exec(&programs()?, &relay.address);
    session.arg(Recipe::CROWD.make(&cache())?).args([
        "requests",
        &WORKERS.to_string(),
        &EACH.to_string(),
    ]);
    let ended = tokio::task::spawn_blocking(move || Ended::of(&mut session)).await??;
    ensure!(ended.value("failed") == Some("0"), "{ended}");
    check_ledger(&ended.stdout).with_context(|| ended.to_string())?;
    let cuts = relay.cuts.load(Ordering::Relaxed);
    ensure!(cuts >= LEAST_CUTS, "only {cuts} connections were cut");
    Ok(())
}

/// Every worker's requests have arrived once, in their order.
fn check_ledger(printed: &str) -> Result<()> {
    let mut next = [0; WORKERS];
    for line in printed.lines() {
        let Some((worker, number)) = line.split_once(' ') else {
            continue;
        };
        let (Ok(worker), Ok(number)) = (worker.parse::<usize>(), number.parse::<usize>()) else {
            continue;
        };
        ensure!(
            next[worker] == number,
            "worker {worker}: after {} came {number}",
            next[worker]
        );
        next[worker] += 1;
    }
    ensure!(next == [EACH; WORKERS], "requests are missing: {next:?}");
    Ok(())
}

/// A relay that cuts all of its connections now and then. It ends with this value.
struct Relay {
    address: String,
    /// Connections that were cut while they were open.
    cuts: Arc<AtomicU32>,
    task: tokio::task::JoinHandle<()>,
}

impl Relay {
    async fn start(to: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let cuts = Arc::new(AtomicU32::new(0));
        let task = tokio::spawn(relay(listener, to.to_owned(), Arc::clone(&cuts)));
        Ok(Relay {
            address,
            cuts,
            task,
        })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn relay(listener: TcpListener, to: String, cuts: Arc<AtomicU32>) {
    let mut connections = JoinSet::new();
    let mut clock = tokio::time::interval(BETWEEN_CUTS);
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((mut near, _)) = accepted else { continue };
                let to = to.clone();
                connections.spawn(async move {
                    let mut far = TcpStream::connect(to).await?;
                    copy_bidirectional(&mut near, &mut far).await
                });
            }
            _ = clock.tick() => {
                while connections.try_join_next().is_some() {}
                cuts.fetch_add(u32::try_from(connections.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
                connections.shutdown().await;
            }
        }
    }
}
