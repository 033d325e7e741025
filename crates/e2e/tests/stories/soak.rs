//! Sessions that begin and end many times, while each process of theirs is killed in turn. Afterwards the port answers, and
//! nothing is left: no object, no rule, no process, but the entries of finished containers that Kubernetes keeps.
//!
//! A few cycles are told with all other stories. `STANDIN_SOAK_CYCLES=200` makes it as many with an operator whose agents
//! wait on nodes, and a tenth of it with containers in the target's pod; then it also counts how long the port is silent.

mod victims;

use std::env;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::{LaterWorld, Needs, Stage, Story, environment, tell, until};
use libtest_mimic::Trial;

use self::victims::{Role, Victim, is_alive, kill, processes_below, processes_of};
use super::operator::Operator;
use super::surroundings::{Running, exec_for};

const CYCLES: usize = 5;
/// How long the port may be silent, where that is counted.
const SILENCE: Duration = Duration::from_secs(1);
const PORT: u16 = 8080;

/// Answers every request with one word.
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

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![tell(
        world,
        "soak_sessions_whose_processes_are_killed_leave_nothing",
        Needs::Lab,
        sessions_whose_processes_are_killed_leave_nothing,
    )]
}

async fn sessions_whose_processes_are_killed_leave_nothing(story: &Story<'_>) -> Result<()> {
    let wanted = env::var(environment::SOAK_CYCLES).ok();
    let wanted: Option<usize> = wanted.map(|count| count.parse()).transpose()?;
    let is_long = wanted.is_some();
    let cycles = wanted.unwrap_or(CYCLES);
    let operator = Operator::install_with(story, 0, "operator.agent.mode=node").await?;
    let shop = story.stage_in(0).await?;
    let result = soak(story, &operator, &shop, cycles, is_long).await;
    result.and(operator.uninstall())
}

async fn soak(
    story: &Story<'_>,
    operator: &Operator,
    shop: &Stage,
    cycles: usize,
    is_long: bool,
) -> Result<()> {
    replace_pods(operator)?;
    shop.web().await?;
    shop.kubectl(&["scale", "deployment/web", "--replicas=1"])?;
    let ground = Ground::find(story, shop).await?;
    let before = ground.left()?;
    // Those whose client is killed are over a minute later, so they come first.
    let with_operator = [
        Role::Client,
        Role::Agent,
        Role::Program,
        Role::Operator,
        Role::Nobody,
    ];
    let ephemeral = [Role::Client, Role::Agent, Role::Program, Role::Nobody];
    let few = if is_long { cycles.div_ceil(10) } else { cycles };
    for (roles, cycles, through) in [
        (&with_operator[..], cycles, "true"),
        (&ephemeral[..], few, "false"),
    ] {
        for number in 0..cycles {
            let role = roles[number % roles.len()];
            let turn = Turn {
                story,
                ground: &ground,
                before: &before,
                operator,
                role,
                number: number / roles.len(),
                through,
            };
            let silent = turn.play().await;
            let what = format!("cycle {number}, operator: {through}, {role:?} is killed");
            let silent = silent.with_context(|| what.clone())?;
            eprintln!("{what}: the port answered after {} ms", silent.as_millis());
            ensure!(
                !is_long || silent <= SILENCE,
                "{what}: the port was silent for {silent:?}"
            );
        }
    }
    nothing_is_left(&ground, &before).await
}

async fn nothing_is_left(ground: &Ground<'_>, before: &Left) -> Result<()> {
    let waited = until("nothing to be left", async || {
        let left = ground.left()?;
        ensure!(left == *before, "before: {before:?}; now: {left:?}");
        Ok(Some(()))
    });
    waited.await
}

/// Where all of it happens.
struct Ground<'story> {
    story: &'story Story<'story>,
    shop: &'story Stage,
    node: String,
    /// The pod of the target.
    pod: String,
    address: String,
    /// The original application.
    application: u32,
}

/// What sessions could leave.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    sessions: String,
    running_agents: String,
    jobs: String,
    rules: String,
    /// Processes of ours in the cluster, by role.
    processes: [usize; 3],
}

impl<'story> Ground<'story> {
    async fn find(story: &'story Story<'_>, shop: &'story Stage) -> Result<Self>
    where
        'story: 'story,
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
        let mut words = line.split_whitespace().map(str::to_owned);
        let mut word = || words.next().context("the pod is not there yet");
        let (pod, address, node) = (word()?, word()?, word()?);
        let mark = format!("HOSTNAME={pod}");
        let application = processes_of(story.lab()?, |pid| {
            let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            variables
                .split(|byte| *byte == 0)
                .any(|one| one == mark.as_bytes())
        })?;
        Ok(Ground {
            story,
            shop,
            node,
            pod,
            address,
            application: *application
                .first()
                .context("the application does not run")?,
        })
    }

