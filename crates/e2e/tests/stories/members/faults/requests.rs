//! Requests in two clusters, one after the other, while what carries them breaks. Each is answered, by a process on this
//! machine or by the service itself. Nobody gets one twice, and what the process has answered does not come to the service.
//! The service may answer one that the process got and did not answer in time: somebody has to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use e2e::{Stage, until};
use lab::Progress;

use super::super::super::surroundings::{Running, standin_in};
use super::restarts;
use super::{Operator, SHOP, Scene, network, pods};

/// Answers every request, and prints what was asked for.
const SERVER: &str = "\
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        os.write(1, f'asked for {self.path}\\n'.encode())
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
    let mut session = start(scene)?;
    let mut streams = Vec::new();
    for member in [&scene.east, &scene.west] {
        streams.push(Requests::begin(scene, member)?);
    }
    let told = breaking(scene, &session, &streams).await;
    let mut answered = Answered::default();
    let mut pods = Vec::new();
    for (stream, member) in streams.into_iter().zip([&scene.east, &scene.west]) {
        pods.push((member, stream.pod.clone()));
        answered.extend(stream.end().with_context(|| session.report())?);
    }
    told.with_context(|| session.report())?;
    let by_service = until("what the services have got", async || {
        let mut said = String::new();
        for (member, pod) in &pods {
            said += &member.kubectl_in(SHOP, &["logs", pod])?;
        }
        let received = received(&said, "\"GET /", " ");
        let is_complete = answered
            .by_service
            .iter()
            .all(|name| received.contains_key(name));
        Ok(is_complete.then_some(received))
    })
    .await
    .context("a request was answered by nobody")?;
    answered.is_as_received(
        &received(&session.stdout()?, "asked for /", "\n"),
        &by_service,
    )?;
    session.interrupt()
}

/// Who has answered which request.
#[derive(Default)]
struct Answered {
    by_process: BTreeSet<String>,
    by_service: BTreeSet<String>,
}

impl Answered {
    fn extend(&mut self, other: Answered) {
        self.by_process.extend(other.by_process);
        self.by_service.extend(other.by_service);
    }

    /// Compares what clients got with what the two say that they were asked for.
    fn is_as_received(
        &self,
        process: &BTreeMap<String, usize>,
        service: &BTreeMap<String, usize>,
    ) -> Result<()> {
        for (who, received) in [("process", process), ("service", service)] {
            let twice: Vec<_> = received.iter().filter(|(_, times)| **times > 1).collect();
            ensure!(twice.is_empty(), "the {who} got these twice: {twice:?}");
        }
        for name in &self.by_process {
            ensure!(process.contains_key(name), "nobody was asked for {name}");
            ensure!(!service.contains_key(name), "both were asked for {name}");
        }
        let late = self.by_service.iter();
        let late = late.filter(|name| process.contains_key(*name)).count();
        Progress::to_stderr().step(format!(
            "the process has answered {} requests, and the service {}, of which {late} came to the process as well",
            self.by_process.len(),
            self.by_service.len()
        ));
        Ok(())
    }
}

/// How often each request was received: its name is between these, in the words of who got it.
fn received(said: &str, before: &str, after: &str) -> BTreeMap<String, usize> {
    let mut received = BTreeMap::new();
    for rest in said.split(before).skip(1) {
        if let Some((name, _)) = rest.split_once(after) {
            *received.entry(name.to_owned()).or_default() += 1;
        }
    }
    received
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
    for member in [&scene.east, &scene.west] {
        // What is counted when all is over can be seen.
        ensure!(
            scene.rules(&pods(member)?)? > 0,
            "a session steals without a rule"
        );
    }
    let by_service = |stream: &Requests| -> Result<usize> {
        let said = scene.west.kubectl_in(SHOP, &["logs", &stream.pod])?;
        Ok(received(&said, "\"GET /", " ").len())
    };
    let before = by_service(&streams[1])?;
    restarts::drain(&scene.west).await?;
    both("a member's replicas have been drained").await?;
    let after = by_service(&streams[1])?;
    ensure!(
        before == after,
        "the service got {} requests while replicas of its operator were drained",
        after - before
    );
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
    pod: String,
    ends: Ends,
    thread: JoinHandle<Result<Answered>>,
}

/// The last request is sent when this is dropped.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Requests {
    fn begin(scene: &Scene<'_>, member: &Operator) -> Result<Self> {
        let name = member.stage.cluster.name.clone();
        let first = "--output=jsonpath={.items[0].metadata.name} {.items[0].status.podIP}";
        let first = member.kubectl_in(SHOP, &["get", "pods", "--selector=app=web", first])?;
        let (pod, address) = first.split_once(' ').context("no pod")?;
        let address = address.to_owned();
        let cluster = scene.clusters.lab().cluster(&name)?.clone();
        let ends = Ends(Arc::new(AtomicBool::new(false)));
        let (is_over, label) = (Arc::clone(&ends.0), name.clone());
        let thread = thread::spawn(move || {
            let mut answered = Answered::default();
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
                match answer.trim() {
                    "anna" => answered.by_process.insert(request),
                    other if other.starts_with("web-") => answered.by_service.insert(request),
                    other => bail!("{request} was lost: {other:?}"),
                };
                thread::sleep(BETWEEN_REQUESTS);
            }
            Ok(answered)
        });
        Ok(Requests {
            cluster: name,
            pod: pod.to_owned(),
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

    fn end(self) -> Result<Answered> {
        drop(self.ends);
        let ended = self.thread.join();
        ended.map_err(|_| anyhow!("the requests in {} panicked", self.cluster))?
    }
}
