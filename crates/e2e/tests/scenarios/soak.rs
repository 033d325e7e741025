//! Many sessions, each of whose processes is killed in turn. Afterwards the port responds, and nothing is left: no object,
//! rule or process, except the entries of finished containers that Kubernetes keeps.
//!
//! A few cycles run with all other scenarios. `STANDIN_SOAK_CYCLES=200` runs as many with an operator whose agents run on
//! nodes, and a tenth of that with ephemeral containers; then the downtime of the port is limited, too.

mod processes;

use std::env;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::{LazyEnvironment, Needs, Scenario, TestNamespace, environment, scenario, until};
use libtest_mimic::Trial;

use self::processes::{Role, Victim, is_alive, kill, process_tree};
use super::operator::Operator;
use super::support::{SessionProcess, exec_for, process_of_pod};

const CYCLES: usize = 5;
/// The longest time without a response at the port, in the long form.
const MAX_DOWNTIME: Duration = Duration::from_secs(1);
const PORT: u16 = 8080;

/// A server that responds to every request with one word.
const SERVER: &str = "\
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header('Content-Length', '10')
        self.end_headers()
        self.wfile.write(b'developer\\n')
http.server.ThreadingHTTPServer(('', 8080), Handler).serve_forever()
";

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![scenario(
        environment,
        "soak_sessions_whose_processes_are_killed_leave_nothing",
        Needs::Lab,
        sessions_whose_processes_are_killed_leave_nothing,
    )]
}

async fn sessions_whose_processes_are_killed_leave_nothing(scenario: &Scenario<'_>) -> Result<()> {
    let requested = env::var(environment::SOAK_CYCLES).ok();
    let requested: Option<usize> = requested.map(|count| count.parse()).transpose()?;
    let is_long = requested.is_some();
    let cycles = requested.unwrap_or(CYCLES);
    let values = "operator.agent.mode=node,operator.session.ttlSecs=15";
    let operator = Operator::install_with(scenario, 0, values).await?;
    let shop = scenario.namespace_in(0).await?;
    let result = soak(scenario, &operator, &shop, cycles, is_long).await;
    result.and(operator.uninstall())
}

async fn soak(
    scenario: &Scenario<'_>,
    operator: &Operator,
    shop: &TestNamespace,
    cycles: usize,
    is_long: bool,
) -> Result<()> {
    replace_pods(operator)?;
    shop.web().await?;
    shop.kubectl(&["scale", "deployment/web", "--replicas=1"])?;
    let target = TargetPod::find(scenario, shop).await?;
    let before = target.leftovers()?;
    // Sessions whose client is killed end some time later, so they come first.
    let with_operator = [
        Role::Client,
        Role::Agent,
        Role::Program,
        Role::Operator,
        Role::None,
    ];
    let ephemeral = [Role::Client, Role::Agent, Role::Program, Role::None];
    let ephemeral_cycles = if is_long { cycles.div_ceil(10) } else { cycles };
    for (roles, cycles, operator_flag) in [
        (&with_operator[..], cycles, "true"),
        (&ephemeral[..], ephemeral_cycles, "false"),
    ] {
        for number in 0..cycles {
            let role = roles[number % roles.len()];
            let cycle = Cycle {
                scenario,
                target: &target,
                before: &before,
                operator,
                role,
                number: number / roles.len(),
                operator_flag,
            };
            let downtime = cycle.run().await;
            let what = format!("cycle {number}, operator: {operator_flag}, {role:?} is killed");
            let downtime = downtime.with_context(|| what.clone())?;
            eprintln!(
                "{what}: the port responded after {} ms",
                downtime.as_millis()
            );
            ensure!(
                !is_long || downtime <= MAX_DOWNTIME,
                "{what}: the port did not respond for {downtime:?}"
            );
        }
    }
    wait_until_nothing_is_left(&target, &before).await
}

