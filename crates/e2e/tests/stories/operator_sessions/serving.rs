//! What a program sees and serves in a session that the operator carries.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::{Program, Recipe};
use e2e::machine::Ended;
use e2e::{Stage, Story, until};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;

use super::super::cluster_sessions::{start_checkout, succeed};
use super::super::operator::Operator;
use super::super::surroundings::{Running, cache, standin_for};
use super::policies::policies_reach_sessions_that_run;
use super::secrets::{TALKATIVE, give_password, secrets_are_nowhere};
use super::watching::it_is_watched_by_the_same_name;
use super::{
    Shell, User, ask_operator, listed_sessions, nothing_is_left, session_for, with_operator,
    with_operator_that,
};

/// Answers every request with its argument.
const SERVER: &str = "\
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if sys.argv[1] == 'slowly': time.sleep(0.3)
        body = (sys.argv[1] + '\\n').encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(('', 8080), Handler).serve_forever()
";

pub(super) async fn a_program_sees_and_serves(story: &Story<'_>) -> Result<()> {
    let shop = story.stage_in(0).await?;
    start_checkout(&shop)?;
    shop.web().await?;
    shop.client_pod("client").await?;
    probe_by_path(&shop)?;
    give_password(&shop)?;
    with_operator_that(story, TALKATIVE, async |operator| {
        a_program_sees_what_the_target_sees(story, &shop)?;
        without_a_target_it_sees_the_network(story, &shop).await?;
        sessions_are_listed_and_killed(story, &shop, operator).await?;
        requests_of_every_replica_are_stolen_by_header(story, &shop).await?;
        probes_are_the_applications(story, &shop).await?;
        policies_reach_sessions_that_run(story, &shop, operator).await?;
        secrets_are_nowhere(story, &shop, operator).await?;
        nothing_is_left(&shop).await
    })
    .await
}

fn a_program_sees_what_the_target_sees(story: &Story<'_>, shop: &Stage) -> Result<()> {
    let address = [
        "get",
        "service",
        "web",
        "--output=jsonpath={.spec.clusterIP}",
    ];
    let address = shop.kubectl(&address)?;
    let visit = Program::compiled(Recipe::VISIT, &cache())?;
    let mut session = session_for(story, shop, "deployment/checkout")?;
    session.arg("--").args(&visit.command);
    let ended = succeed(visit.prepare(&mut session))?;
    for (key, expected) in [
        ("env", "from the pod"),
        ("file", "color=blue"),
        ("dns", address.as_str()),
    ] {
        ensure!(ended.value(key) == Some(expected), "{key}: {ended}");
    }
    for (key, begins) in [("hostname", "checkout-"), ("http", "web-")] {
        let value = ended.value(key).unwrap_or_default();
        ensure!(value.starts_with(begins), "{key}: {ended}");
    }
    ensure!(ended.stderr.contains("through the operator"), "{ended}");
    Ok(())
}

