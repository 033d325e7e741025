//! Connections between a session and its agent that are cut, again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::Recipe;
use e2e::machine::{Ended, RunningAgent, Target, Transport, network};
use e2e::{LaterWorld, Needs, tell, until};
use libtest_mimic::Trial;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::surroundings::{Running, cache, programs};

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
        tell(
            world,
            "stolen_requests_survive_a_connection_that_is_cut",
            Needs::Machine,
            async |_| stolen_requests_survive_cuts().await,
        ),
    ]
}

async fn requests_survive_cuts(transport: Transport) -> Result<()> {
    let target = Target::start()?;
    let agent = RunningAgent::start(&programs()?, &target, transport)?;
    let relay = Relay::start(&agent.address).await?;
    relay.begin();
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

/// Gives the body of a request back.
const MIRROR: &str = "from http.server import *
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        print('begun', flush=True)
        length = int(self.headers['Content-Length'])
        self.send_response(200)
        self.send_header('Content-Length', str(length))
        self.end_headers()
        while length:
            part = self.rfile.read(min(length, 65536))
            self.wfile.write(part)
            length -= len(part)
    def log_message(self, *_):
        pass
ThreadingHTTPServer(('0.0.0.0', 8080), Handler).serve_forever()
";

/// A body that goes to the program and comes back, while the connection to the agent is cut again and again.
async fn stolen_requests_survive_cuts() -> Result<()> {
    let target = Target::start()?;
    let agent = RunningAgent::start(&programs()?, &target, Transport::Tcp)?;
    let relay = Relay::start(&agent.address).await?;
    let mut command = agent.exec(&programs()?, &relay.address);
    command.args(["python3", "-c", MIRROR]);
    let settings = [
        ("INCOMING", "steal"),
        ("INCOMING_HEADER_FILTER", "^x-session: mine$"),
    ];
    let session = Running::start(command, &settings)?;
    session.says("are answered by the program").await?;
    let folder = tempfile::tempdir()?;
    let (sent, back) = (folder.path().join("sent"), folder.path().join("back"));
    let noise: Vec<u8> = (0..16_u32 << 20)
        .map(|byte| (byte.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    std::fs::write(&sent, &noise)?;
    let url = format!("http://{}:{}/", network::TARGET, network::APPLICATION);
    let mut curl = target.outside("curl");
    curl.args([
        "--silent",
        "--show-error",
        "--fail",
        "--max-time",
        "60",
        "--limit-rate",
        "8M",
    ])
    .args(["-H", "x-session: mine", "-H", "Expect:", "--data-binary"])
    .arg(format!("@{}", sent.display()))
    .arg("--output")
    .arg(&back)
    .arg(url);
    let asked = tokio::task::spawn_blocking(move || lab::output_of(&mut curl));
    // A request that comes while nobody can be reached is the application's; this one is the program's.
    until("the request", async || {
        Ok(session.stdout()?.contains("begun").then_some(()))
    })
    .await?;
    relay.begin();
    asked.await?.with_context(|| session.report())?;
    ensure!(
        std::fs::read(&back)? == noise,
        "the answer is not what was sent"
    );
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

/// A relay that cuts all of its connections now and then, from when it is told to. It ends with this value.
struct Relay {
    address: String,
    /// Connections that were cut while they were open.
    cuts: Arc<AtomicU32>,
    /// From the story to the relay.
    begun: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Relay {
    async fn start(to: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let cuts = Arc::new(AtomicU32::new(0));
        let begun = Arc::new(AtomicBool::new(false));
        let cutting = (Arc::clone(&begun), Arc::clone(&cuts));
        let task = tokio::spawn(relay(listener, to.to_owned(), cutting));
        Ok(Relay {
            address,
            cuts,
            begun,
            task,
        })
    }
}

impl Relay {
    fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn relay(
    listener: TcpListener,
    to: String,
    (begun, cuts): (Arc<AtomicBool>, Arc<AtomicU32>),
) {
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
                if !begun.load(Ordering::Relaxed) {
                    continue;
                }
                while connections.try_join_next().is_some() {}
                cuts.fetch_add(u32::try_from(connections.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
                connections.shutdown().await;
            }
        }
    }
}
