//! Requests in two clusters, one after the other, while what carries them breaks. A process on this machine answers them,
//! or the service itself where the process is too slow: none is lost, and none comes to the process twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use e2e::{Stage, until};
use lab::Progress;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::super::super::surroundings::{Running, standin_in};
use super::restarts;
use super::{Operator, SHOP, Scene, network};

/// Answers every request, and prints what was asked for.
const SERVER: &str = "\
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print('asked for', self.path, flush=True)
        body = b'anna\\n'
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments): pass
http.server.ThreadingHTTPServer(('', 8080), Handler).serve_forever()
";
/// Longer than any fault. A request waits for its answer while what carries it is being made again.
const PATIENCE: &str = "200";
const BETWEEN_REQUESTS: Duration = Duration::from_millis(200);

pub(super) async fn none_is_lost_and_none_comes_twice(scene: &Scene<'_>) -> Result<()> {
    let session = start(scene)?;
    let mut streams = Vec::new();
    for member in [&scene.east, &scene.west] {
        streams.push(Requests::begin(scene, member)?);
    }
    let told = breaking(scene, &session, &streams).await;
    let mut sent = Vec::new();
    for stream in streams {
        sent.extend(stream.end().with_context(|| session.report())?);
    }
    told.with_context(|| session.report())?;
    let printed = session.stdout()?;
    let mut received: BTreeMap<&str, usize> = BTreeMap::new();
    for path in printed
        .lines()
        .filter_map(|line| line.strip_prefix("asked for /"))
    {
        *received.entry(path).or_default() += 1;
    }
    let twice: Vec<_> = received.iter().filter(|(_, times)| **times > 1).collect();
    ensure!(twice.is_empty(), "these came twice: {twice:?}");
    for name in &sent {
        ensure!(
            received.contains_key(name.as_str()),
            "{name} was answered by nobody"
        );
    }
    Progress::to_stderr().step(format!("{} requests were answered here", sent.len()));
    kill(
        Pid::from_raw(i32::try_from(session.pid())?),
        Signal::SIGTERM,
    )?;
    session.end()?;
    Ok(())
}

/// One fault after the other. After each of them both clusters are heard of again.
async fn breaking(scene: &Scene<'_>, session: &Running, streams: &[Requests]) -> Result<()> {
    let both = async |after: &str| -> Result<()> {
        for stream in streams {
            stream
                .goes_on(session)
                .await
                .with_context(|| format!("after {after}"))?;
        }
        Ok(())
    };
    both("the start").await?;
    restarts::kill(&scene.hub)?;
    both("the end of the Primary").await?;
    restarts::kill(&scene.west)?;
    both("the end of a member's operator").await?;
    network::api_server_of(scene, "west", false)?;
    network::api_server_of(scene, "west", true)?;
    both("a restart of a member's API server").await?;
    let lab = scene.clusters.lab();
    lab.cut("hub", "west")?;
    scene.is_away("west", "").await?;
    // The other cluster does not wait for it.
    streams[0]
        .goes_on(session)
        .await
        .context("while west is cut off")?;
    lab.heal_link("hub", "west")?;
    both("a cut").await
}

fn start(scene: &Scene<'_>) -> Result<Running> {
    let shop = Stage {
        cluster: scene.hub.stage.cluster.clone(),
        namespace: SHOP.to_owned(),
    };
    let mut session = standin_in(&shop)?;
    session
        .env_remove("STANDIN_AGENT_IMAGE")
        .args(["exec", "-t", "deployment/web", "--steal"])
        .args(["--header-filter", "^x-user: anna$", "--"])
        .args(["python3", "-c", SERVER]);
    Running::start(session, &[])
}

/// Requests to the first pod of a member, from its node: no API server is on the way.
struct Requests {
    cluster: String,
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<String>>>,
}

impl Requests {
    fn begin(scene: &Scene<'_>, member: &Operator) -> Result<Self> {
        let name = member.stage.cluster.name.clone();
        let address = "--output=jsonpath={.items[0].status.podIP}";
        let address = member.kubectl_in(SHOP, &["get", "pods", "--selector=app=web", address])?;
        let cluster = scene.clusters.lab().cluster(&name)?.clone();
        let ends = Arc::new(AtomicBool::new(false));
        let (is_over, label) = (Arc::clone(&ends), name.clone());
        let thread = thread::spawn(move || {
            let mut answered = Vec::new();
            for number in 0_u32.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let request = format!("{label}-{number}");
                let url = format!("http://{address}:8080/{request}");
                let mut curl = cluster.in_network_of(&cluster.plan().first_node().name)?;
                curl.args(["curl", "--silent", "--show-error", "--max-time", PATIENCE])
                    .args(["-H", "x-user: anna", &url]);
                let answer = lab::output_of(&mut curl)?;
                // While the process cannot answer, the service does. Nothing else may.
                match answer.trim() {
                    "anna" => answered.push(request),
                    other => ensure!(other.starts_with("web-"), "{request}: {other:?}"),
                }
                thread::sleep(BETWEEN_REQUESTS);
            }
            Ok(answered)
        });
        Ok(Requests {
            cluster: name,
            ends,
            thread,
        })
    }

    /// Waits until the process has got two more requests: one of them was sent after now.
    async fn goes_on(&self, session: &Running) -> Result<()> {
        let begins = format!("asked for /{}-", self.cluster);
        let count = || -> Result<usize> {
            let printed = session.stdout()?;
            Ok(printed
                .lines()
                .filter(|line| line.starts_with(&begins))
                .count())
        };
        let before = count()?;
        until(&format!("requests in {}", self.cluster), async || {
            Ok((count()? >= before + 2).then_some(()))
        })
        .await
    }

    /// The names of those that the process has answered.
    fn end(self) -> Result<Vec<String>> {
        self.ends.store(true, Ordering::Relaxed);
        let ended = self.thread.join();
        ended.map_err(|_| anyhow!("the requests in {} panicked", self.cluster))?
    }
}
