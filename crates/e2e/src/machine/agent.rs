//! An agent that runs as a separate process, for sessions that connect to it over a network.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

use super::session::Programs;
use super::target::Target;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Tls,
}

/// `standind agent` for a target. It exits when this value is dropped and when this program exits.
#[derive(Debug)]
pub struct RunningAgent {
    process: Child,
    pub address: String,
    /// The SHA-256 of its certificate.
    certificate: Option<String>,
}

impl RunningAgent {
    /// The token that a client must present.
    pub const TOKEN: &'static str = "a token of the tests";

    pub fn start(programs: &Programs, target: &Target, transport: Transport) -> Result<Self> {
        Self::start_as(&mut programs.standind(), target, transport)
    }

    /// The same, with a command that ends with the name of the agent's program.
    pub fn start_as(command: &mut Command, target: &Target, transport: Transport) -> Result<Self> {
        command
            .args([
                "agent",
                "--end-with-input",
                "--process",
                &target.pid().to_string(),
            ])
            .args((transport == Transport::Tls).then_some("--tls"))
            .env("STANDIN_AGENT_TOKEN", Self::TOKEN)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().context("cannot start the agent")?;
        let mut line = String::new();
        let output = process.stdout.take().context("no output")?;
        BufReader::new(output).read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let mut word_after = |word: &str| {
            words.find(|found| *found == word)?;
            words.next().map(str::to_owned)
        };
        let address = word_after("on").with_context(|| format!("the agent printed {line:?}"))?;
        let certificate = word_after("certificate");
        Ok(RunningAgent {
            process,
            address,
            certificate,
        })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// `standin exec` with the agent at `address`, which may be the address of a relay.
    pub fn exec(&self, programs: &Programs, address: &str) -> Command {
        let mut standin = programs.standin();
        standin
            .args(["exec", "--agent", address])
            .env("STANDIN_AGENT_TOKEN", Self::TOKEN)
            .stdin(Stdio::null());
        if let Some(certificate) = &self.certificate {
            standin.args(["--agent-certificate", certificate]);
        }
        standin.arg("--");
        standin
    }

    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}