    /// Who answers at the port, if somebody does within a moment.
    fn asked(&self) -> Result<Option<String>> {
        let cluster = self.story.lab()?.cluster(&self.shop.cluster.name)?;
        let mut curl: Command = cluster.in_network_of(&self.node)?;
        let url = format!("http://{}:{PORT}/", self.address);
        curl.args(["curl", "--silent", "--show-error", "--max-time", "1", &url]);
        Ok(lab::output_of(&mut curl)
            .ok()
            .map(|answer| answer.trim().to_owned()))
    }

    /// Waits until somebody answers, and returns after how long it was.
    async fn answers(&self, who: impl Fn(&str) -> bool) -> Result<Duration> {
        let start = Instant::now();
        until("the port to answer", async || match self.asked()? {
            Some(answer) if who(&answer) => Ok(Some(())),
            other => bail!("{other:?} answered"),
        })
        .await?;
        Ok(start.elapsed())
    }

    /// The rules in the network of the target.
    fn rules(&self) -> Result<String> {
        let mut rules = Command::new("nsenter");
        let application = self.application.to_string();
        rules.args(["--target", &application, "--net", "nft", "list", "ruleset"]);
        Ok(lab::output_of(&mut rules)?)
    }

    fn left(&self) -> Result<Left> {
        let names = |kind: &str| self.shop.kubectl(&["get", kind, "--output=name"]);
        let running =
            "--output=jsonpath={.items[*].status.ephemeralContainerStatuses[*].state.running}";
        let count = |role: &'static str| -> Result<usize> {
            Ok(victims::ours(self.story.lab()?, role)?.len())
        };
        Ok(Left {
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

/// One session, from its start until nothing of it is at the port any more.
struct Turn<'story> {
    story: &'story Story<'story>,
    ground: &'story Ground<'story>,
    before: &'story Left,
    operator: &'story Operator,
    role: Role,
    /// Which of several processes of the role.
    number: usize,
    through: &'static str,
}

impl Turn<'_> {
    /// Answers how long the port was silent.
    async fn play(&self) -> Result<Duration> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("standin.yaml");
        std::fs::write(&file, "agent:\n  communication_timeout: 2\n")?;
        let temporary = folder.path().join("temporary");
        std::fs::create_dir(&temporary)?;
        let mut session = exec_for(self.story, self.ground.shop, "deployment/web")?;
        session.env("TMPDIR", &temporary);
        session.arg("--config-file").arg(&file);
        session.args(["--steal", "--", "python3", "-c", SERVER]);
        let mut session = Running::start(session, &[("OPERATOR", self.through)])?;
        let begun = self.ground.answers(|answer| answer == "developer").await;
        begun.with_context(|| session.report())?;
        let rules = self.ground.rules()?;
        ensure!(
            rules != self.before.rules,
            "the rules of a session are not seen"
        );
        let family = processes_below(session.pid());
        let victim = self.victim(&family)?;
        if let Some(victim) = &victim {
            kill(victim.pid)?;
        }
        // Whoever it is: the developer's program, if the session goes on, or the original.
        let silent = self.ground.answers(|answer| !answer.is_empty()).await?;
        session.interrupt()?;
        let pod = self.ground.pod.clone();
        self.ground.answers(|answer| answer == pod).await?;
        until("the processes here to end", async || {
            let alive: Vec<_> = family.iter().filter(|pid| is_alive(**pid)).collect();
            ensure!(alive.is_empty(), "{alive:?} of {family:?} are alive");
            Ok(Some(()))
        })
        .await?;
        until("the folders here to go", async || {
            let left = std::fs::read_dir(&temporary)?.next().transpose()?;
            ensure!(left.is_none(), "{left:?} is left");
            Ok(Some(()))
        })
        .await?;
        if matches!(self.role, Role::Operator | Role::Agent) && self.through == "true" {
            replace_pods(self.operator)?;
        }
        Ok(silent)
    }

    fn victim(&self, family: &[u32]) -> Result<Option<Victim>> {
        let lab = self.story.lab()?;
        let found = match self.role {
            Role::Nobody => return Ok(None),
            Role::Client => victims::of_standin(family, true),
            Role::Program => victims::of_standin(family, false),
            Role::Agent if self.through == "true" => {
                let mut agents = victims::ours(lab, "node-agent")?;
                // First the one that serves the session.
                agents.sort_by_key(|pid| !victims::is_on_node(*pid, &self.ground.node));
                agents
            }
            Role::Agent => victims::ours(lab, "agent")?,
            Role::Operator => victims::ours(lab, "operator")?,
        };
        let place = self.number % found.len().max(1);
        let pid = *found.get(place).context("there is no such process")?;
        Ok(Some(Victim { pid }))
    }
}

/// Kubernetes waits longer and longer before it starts a container again that has ended often. A new pod has no past.
fn replace_pods(operator: &Operator) -> Result<()> {
    let kubectl = |arguments: &[&str]| operator.stage.kubectl(arguments);
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
