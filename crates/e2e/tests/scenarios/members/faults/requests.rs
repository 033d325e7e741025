//! Requests in two clusters during faults of the operators and the network. Each request gets a response, from the local
//! process or from the service itself. Neither receives a request twice, and the service does not receive requests to which
//! the process has responded. The service may receive a request to which the process did not respond in time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use e2e::{TestNamespace, until};
use lab::Progress;

use super::super::super::support::{SessionProcess, standin_in};
use super::{Operator, SHOP, Setup, network, pods, restarts};

/// A server that responds to every request, and prints its path.
const SERVER: &str = "\
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        os.write(1, f'request {self.path}\\n'.encode())
        body = b'anna\\n'
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments): pass
http.server.ThreadingHTTPServer(('', 8080), Handler).serve_forever()
";
/// Longer than any fault. A request waits for its response while the session's connection is restored.
const REQUEST_TIMEOUT_SECS: &str = "200";
const REQUEST_INTERVAL: Duration = Duration::from_millis(200);

pub(super) async fn none_is_lost_or_duplicated(setup: &Setup<'_>) -> Result<()> {
    let mut session = start(setup)?;
    let mut streams = Vec::new();
    for member in [&setup.east, &setup.west] {
        streams.push(RequestStream::start(setup, member)?);
    }
    let result = inject_faults(setup, &session, &streams).await;
    // The requests end only when the network works again.
    setup.clusters.lab().heal()?;
    let mut responses = Responses::default();
    let mut pods = Vec::new();
    for (stream, member) in streams.into_iter().zip([&setup.east, &setup.west]) {
        pods.push((member, stream.pod.clone()));
        responses.extend(stream.end().with_context(|| session.report())?);
    }
    result.with_context(|| session.report())?;
    let by_service = until("the logs of the services to be complete", async || {
        let mut log = String::new();
        for (member, pod) in &pods {
            log += &member.kubectl_in(SHOP, &["logs", pod])?;
        }
        let received = received(&log, "\"GET /", " ");
        let is_complete = responses
            .by_service
            .iter()
            .all(|name| received.contains_key(name));
        Ok(is_complete.then_some(received))
    })
    .await
    .context("neither the process nor the service has received a request")?;
    responses.check_received(
        &received(&session.stdout()?, "request /", "\n"),
        &by_service,
    )?;
    session.terminate()
}

/// The names of the requests, by responder.
#[derive(Default)]
struct Responses {
    by_process: BTreeSet<String>,
    by_service: BTreeSet<String>,
}

impl Responses {
    fn extend(&mut self, other: Responses) {
        self.by_process.extend(other.by_process);
        self.by_service.extend(other.by_service);
    }

    /// Compares the responses that clients got with the requests that the process and the service received.
    fn check_received(
        &self,
        process: &BTreeMap<String, usize>,
        service: &BTreeMap<String, usize>,
    ) -> Result<()> {
        for (receiver, received) in [("process", process), ("service", service)] {
            let twice: Vec<_> = received.iter().filter(|(_, times)| **times > 1).collect();
            ensure!(
                twice.is_empty(),
                "the {receiver} received these twice: {twice:?}"
            );
        }
        for name in &self.by_process {
            ensure!(
                process.contains_key(name),
                "the process has not received {name}"
            );
            ensure!(
                !service.contains_key(name),
                "the service has received {name}, too"
            );
        }
        let late = self.by_service.iter();
        let late = late.filter(|name| process.contains_key(*name)).count();
        Progress::to_stderr().step(format!(
            "responses: {} of the process, {} of the service, {late} of them after the process had received the request",
            self.by_process.len(),
            self.by_service.len()
        ));
        Ok(())
    }
}

/// How often each request was received, according to a log in which its name is between these texts.
fn received(log: &str, before: &str, after: &str) -> BTreeMap<String, usize> {
    let mut received = BTreeMap::new();
    for rest in log.split(before).skip(1) {
        if let Some((name, _)) = rest.split_once(after) {
            *received.entry(name.to_owned()).or_default() += 1;
        }
    }
    received
}

