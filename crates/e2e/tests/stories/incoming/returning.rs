//! A session that was killed, and who starts again at once.

use anyhow::{Result, ensure};
use e2e::machine::{RunningAgent, Target, Transport};
use e2e::{Story, until};

use super::super::surroundings::{Running, programs};
use super::{LOCAL, ask, network, original, serve, until_answered};

const STEAL: [(&str, &str); 1] = [("INCOMING", "steal")];

/// A server in Node that answers a word.
fn answering(word: &str) -> String {
    format!("require('http').createServer((_, out) => out.end('{word}\\n')).listen(8080)")
}

/// An agent of this machine that was started for the session ends with it, which takes a moment. Who starts again does not
/// notice.
pub(super) async fn who_is_killed_and_starts_again_gets_the_port(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let killed = serve(&target, network::APPLICATION, &STEAL)?;
    until_answered(&target, &killed, &[], LOCAL).await?;
    killed.kill()?;
    let again = programs()?.exec(&target, &["node", "-e", &answering("again")]);
    let again = Running::start(again, &STEAL)?;
    until("an answer of the second", async || {
        let answer = ask(&target, &[])?;
        let known = [LOCAL, "again\n", &original(network::CLIENT)].contains(&&*answer);
        ensure!(known, "{answer:?}\n{}", again.report());
        Ok((answer == "again\n").then_some(()))
    })
    .await
}

/// An agent that outlives the session keeps the port for it, as long as it may come back: for others, and not for its user.
pub(super) async fn who_starts_again_gets_what_an_agent_keeps_for_him(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let agent = RunningAgent::start(&programs()?, &target, Transport::Tcp)?;
    let start = |user: &str, word: &str| -> Result<Running> {
        let mut command = agent.exec(&programs()?, &agent.address);
        command
            .args(["node", "-e", &answering(word)])
            .env("USER", user)
            .env_remove("SUDO_USER");
        Running::start(command, &STEAL)
    };
    let killed = start("ada", "first")?;
    until_answered(&target, &killed, &[], "first\n").await?;
    killed.kill()?;

    let another = start("grace", "another")?.end()?;
    ensure!(another.code != Some(0), "{another}");
    for words in [
        "port 8080 of the target: the program cannot listen: ada@",
        "(node) already takes all traffic of this port, has lost the connection, and keeps it for up to ",
    ] {
        ensure!(another.stderr.contains(words), "{another}");
    }
    // Meanwhile clients get what they always got.
    let answer = ask(&target, &[])?;
    ensure!(answer == original(network::TARGET), "{answer:?}");

    let again = start("ada", "again")?;
    until_answered(&target, &again, &[], "again\n").await
}
