//! Sessions whose connections to the agent are cut repeatedly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::Recipe;
use e2e::machine::{ProgramOutput, RunningAgent, Target, Transport, network};
use e2e::{LazyEnvironment, Needs, scenario, until};
use libtest_mimic::Trial;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::support::{SessionProcess, cache, programs};

const WORKERS: usize = 50;
const REQUESTS_PER_WORKER: usize = 60;
/// How often all connections are cut.
const CUT_INTERVAL: Duration = Duration::from_millis(200);
/// Fewer cuts would make the test void.
const MIN_CUTS: u32 = 5;

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![
        scenario(
            environment,
            "requests_survive_a_connection_that_is_cut",
            Needs::Machine,
            async |_| requests_survive_cuts(Transport::Tcp).await,
        ),
        scenario(
            environment,
            "requests_survive_a_tls_connection_that_is_cut",
            Needs::Machine,
            async |_| requests_survive_cuts(Transport::Tls).await,
        ),
        scenario(
            environment,
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
    relay.start_cutting();
    let mut session = agent.exec(&programs()?, &relay.address);
    session.arg(Recipe::LOAD.compile(&cache())?).args([
        "requests",
        &WORKERS.to_string(),
        &REQUESTS_PER_WORKER.to_string(),
    ]);
    let output = tokio::task::spawn_blocking(move || ProgramOutput::of(&mut session)).await??;
    ensure!(output.value("failed") == Some("0"), "{output}");
    check_ledger(&output.stdout).with_context(|| output.to_string())?;
    let cuts = relay.cuts.load(Ordering::Relaxed);
    ensure!(cuts >= MIN_CUTS, "only {cuts} connections were cut");
    Ok(())
}

/// A server that responds with the body of the request.
const ECHO_SERVER: &str = "from http.server import *
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        print('started', flush=True)
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

/// A request and its response with a large body, while the connection to the agent is cut repeatedly.
async fn stolen_requests_survive_cuts() -> Result<()> {
    let target = Target::start()?;
    let agent = RunningAgent::start(&programs()?, &target, Transport::Tcp)?;
    let relay = Relay::start(&agent.address).await?;
    let mut command = agent.exec(&programs()?, &relay.address);
    command.args(["python3", "-c", ECHO_SERVER]);
    let settings = [
        ("INCOMING", "steal"),
        ("INCOMING_HEADER_FILTER", "^x-session: mine$"),
    ];
    let session = SessionProcess::start(command, &settings)?;
    session.wait_for_message("go to the program").await?;
    let folder = tempfile::tempdir()?;
    let (sent, received) = (folder.path().join("sent"), folder.path().join("received"));
    let noise: Vec<u8> = (0..16_u32 << 20)
        .map(|byte| (byte.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    std::fs::write(&sent, &noise)?;
    let url = format!("http://{}:{}/", network::TARGET, network::APPLICATION);
    let mut curl = target.in_peer_network("curl");
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
    .arg(&received)
    .arg(url);
    let request = tokio::task::spawn_blocking(move || lab::output_of(&mut curl));
    // A request that arrives while the session is unreachable goes to the application, so the cuts begin later.
    until("the request", async || {
        Ok(session.stdout()?.contains("started").then_some(()))
    })
    .await?;
    relay.start_cutting();
    request.await?.with_context(|| session.report())?;
    ensure!(
        std::fs::read(&received)? == noise,
        "the response is not what was sent"
    );
    let cuts = relay.cuts.load(Ordering::Relaxed);
    ensure!(cuts >= MIN_CUTS, "only {cuts} connections were cut");
    Ok(())
}

/// Checks that every worker's requests were received once and in order.
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
            "worker {worker}: expected request {}, received {number}",
            next[worker]
        );
        next[worker] += 1;
    }
    ensure!(
        next == [REQUESTS_PER_WORKER; WORKERS],
        "requests are missing: {next:?}"
    );
    Ok(())
}

/// A TCP relay that cuts all its connections at intervals, once cutting has started. It stops when dropped.
struct Relay {
    address: String,
    /// Connections that were cut while they were open.
    cuts: Arc<AtomicU32>,
    /// Set by the scenario when cutting starts.
    is_cutting: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Relay {
    async fn start(to: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let cuts = Arc::new(AtomicU32::new(0));
        let is_cutting = Arc::new(AtomicBool::new(false));
        let state = (Arc::clone(&is_cutting), Arc::clone(&cuts));
        let task = tokio::spawn(relay(listener, to.to_owned(), state));
        Ok(Relay {
            address,
            cuts,
            is_cutting,
            task,
        })
    }
}

impl Relay {
    fn start_cutting(&self) {
        self.is_cutting.store(true, Ordering::Relaxed);
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
    (is_cutting, cuts): (Arc<AtomicBool>, Arc<AtomicU32>),
) {
    let mut connections = JoinSet::new();
    let mut clock = tokio::time::interval(CUT_INTERVAL);
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
                if !is_cutting.load(Ordering::Relaxed) {
                    continue;
                }
                while connections.try_join_next().is_some() {}
                cuts.fetch_add(u32::try_from(connections.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
                connections.shutdown().await;
            }
        }
    }
}
