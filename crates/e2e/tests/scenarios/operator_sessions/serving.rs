//! What a program sees and serves in a session through the operator.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::{Program, Recipe};
use e2e::machine::ProgramOutput;
use e2e::{Scenario, TestNamespace, until};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;

use super::super::cluster_sessions::{start_checkout, succeed};
use super::super::operator::Operator;
use super::super::support::{SessionProcess, cache, standin_for};
use super::hostile::unauthenticated_peers_take_nothing;
use super::info::local_info_has_the_same_id;
use super::policies::policies_apply_to_running_sessions;
use super::secrets::{TRACE_LOGS, add_password, secrets_do_not_leak};
use super::{
    Shell, User, listed_sessions, run_operator_command, session_for, wait_until_nothing_is_left,
    with_operator, with_operator_values,
};

/// A server that responds to every request with its argument.
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

pub(super) async fn a_program_sees_and_serves(scenario: &Scenario<'_>) -> Result<()> {
    let shop = scenario.namespace_in(0).await?;
    start_checkout(&shop)?;
    shop.web().await?;
    shop.client_pod("client").await?;
    probe_by_path(&shop)?;
    add_password(&shop)?;
    with_operator_values(scenario, TRACE_LOGS, async |operator| {
        a_program_sees_what_the_target_sees(scenario, &shop)?;
        a_session_without_a_target_sees_the_network(scenario, &shop).await?;
        sessions_are_listed_and_killed(scenario, &shop, operator).await?;
        requests_to_every_replica_are_stolen_by_header(scenario, &shop).await?;
        probes_go_to_the_application(scenario, &shop).await?;
        policies_apply_to_running_sessions(scenario, &shop, operator).await?;
        secrets_do_not_leak(scenario, &shop, operator).await?;
        unauthenticated_peers_take_nothing(scenario, &shop, operator).await?;
        wait_until_nothing_is_left(&shop).await
    })
    .await
}

fn a_program_sees_what_the_target_sees(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
) -> Result<()> {
    let address = [
        "get",
        "service",
        "web",
        "--output=jsonpath={.spec.clusterIP}",
    ];
    let address = shop.kubectl(&address)?;
    let visit = Program::compiled(Recipe::VISIT, &cache())?;
    let mut session = session_for(scenario, shop, "deployment/checkout")?;
    session.arg("--").args(&visit.command);
    let output = succeed(visit.prepare(&mut session))?;
    for (key, expected) in [
        ("env", "from the pod"),
        ("file", "color=blue"),
        ("dns", address.as_str()),
    ] {
        ensure!(output.value(key) == Some(expected), "{key}: {output}");
    }
    for (key, prefix) in [("hostname", "checkout-"), ("http", "web-")] {
        let value = output.value(key).unwrap_or_default();
        ensure!(value.starts_with(prefix), "{key}: {output}");
    }
    ensure!(output.stderr.contains("through the operator"), "{output}");
    Ok(())
}