/// Injects one fault after the other. After each of them the process receives requests of both clusters again.
async fn inject_faults(
    setup: &Setup<'_>,
    session: &SessionProcess,
    streams: &[RequestStream],
) -> Result<()> {
    let check_both = async |after: &str| -> Result<()> {
        for stream in streams {
            stream
                .wait_for_requests(session)
                .await
                .with_context(|| format!("after {after}"))?;
        }
        Ok(())
    };
    check_both("the start").await?;
    for member in [&setup.east, &setup.west] {
        // Rules exist during a session, so the count of rules at the end is meaningful.
        ensure!(
            setup.count_rules(&pods(member)?)? > 0,
            "the session steals without a rule"
        );
    }
    let by_service = |stream: &RequestStream| -> Result<usize> {
        let log = setup.west.kubectl_in(SHOP, &["logs", &stream.pod])?;
        Ok(received(&log, "\"GET /", " ").len())
    };
    let before = by_service(&streams[1])?;
    restarts::drain(&setup.west).await?;
    check_both("a member's replicas have been drained").await?;
    let after = by_service(&streams[1])?;
    ensure!(
        before == after,
        "the service got {} requests while replicas of its operator were drained",
        after - before
    );
    restarts::kill(&setup.hub)?;
    check_both("the end of the Primary").await?;
    restarts::kill(&setup.west)?;
    check_both("the end of a member's operator").await?;
    network::set_api_server(setup, "west", false)?;
    network::set_api_server(setup, "west", true)?;
    check_both("a restart of a member's API server").await?;
    let lab = setup.clusters.lab();
    lab.cut("hub", "west")?;
    setup.wait_until_disconnected("west", "").await?;
    // The other cluster is not affected.
    streams[0]
        .wait_for_requests(session)
        .await
        .context("while west is cut off")?;
    lab.heal_link("hub", "west")?;
    check_both("a cut").await
}

fn start(setup: &Setup<'_>) -> Result<SessionProcess> {
    let shop = TestNamespace {
        cluster: setup.hub.namespace.cluster.clone(),
        name: SHOP.to_owned(),
    };
    let mut session = standin_in(&shop)?;
    session
        .env_remove("STANDIN_AGENT_IMAGE")
        .args(["exec", "-t", "deployment/web", "--steal"])
        .args(["--header-filter", "^x-user: anna$", "--"])
        .args(["python3", "-c", SERVER]);
    SessionProcess::start(session, &[])
}

/// A stream of requests to the first pod of a member, from its node, independent of any API server.
struct RequestStream {
    cluster: String,
    pod: String,
    stop: StopOnDrop,
    thread: JoinHandle<Result<Responses>>,
}

/// Ends the stream of requests when it is dropped.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl RequestStream {
    fn start(setup: &Setup<'_>, member: &Operator) -> Result<Self> {
        let name = member.namespace.cluster.name.clone();
        let first = "--output=jsonpath={.items[0].metadata.name} {.items[0].status.podIP}";
        let first = member.kubectl_in(SHOP, &["get", "pods", "--selector=app=web", first])?;
        let (pod, address) = first.split_once(' ').context("no pod")?;
        let address = address.to_owned();
        let cluster = setup.clusters.lab().cluster(&name)?.clone();
        let stop = StopOnDrop(Arc::new(AtomicBool::new(false)));
        let (is_stopped, label) = (Arc::clone(&stop.0), name.clone());
        let thread = thread::spawn(move || {
            let mut responses = Responses::default();
            for number in 0_u32.. {
                if is_stopped.load(Ordering::Relaxed) {
                    break;
                }
                let request = format!("{label}-{number}");
                let url = format!("http://{address}:8080/{request}");
                let mut curl = cluster.in_network_of(&cluster.plan().first_node().name)?;
                curl.args([
                    "curl",
                    "--silent",
                    "--show-error",
                    "--max-time",
                    REQUEST_TIMEOUT_SECS,
                ])
                .args(["-H", "x-user: anna", &url]);
                let response = lab::output_of(&mut curl)?;
                match response.trim() {
                    "anna" => responses.by_process.insert(request),
                    other if other.starts_with("web-") => responses.by_service.insert(request),
                    other => bail!("{request} was lost: {other:?}"),
                };
                thread::sleep(REQUEST_INTERVAL);
            }
            Ok(responses)
        });
        Ok(RequestStream {
            cluster: name,
            pod: pod.to_owned(),
            stop,
            thread,
        })
    }

    /// Waits until the process has received two more requests, of which the second was sent after this call.
    async fn wait_for_requests(&self, session: &SessionProcess) -> Result<()> {
        let prefix = format!("request /{}-", self.cluster);
        let count = || -> Result<usize> {
            let printed = session.stdout()?;
            Ok(printed
                .lines()
                .filter(|line| line.starts_with(&prefix))
                .count())
        };
        let before = count()?;
        until(&format!("requests in {}", self.cluster), async || {
            Ok((count()? >= before + 2).then_some(()))
        })
        .await
    }

    fn end(self) -> Result<Responses> {
        drop(self.stop);
        let responses = self.thread.join();
        responses.map_err(|_| anyhow!("the requests in {} panicked", self.cluster))?
    }
}