async fn wait_until_nothing_is_left(target: &TargetPod<'_>, before: &Leftovers) -> Result<()> {
    let waited = until("nothing to be left", async || {
        let leftovers = target.leftovers()?;
        ensure!(
            leftovers == *before,
            "before: {before:?}; now: {leftovers:?}"
        );
        Ok(Some(()))
    });
    waited.await
}

/// The pod whose port the sessions steal.
struct TargetPod<'scenario> {
    scenario: &'scenario Scenario<'scenario>,
    shop: &'scenario TestNamespace,
    node: String,
    /// The pod of the target.
    pod: String,
    address: String,
    /// The original application.
    application: u32,
}

/// Everything that sessions could leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Leftovers {
    sessions: String,
    running_agents: String,
    jobs: String,
    rules: String,
    /// Processes of `standind` in the cluster, by role.
    processes: [usize; 3],
}

impl<'scenario> TargetPod<'scenario> {
    async fn find(scenario: &'scenario Scenario<'_>, shop: &'scenario TestNamespace) -> Result<Self>
    where
        'scenario: 'scenario,
    {
        let line = until("one pod of the target", async || {
            let columns = "--output=custom-columns=:.metadata.name,:.status.podIP,:.spec.nodeName";
            let arguments = ["get", "pods", "--selector=app=web", "--no-headers", columns];
            let pods = shop.kubectl(&arguments)?;
            let mut lines = pods.lines().filter(|line| !line.trim().is_empty());
            let (line, more) = (lines.next().map(str::to_owned), lines.next());
            Ok(line.filter(|_| more.is_none()))
        })
        .await?;
        let mut fields = line.split_whitespace().map(str::to_owned);
        let mut field = || fields.next().context("the pod is not complete yet");
        let (pod, address, node) = (field()?, field()?, field()?);
        let application = process_of_pod(scenario.lab()?, &pod)?;
        Ok(TargetPod {
            scenario,
            shop,
            node,
            pod,
            address,
            application,
        })
    }

    /// The response at the port, if there is one within a second.
    fn response(&self) -> Result<Option<String>> {
        let cluster = self.scenario.lab()?.cluster(&self.shop.cluster.name)?;
        let mut curl: Command = cluster.in_network_of(&self.node)?;
        let url = format!("http://{}:{PORT}/", self.address);
        curl.args(["curl", "--silent", "--show-error", "--max-time", "1", &url]);
        Ok(lab::output_of(&mut curl)
            .ok()
            .map(|response| response.trim().to_owned()))
    }

    /// Waits for a response, and returns how long it took.
    async fn wait_for_response(&self, is_expected: impl Fn(&str) -> bool) -> Result<Duration> {
        let start = Instant::now();
        until("the port to respond", async || match self.response()? {
            Some(response) if is_expected(&response) => Ok(Some(())),
            other => bail!("the response is {other:?}"),
        })
        .await?;
        Ok(start.elapsed())
    }

    /// The nftables rules in the network namespace of the target.
    fn rules(&self) -> Result<String> {
        let mut rules = Command::new("nsenter");
        let application = self.application.to_string();
        rules.args(["--target", &application, "--net", "nft", "list", "ruleset"]);
        Ok(lab::output_of(&mut rules)?)
    }

    fn leftovers(&self) -> Result<Leftovers> {
        let names = |kind: &str| self.shop.kubectl(&["get", kind, "--output=name"]);
        let running =
            "--output=jsonpath={.items[*].status.ephemeralContainerStatuses[*].state.running}";
        let count = |role: &'static str| -> Result<usize> {
            Ok(processes::standind_processes(self.scenario.lab()?, role)?.len())
        };
        Ok(Leftovers {
            sessions: names("mirrordclustersessions")?,
            running_agents: self
                .shop
                .kubectl(&["get", "pods", running])?
                .trim()
                .to_owned(),
            jobs: names("jobs")?,
            rules: self.rules()?,
            processes: [count("agent")?, count("node-agent")?, count("operator")?],
        })
    }
}