/// The network and the names of the namespace, with a right to that alone, from a pod that has no rights and goes.
pub(crate) async fn without_a_target_it_sees_the_network(
    story: &Story<'_>,
    shop: &Stage,
) -> Result<()> {
    let user = User::new(shop, "nora")?;
    let mut session = user.session(story, shop, "targetless")?;
    let refused = Ended::of(session.args(["--operator", "--", "true"]))?;
    ensure!(
        refused.stderr.contains("resourceNames: [targetless]"),
        "{refused}"
    );
    user.grant(shop, &refused)?;
    let session = until("a session without a target", async || {
        let mut session = user.session(story, shop, "targetless")?;
        session.arg("--operator");
        let mut session = Shell::start(session)?;
        let answer = session
            .ask("curl --silent --max-time 60 http://web/")
            .await?;
        ensure!(answer.starts_with("web-"), "{answer}");
        Ok(Some(session))
    })
    .await?;
    ensure!(session.said()?.contains("through the operator"));
    let pods = [
        "get",
        "pods",
        "--selector=operator.metalbear.co/session",
        "--output=json",
    ];
    let found: serde_json::Value = serde_json::from_str(&shop.kubectl(&pods)?)?;
    let spec = &found["items"][0]["spec"];
    ensure!(spec["automountServiceAccountToken"] == false, "{spec}");
    let container = &spec["containers"][0];
    let context = &container["securityContext"];
    ensure!(context["readOnlyRootFilesystem"] == true, "{context}");
    ensure!(context["runAsNonRoot"] == true, "{context}");
    ensure!(
        context["capabilities"] == serde_json::json!({"drop": ["ALL"]}),
        "{context}"
    );
    ensure!(container["volumeMounts"].is_null(), "{container}");
    let ended = session.end()?;
    ensure!(ended.code == Some(0), "{ended}");
    until("the agent's pod to be gone", async || {
        let left = shop.kubectl(&["get", "pods,jobs", pods[2], "--output=name"])?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .await
}

async fn sessions_are_listed_and_killed(
    story: &Story<'_>,
    shop: &Stage,
    operator: &Operator,
) -> Result<()> {
    let mut session = Shell::start(session_for(story, shop, "deployment/checkout")?)?;
    ensure!(session.ask("echo $GREETING").await? == "from the pod");
    let sessions = listed_sessions(story, shop)?;
    let [listed] = sessions.as_slice() else {
        anyhow::bail!("one session was to be listed: {sessions:?}");
    };
    ensure!(listed["target"] == "deployment/checkout", "{listed}");
    ensure!(listed["namespace"] == shop.namespace.as_str(), "{listed}");
    let id = listed["id"].as_str().context("no id")?;
    it_is_watched_by_the_same_name(story, shop, id, &mut session).await?;
    let status = ask_operator(story, shop, &["status"])?;
    let namespace = format!("namespace  {}", operator.stage.namespace);
    for expected in [
        id,
        "2 of 2 ready",
        "SessionManagement",
        &namespace,
        "as this standin",
    ] {
        ensure!(status.stdout.contains(expected), "{expected}: {status}");
    }
    let targets = succeed(standin_for(story, shop)?.arg("ls"))?;
    let row = targets
        .stdout
        .lines()
        .find(|line| line.starts_with("deployment/checkout"));
    ensure!(row.is_some_and(|row| row.contains("admin")), "{targets}");

    let killed = ask_operator(story, shop, &["session", "kill", id])?;
    ensure!(killed.code == Some(0), "{killed}");
    session.says("the session is over").await?;
    nothing_is_left(shop).await?;
    let again = ask_operator(story, shop, &["session", "kill", id])?;
    ensure!(
        again.code == Some(125) && again.stderr.contains("there is no session"),
        "{again}"
    );
    // The program was told, and nobody brings the session back.
    ensure!(session.ask("cat /etc/shop/settings || echo failed").await? == "failed");
    session.end()?;
    ensure!(listed_sessions(story, shop)?.is_empty());
    Ok(())
}

async fn requests_of_every_replica_are_stolen_by_header(
    story: &Story<'_>,
    shop: &Stage,
) -> Result<()> {
    let mut session = session_for(story, shop, "deployment/web")?;
    session.args(["--steal", "--header-filter", "^x-user: anna$"]);
    let mut session = Server::start(session, "anna's")?;
    for pod in pods(shop).await? {
        answers(shop, &pod, Some("x-user: anna"), "anna's", &mut session).await?;
        answers(shop, &pod, Some("x-user: bert"), &pod.0, &mut session).await?;
        answers(shop, &pod, None, &pod.0, &mut session).await?;
    }
    ports_are_listed(story, shop, &["8080 (steal, header ^x-user: anna$)"]).await?;
    // A pod that comes takes part.
    shop.kubectl(&["scale", "deployment/web", "--replicas=3"])?;
    shop.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    let all = pods(shop).await?;
    ensure!(all.len() == 3, "{all:?}");
    for pod in &all {
        answers(shop, pod, Some("x-user: anna"), "anna's", &mut session).await?;
    }
    drop(session);
    for pod in &all {
        until("the pod to answer itself", async || {
            let answer = ask(shop, pod, Some("x-user: anna")).await?;
            Ok((answer == pod.0).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// What the kubelet asks for to see how the pods of `web` are. They are made anew.
fn probe_by_path(shop: &Stage) -> Result<()> {
    let path = "/spec/template/spec/containers/0/readinessProbe";
    let probe = serde_json::json!({
        "httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 5,
    });
    let patch = serde_json::json!([{"op": "replace", "path": path, "value": probe}]);
    let patch = format!("--patch={patch}");
    shop.kubectl(&["patch", "deployment/web", "--type=json", &patch])
        .map(drop)
}

/// A filter that fits everything does not fit them, whoever asks: the pods stay ready by their own answers.
async fn probes_are_the_applications(story: &Story<'_>, shop: &Stage) -> Result<()> {
    let mut session = session_for(story, shop, "deployment/web")?;
    session.args(["--steal", "--header-filter", ".*"]);
    let mut session = Server::start(session, "everything")?;
    for pod in pods(shop).await? {
        answers(shop, &pod, None, "everything", &mut session).await?;
        let url = format!("http://{}:8080/ready", pod.1);
        let curl = ["curl", "--silent", "--max-time", "10", &url];
        let answer = shop.exec("client", &curl, None).await?;
        ensure!(answer.stdout.trim() == pod.0, "{}", answer.stdout);
        let probes = || -> Result<usize> {
            let log = shop.kubectl(&["logs", &pod.0, "--tail=-1"])?;
            Ok(log.matches("GET /ready ").count())
        };
        let before = probes()?;
        until("the kubelet to ask the application", async || {
            Ok((probes()? > before + 2).then_some(()))
        })
        .await?;
        shop.wait_until_ready(&pod.0).await?;
    }
    let said = session.said()?;
    ensure!(said.contains("GET / "), "requests are not logged: {said}");
    ensure!(!said.contains("/ready"), "a probe was stolen: {said}");
    Ok(())
}

/// Waits until people see that sessions have these ports, or none.
pub(super) async fn ports_are_listed(
    story: &Story<'_>,
    shop: &Stage,
    expected: &[&str],
) -> Result<()> {
    until(&format!("{expected:?} to be listed"), async || {
        let listed = ask_operator(story, shop, &["session", "list"])?;
        let wide = shop.kubectl(&["get", "targets", "--output=wide"])?;
        let has = |text: &str| match expected {
            [] => !text.contains("(steal"),
            expected => expected.iter().all(|port| text.contains(port)),
        };
        Ok((has(&listed.stdout) && has(&wide)).then_some(()))
    })
    .await?;
    let sessions = shop.kubectl(&["get", "sessions.operator.metalbear.co", "--output=wide"])?;
    let status = ask_operator(story, shop, &["status"])?;
    for port in expected {
        ensure!(sessions.contains(port), "{sessions}");
        ensure!(status.stdout.contains(port), "{status}");
    }
    Ok(())
}

/// Two people, each with a right to the one deployment, work on it at the same time.
pub(super) async fn users_share_a_port_by_filters(story: &Story<'_>) -> Result<()> {
    let shop = story.stage_in(0).await?;
    shop.web().await?;
    shop.client_pod("client").await?;
    with_operator(story, async |_| share_a_port(story, &shop).await).await
}

async fn share_a_port(story: &Story<'_>, shop: &Stage) -> Result<()> {
    let users = ["anna", "bert"].map(|name| User::new(shop, name));
    let mut servers = Vec::new();
    for user in users {
        let user = user?;
        let mut session = user.session(story, shop, "deployment/web")?;
        let refused = Ended::of(session.args(["--", "true"]))?;
        ensure!(refused.code == Some(125), "{refused}");
        ensure!(
            refused.stderr.contains("resourceNames: [deployment.web]"),
            "{refused}"
        );
        user.grant(shop, &refused)?;
        let mut session = user.session(story, shop, "deployment/web")?;
        let filter = format!("^x-user: {}$", user.name);
        session.args(["--steal", "--header-filter", &filter]);
        servers.push((Server::start(session, user.name)?, user));
    }
    let pods = pods(shop).await?;
    for pod in &pods {
        for (server, user) in &mut servers {
            let header = format!("x-user: {}", user.name);
            answers(shop, pod, Some(&header), user.name, server).await?;
        }
        let (server, _) = &mut servers[0];
        answers(shop, pod, None, &pod.0, server).await?;
    }
    // The same filter is somebody's already, and its holder is named.
    let (_, bert) = &servers[1];
    let mut session = bert.session(story, shop, "deployment/web")?;
    session
        .args(["--steal", "--header-filter", "^x-user: anna$", "--"])
        .args(["python3", "-c", SERVER, "second"]);
    let refused = Ended::of(&mut session)?;
    ensure!(refused.code != Some(0), "{refused}");
    ensure!(refused.stderr.contains("anna@"), "{refused}");
    // What anna leaves can be had beside her, and what she has can be taken from her: she is told by whom.
    let mut beside = bert.session(story, shop, "deployment/web")?;
    beside.args(["--steal", "--on-concurrent-steal", "continue"]);
    let mut beside = Server::start(beside, "the rest")?;
    for pod in &pods {
        answers(shop, pod, None, "the rest", &mut beside).await?;
        answers(shop, pod, Some("x-user: anna"), "anna", &mut beside).await?;
    }
    drop(beside);
    let mut instead = bert.session(story, shop, "deployment/web")?;
    instead
        .args(["--steal", "--header-filter", "^x-user: anna$"])
        .args(["--on-concurrent-steal", "override"]);
    let mut instead = Server::start(instead, "bert's now")?;
    for pod in &pods {
        answers(shop, pod, Some("x-user: anna"), "bert's now", &mut instead).await?;
        answers(shop, pod, Some("x-user: bert"), "bert", &mut instead).await?;
    }
    let told = format!("{}:bert (bert@", shop.namespace);
    servers[0].0.says(&told).await?;
    servers[0].0.says("has taken the traffic").await?;
    drop(instead);
    // The refused one is listed until its agents have ended.
    until("the refused session to be gone", async || {
        let sessions = listed_sessions(story, shop)?;
        Ok((sessions.len() == 2).then_some(()))
    })
    .await?;
    drop(servers);
    nothing_is_left(shop).await
}

/// A server in a session. It ends with this value, in good order, so that the operator is told.
pub(crate) struct Server(Running);

impl Server {
    pub(crate) fn start(mut session: Command, answer: &str) -> Result<Self> {
        session.args(["--", "python3", "-c", SERVER, answer]);
        Ok(Server(Running::start(session, &[])?))
    }

    /// What `standin` has said, and the program.
    pub(crate) fn said(&self) -> Result<String> {
        self.0.stderr()
    }

    pub(crate) async fn says(&self, words: &str) -> Result<()> {
        self.0.says(words).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.interrupt();
    }
}

/// The pods of `web`, with their addresses.
pub(crate) async fn pods(shop: &Stage) -> Result<Vec<(String, String)>> {
    let found = shop
        .pods()
        .list(&ListParams::default().labels("app=web"))
        .await?;
    let address = |pod: &Pod| pod.status.as_ref()?.pod_ip.clone();
    let pods = found.iter().filter_map(|pod| {
        let is_there = pod.metadata.deletion_timestamp.is_none();
        Some((pod.metadata.name.clone()?, address(pod)?)).filter(|_| is_there)
    });
    Ok(pods.collect())
}

/// The same without a header, asked from another pod.
pub(crate) async fn answers_from(
    shop: &Stage,
    client: &str,
    pod: &(String, String),
    expected: &str,
    server: &mut Server,
) -> Result<()> {
    let url = format!("http://{}:8080/", pod.1);
    let curl = ["curl", "--silent", "--max-time", "10", &url];
    until(&format!("{expected:?} from {}", pod.0), async || {
        ensure!(server.0.ended()?.is_none(), "{}", server.said()?);
        let answer = shop.exec(client, &curl, None).await?;
        Ok((answer.stdout.trim() == expected).then_some(()))
    })
    .await
}

async fn ask(shop: &Stage, pod: &(String, String), header: Option<&str>) -> Result<String> {
    let url = format!("http://{}:8080/", pod.1);
    let mut curl = vec!["curl", "--silent", "--max-time", "10"];
    if let Some(header) = header {
        curl.extend(["-H", header]);
    }
    curl.push(&url);
    let answer = shop.exec("client", &curl, None).await?;
    Ok(answer.stdout.trim().to_owned())
}

/// Waits until a request to a pod gets this answer.
pub(crate) async fn answers(
    shop: &Stage,
    pod: &(String, String),
    header: Option<&str>,
    expected: &str,
    server: &mut Server,
) -> Result<()> {
    let what = format!("{expected:?} from {} to {header:?}", pod.0);
    until(&what, async || {
        let ended = server.0.ended()?;
        ensure!(
            ended.is_none(),
            "the session has ended: {ended:?}: {}",
            server.said()?
        );
        Ok((ask(shop, pod, header).await? == expected).then_some(()))
    })
    .await
}