/// The user needs only the permission for sessions without a target. The agent's pod has no privileges and is removed.
pub(crate) async fn a_session_without_a_target_sees_the_network(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
) -> Result<()> {
    let user = User::new(shop, "nora")?;
    let mut session = user.session(scenario, shop, "targetless")?;
    let refused = ProgramOutput::of(session.args(["--operator", "--", "true"]))?;
    ensure!(
        refused.stderr.contains("resourceNames: [targetless]"),
        "{refused}"
    );
    user.grant(shop, &refused)?;
    let session = until("a session without a target", async || {
        let mut session = user.session(scenario, shop, "targetless")?;
        session.arg("--operator");
        let mut session = Shell::start(session)?;
        let response = session
            .run("curl --silent --max-time 60 http://web/")
            .await?;
        ensure!(response.starts_with("web-"), "{response}");
        Ok(Some(session))
    })
    .await?;
    ensure!(session.stderr()?.contains("through the operator"));
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
    let output = session.end()?;
    ensure!(output.code == Some(0), "{output}");
    until("the agent's pod to be gone", async || {
        let left = shop.kubectl(&["get", "pods,jobs", pods[2], "--output=name"])?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .await
}

async fn sessions_are_listed_and_killed(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
    operator: &Operator,
) -> Result<()> {
    let mut session = Shell::start(session_for(scenario, shop, "deployment/checkout")?)?;
    ensure!(session.run("echo $GREETING").await? == "from the pod");
    let sessions = listed_sessions(scenario, shop)?;
    let [listed] = sessions.as_slice() else {
        anyhow::bail!("one session should be listed: {sessions:?}");
    };
    ensure!(listed["target"] == "deployment/checkout", "{listed}");
    ensure!(listed["namespace"] == shop.name.as_str(), "{listed}");
    let id = listed["id"].as_str().context("no id")?;
    local_info_has_the_same_id(scenario, shop, id, &mut session).await?;
    let status = run_operator_command(scenario, shop, &["status"])?;
    let namespace = format!("namespace  {}", operator.namespace.name);
    for expected in [
        id,
        "2 of 2 ready",
        "SessionManagement",
        &namespace,
        "same as this standin",
    ] {
        ensure!(status.stdout.contains(expected), "{expected}: {status}");
    }
    let targets = succeed(standin_for(scenario, shop)?.arg("ls"))?;
    let row = targets
        .stdout
        .lines()
        .find(|line| line.starts_with("deployment/checkout"));
    ensure!(row.is_some_and(|row| row.contains("admin")), "{targets}");

    let killed = run_operator_command(scenario, shop, &["session", "kill", id])?;
    ensure!(killed.code == Some(0), "{killed}");
    session.wait_for_message("the session has ended").await?;
    wait_until_nothing_is_left(shop).await?;
    let repeated = run_operator_command(scenario, shop, &["session", "kill", id])?;
    ensure!(
        repeated.code == Some(125) && repeated.stderr.contains("there is no session"),
        "{repeated}"
    );
    // The program got an error, and the session is not restored.
    ensure!(session.run("cat /etc/shop/settings || echo failed").await? == "failed");
    session.end()?;
    ensure!(listed_sessions(scenario, shop)?.is_empty());
    Ok(())
}

async fn requests_to_every_replica_are_stolen_by_header(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
) -> Result<()> {
    let mut session = session_for(scenario, shop, "deployment/web")?;
    session.args(["--steal", "--header-filter", "^x-user: anna$"]);
    let mut session = Server::start(session, "anna's")?;
    for pod in pods(shop).await? {
        wait_for_response(shop, &pod, Some("x-user: anna"), "anna's", &mut session).await?;
        wait_for_response(shop, &pod, Some("x-user: bert"), &pod.0, &mut session).await?;
        wait_for_response(shop, &pod, None, &pod.0, &mut session).await?;
    }
    ports_are_listed(scenario, shop, &["8080 (steal, header ^x-user: anna$)"]).await?;
    // A new pod takes part.
    shop.kubectl(&["scale", "deployment/web", "--replicas=3"])?;
    shop.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    let all = pods(shop).await?;
    ensure!(all.len() == 3, "{all:?}");
    for pod in &all {
        wait_for_response(shop, pod, Some("x-user: anna"), "anna's", &mut session).await?;
    }
    drop(session);
    for pod in &all {
        until("the pod's own response", async || {
            let response = request(shop, pod, Some("x-user: anna")).await?;
            Ok((response == pod.0).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Adds an HTTP readiness probe to the pods of `web`, which are recreated.
fn probe_by_path(shop: &TestNamespace) -> Result<()> {
    let path = "/spec/template/spec/containers/0/readinessProbe";
    let probe = serde_json::json!({
        "httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 5,
    });
    let patch = serde_json::json!([{"op": "replace", "path": path, "value": probe}]);
    let patch = format!("--patch={patch}");
    shop.kubectl(&["patch", "deployment/web", "--type=json", &patch])
        .map(drop)
}

/// A filter that matches everything does not match probes: the pods stay ready by their own responses.
async fn probes_go_to_the_application(scenario: &Scenario<'_>, shop: &TestNamespace) -> Result<()> {
    let mut session = session_for(scenario, shop, "deployment/web")?;
    session.args(["--steal", "--header-filter", ".*"]);
    let mut session = Server::start(session, "everything")?;
    for pod in pods(shop).await? {
        wait_for_response(shop, &pod, None, "everything", &mut session).await?;
        let url = format!("http://{}:8080/ready", pod.1);
        let curl = ["curl", "--silent", "--max-time", "10", &url];
        let response = shop.exec("client", &curl, None).await?;
        ensure!(response.stdout.trim() == pod.0, "{}", response.stdout);
        let probes = || -> Result<usize> {
            let log = shop.kubectl(&["logs", &pod.0, "--tail=-1"])?;
            Ok(log.matches("GET /ready ").count())
        };
        let before = probes()?;
        until("the kubelet to probe the application", async || {
            Ok((probes()? > before + 2).then_some(()))
        })
        .await?;
        shop.wait_until_ready(&pod.0).await?;
    }
    let stderr = session.stderr()?;
    ensure!(
        stderr.contains("GET / "),
        "requests are not logged: {stderr}"
    );
    ensure!(!stderr.contains("/ready"), "a probe was stolen: {stderr}");
    Ok(())
}

/// Waits until the lists of sessions and targets show these ports, or none.
pub(super) async fn ports_are_listed(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
    expected: &[&str],
) -> Result<()> {
    until(&format!("{expected:?} to be listed"), async || {
        let listed = run_operator_command(scenario, shop, &["session", "list"])?;
        let wide = shop.kubectl(&["get", "targets", "--output=wide"])?;
        let has = |text: &str| match expected {
            [] => !text.contains("(steal"),
            expected => expected.iter().all(|port| text.contains(port)),
        };
        Ok((has(&listed.stdout) && has(&wide)).then_some(()))
    })
    .await?;
    let sessions = shop.kubectl(&["get", "sessions.operator.metalbear.co", "--output=wide"])?;
    let status = run_operator_command(scenario, shop, &["status"])?;
    for port in expected {
        ensure!(sessions.contains(port), "{sessions}");
        ensure!(status.stdout.contains(port), "{status}");
    }
    Ok(())
}

/// Two users, each with the permission for one deployment, have sessions with it at the same time.
pub(super) async fn users_share_a_port_by_filters(scenario: &Scenario<'_>) -> Result<()> {
    let shop = scenario.namespace_in(0).await?;
    shop.web().await?;
    shop.client_pod("client").await?;
    with_operator(scenario, async |_| share_a_port(scenario, &shop).await).await
}

async fn share_a_port(scenario: &Scenario<'_>, shop: &TestNamespace) -> Result<()> {
    let users = ["anna", "bert"].map(|name| User::new(shop, name));
    let mut servers = Vec::new();
    for user in users {
        let user = user?;
        let mut session = user.session(scenario, shop, "deployment/web")?;
        let refused = ProgramOutput::of(session.args(["--", "true"]))?;
        ensure!(refused.code == Some(125), "{refused}");
        ensure!(
            refused.stderr.contains("resourceNames: [deployment.web]"),
            "{refused}"
        );
        user.grant(shop, &refused)?;
        let mut session = user.session(scenario, shop, "deployment/web")?;
        let filter = format!("^x-user: {}$", user.name);
        session.args(["--steal", "--header-filter", &filter]);
        servers.push((Server::start(session, user.name)?, user));
    }
    let pods = pods(shop).await?;
    for pod in &pods {
        for (server, user) in &mut servers {
            let header = format!("x-user: {}", user.name);
            wait_for_response(shop, pod, Some(&header), user.name, server).await?;
        }
        let (server, _) = &mut servers[0];
        wait_for_response(shop, pod, None, &pod.0, server).await?;
    }
    // Another session already has the same filter, and the error names its owner.
    let (_, bert) = &servers[1];
    let mut session = bert.session(scenario, shop, "deployment/web")?;
    session
        .args(["--steal", "--header-filter", "^x-user: anna$", "--"])
        .args(["python3", "-c", SERVER, "second"]);
    let refused = ProgramOutput::of(&mut session)?;
    ensure!(refused.code != Some(0), "{refused}");
    ensure!(refused.stderr.contains("anna@"), "{refused}");
    // Another session can take the traffic that anna does not match, and can override hers: she sees by whom.
    let mut remainder = bert.session(scenario, shop, "deployment/web")?;
    remainder.args(["--steal", "--on-concurrent-steal", "continue"]);
    let mut remainder = Server::start(remainder, "the rest")?;
    for pod in &pods {
        wait_for_response(shop, pod, None, "the rest", &mut remainder).await?;
        wait_for_response(shop, pod, Some("x-user: anna"), "anna", &mut remainder).await?;
    }
    drop(remainder);
    let mut overriding = bert.session(scenario, shop, "deployment/web")?;
    overriding
        .args(["--steal", "--header-filter", "^x-user: anna$"])
        .args(["--on-concurrent-steal", "override"]);
    let mut overriding = Server::start(overriding, "bert's now")?;
    for pod in &pods {
        wait_for_response(
            shop,
            pod,
            Some("x-user: anna"),
            "bert's now",
            &mut overriding,
        )
        .await?;
        wait_for_response(shop, pod, Some("x-user: bert"), "bert", &mut overriding).await?;
    }
    let overrider = format!("{}:bert (bert@", shop.name);
    servers[0].0.wait_for_message(&overrider).await?;
    servers[0]
        .0
        .wait_for_message("has taken the traffic")
        .await?;
    drop(overriding);
    // The refused session is listed until its agents have ended.
    until("the refused session to be gone", async || {
        let sessions = listed_sessions(scenario, shop)?;
        Ok((sessions.len() == 2).then_some(()))
    })
    .await?;
    drop(servers);
    wait_until_nothing_is_left(shop).await
}

/// A server in a session. When dropped it is terminated gracefully, so that the operator is notified.
pub(crate) struct Server(SessionProcess);

impl Server {
    pub(crate) fn start(mut session: Command, response: &str) -> Result<Self> {
        session.args(["--", "python3", "-c", SERVER, response]);
        Ok(Server(SessionProcess::start(session, &[])?))
    }

    /// The messages of `standin` and the program's standard error so far.
    pub(crate) fn stderr(&self) -> Result<String> {
        self.0.stderr()
    }

    pub(crate) async fn wait_for_message(&self, text: &str) -> Result<()> {
        self.0.wait_for_message(text).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.terminate();
    }
}

/// The pods of `web`, with their addresses.
pub(crate) async fn pods(shop: &TestNamespace) -> Result<Vec<(String, String)>> {
    let found = shop
        .pods()
        .list(&ListParams::default().labels("app=web"))
        .await?;
    let address = |pod: &Pod| pod.status.as_ref()?.pod_ip.clone();
    let pods = found.iter().filter_map(|pod| {
        let is_active = pod.metadata.deletion_timestamp.is_none();
        Some((pod.metadata.name.clone()?, address(pod)?)).filter(|_| is_active)
    });
    Ok(pods.collect())
}

/// The same without a header, from another client pod.
pub(crate) async fn wait_for_response_from(
    shop: &TestNamespace,
    client: &str,
    pod: &(String, String),
    expected: &str,
    server: &mut Server,
) -> Result<()> {
    let url = format!("http://{}:8080/", pod.1);
    let curl = ["curl", "--silent", "--max-time", "10", &url];
    until(&format!("{expected:?} from {}", pod.0), async || {
        ensure!(server.0.exit_status()?.is_none(), "{}", server.stderr()?);
        let response = shop.exec(client, &curl, None).await?;
        Ok((response.stdout.trim() == expected).then_some(()))
    })
    .await
}

async fn request(
    shop: &TestNamespace,
    pod: &(String, String),
    header: Option<&str>,
) -> Result<String> {
    let url = format!("http://{}:8080/", pod.1);
    let mut curl = vec!["curl", "--silent", "--max-time", "10"];
    if let Some(header) = header {
        curl.extend(["-H", header]);
    }
    curl.push(&url);
    let response = shop.exec("client", &curl, None).await?;
    Ok(response.stdout.trim().to_owned())
}

/// Waits until a request to a pod gets this response.
pub(crate) async fn wait_for_response(
    shop: &TestNamespace,
    pod: &(String, String),
    header: Option<&str>,
    expected: &str,
    server: &mut Server,
) -> Result<()> {
    let what = format!("{expected:?} from {} to {header:?}", pod.0);
    until(&what, async || {
        let status = server.0.exit_status()?;
        ensure!(
            status.is_none(),
            "the session has ended: {status:?}: {}",
            server.stderr()?
        );
        Ok((request(shop, pod, header).await? == expected).then_some(()))
    })
    .await
}