/// One session, from its start until the original application responds again.
struct Cycle<'scenario> {
    scenario: &'scenario Scenario<'scenario>,
    target: &'scenario TargetPod<'scenario>,
    before: &'scenario Leftovers,
    operator: &'scenario Operator,
    role: Role,
    /// The index among the processes of the role.
    number: usize,
    operator_flag: &'static str,
}

impl Cycle<'_> {
    /// Runs the session, and returns how long the port did not respond.
    async fn run(&self) -> Result<Duration> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("standin.yaml");
        std::fs::write(&file, "agent:\n  communication_timeout: 2\n")?;
        let temporary = folder.path().join("temporary");
        std::fs::create_dir(&temporary)?;
        let mut session = exec_for(self.scenario, self.target.shop, "deployment/web")?;
        session.env("TMPDIR", &temporary);
        session.arg("--config-file").arg(&file);
        session.args(["--steal", "--", "python3", "-c", SERVER]);
        let mut session = SessionProcess::start(session, &[("OPERATOR", self.operator_flag)])?;
        let started = self
            .target
            .wait_for_response(|response| response == "developer")
            .await;
        started.with_context(|| session.report())?;
        let rules = self.target.rules()?;
        ensure!(rules != self.before.rules, "the session has no rules");
        let family = process_tree(session.pid());
        let victim = self.victim(&family)?;
        if let Some(victim) = &victim {
            kill(victim.pid)?;
        }
        // The response may come from the developer's program, if the session continues, or from the original.
        let downtime = self
            .target
            .wait_for_response(|response| !response.is_empty())
            .await?;
        session.terminate()?;
        let pod = self.target.pod.clone();
        self.target
            .wait_for_response(|response| response == pod)
            .await?;
        until("the local processes to exit", async || {
            let alive: Vec<_> = family.iter().filter(|pid| is_alive(**pid)).collect();
            ensure!(alive.is_empty(), "{alive:?} of {family:?} are alive");
            Ok(Some(()))
        })
        .await?;
        until("the temporary folders to be removed", async || {
            let leftovers = std::fs::read_dir(&temporary)?.next().transpose()?;
            ensure!(leftovers.is_none(), "{leftovers:?} is left");
            Ok(Some(()))
        })
        .await?;
        if matches!(self.role, Role::Operator | Role::Agent) && self.operator_flag == "true" {
            replace_pods(self.operator)?;
        }
        Ok(downtime)
    }

    fn victim(&self, family: &[u32]) -> Result<Option<Victim>> {
        let lab = self.scenario.lab()?;
        let found = match self.role {
            Role::None => return Ok(None),
            Role::Client => processes::standin_processes(family, true),
            Role::Program => processes::standin_processes(family, false),
            Role::Agent if self.operator_flag == "true" => {
                let mut agents = processes::standind_processes(lab, "node-agent")?;
                // The agent that serves the session comes first.
                agents.sort_by_key(|pid| !processes::is_on_node(*pid, &self.target.node));
                agents
            }
            Role::Agent => processes::standind_processes(lab, "agent")?,
            Role::Operator => processes::standind_processes(lab, "operator")?,
        };
        let index = self.number % found.len().max(1);
        let pid = *found.get(index).context("there is no such process")?;
        Ok(Some(Victim { pid }))
    }
}

/// Replaces the operator's pods. Kubernetes restarts a container that exits often with a growing delay, and a new pod starts
/// without one.
fn replace_pods(operator: &Operator) -> Result<()> {
    let kubectl = |arguments: &[&str]| operator.namespace.kubectl(arguments);
    kubectl(&["delete", "pods", "--all", "--wait=true", "--timeout=120s"])?;
    for what in [
        "daemonset/mirrord-node-agent",
        "deployment/mirrord-operator",
    ] {
        kubectl(&["rollout", "status", what, "--timeout=120s"])?;
    }
    let api = "apiservice/v1.operator.metalbear.co";
    kubectl(&["wait", "--for=condition=Available", api, "--timeout=60s"]).map(drop)
}
