//! Sessions that are killed and restarted at once.

use anyhow::{Result, ensure};
use e2e::machine::{RunningAgent, Target, Transport};
use e2e::{Scenario, until};

use super::super::support::{SessionProcess, programs};
use super::{LOCAL, network, original, request, serve, wait_for_response};

const STEAL: [(&str, &str); 1] = [("INCOMING", "steal")];

/// A server in Node that responds with a text.
fn node_server(text: &str) -> String {
    format!("require('http').createServer((_, out) => out.end('{text}\\n')).listen(8080)")
}

/// The local agent of a killed session exits a moment later. The restarted session waits for that.
pub(super) async fn a_killed_session_that_restarts_gets_the_port(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let killed = serve(&target, network::APPLICATION, &STEAL)?;
    wait_for_response(&target, &killed, &[], LOCAL).await?;
    killed.kill()?;
    let restarted = programs()?.exec(&target, &["node", "-e", &node_server("again")]);
    let restarted = SessionProcess::start(restarted, &STEAL)?;
    until("a response of the restarted program", async || {
        let response = request(&target, &[])?;
        let is_expected = [LOCAL, "again\n", &original(network::CLIENT)].contains(&&*response);
        ensure!(is_expected, "{response:?}\n{}", restarted.report());
        Ok((response == "again\n").then_some(()))
    })
    .await
}

/// An agent that outlives the session keeps its claim during the resume window. Only the same user may take it over.
pub(super) async fn a_restarted_session_gets_the_claim_that_an_agent_keeps_for_its_user(
    _: &Scenario<'_>,
) -> Result<()> {
    let target = Target::start()?;
    let agent = RunningAgent::start(&programs()?, &target, Transport::Tcp)?;
    let start = |user: &str, text: &str| -> Result<SessionProcess> {
        let mut command = agent.exec(&programs()?, &agent.address);
        command
            .args(["node", "-e", &node_server(text)])
            .env("USER", user)
            .env_remove("SUDO_USER");
        SessionProcess::start(command, &STEAL)
    };
    let killed = start("ada", "first")?;
    wait_for_response(&target, &killed, &[], "first\n").await?;
    killed.kill()?;

    let another = start("grace", "another")?.end()?;
    ensure!(another.code != Some(0), "{another}");
    for text in [
        "port 8080 of the target: the program cannot listen: ada@",
        "(node) already takes all traffic of this port, has lost the connection, and keeps it for up to ",
    ] {
        ensure!(another.stderr.contains(text), "{another}");
    }
    // Until then the application serves the clients.
    let response = request(&target, &[])?;
    ensure!(response == original(network::TARGET), "{response:?}");

    let restarted = start("ada", "again")?;
    wait_for_response(&target, &restarted, &[], "again\n").await
}
