//! The agent of a session: one that is started on this machine for it, or one that runs already.

use std::env;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use link::tls::rustls::pki_types::ServerName;
use link::tls::{Fingerprint, TlsDialer, Trust};
use link::{Link, TcpDialer, Token};

use crate::environment::{AGENT_PROGRAM, AGENT_TOKEN};

/// An agent that runs already.
#[derive(Debug, Args)]
pub(crate) struct GivenAgent {
    /// Use the agent that listens here; its token is in STANDIN_AGENT_TOKEN
    #[arg(long = "agent", value_name = "HOST:PORT")]
    address: Option<String>,
    /// Speak TLS to that agent, which has the certificate with this SHA-256 (`standind agent --tls` prints it)
    #[arg(
        long = "agent-certificate",
        value_name = "SHA256",
        requires = "address"
    )]
    certificate: Option<Fingerprint>,
}

/// Where an agent is, and how to be let in. An agent that was started for it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Agent {
    addresses: Vec<SocketAddr>,
    certificate: Option<Fingerprint>,
    token: String,
    _process: Option<LocalAgent>,
}

impl Agent {
    /// The one that was named on the command line, if one was.
    pub(crate) fn given(given: &GivenAgent) -> Result<Option<Self>> {
        let Some(address) = &given.address else {
            return Ok(None);
        };
        let addresses = address
            .to_socket_addrs()
            .with_context(|| format!("--agent {address} is not a host and a port"))?
            .collect();
        let token = env::var(AGENT_TOKEN).with_context(|| {
            format!("set {AGENT_TOKEN} to the token that the agent at {address} was started with")
        })?;
        Ok(Some(Agent {
            addresses,
            certificate: given.certificate,
            token,
            _process: None,
        }))
    }

    /// Starts one beside a process of this machine.
    pub(crate) fn beside_process(pid: u32) -> Result<Self> {
        let token = new_token()?;
        let (process, address) = LocalAgent::start(pid, &token)?;
        Ok(Agent {
            addresses: vec![address],
            certificate: None,
            token,
            _process: Some(process),
        })
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    pub(crate) async fn connect(&self) -> Result<Link> {
        let settings = link::Settings {
            token: Token::new(self.token.as_bytes())?,
            ..link::Settings::default()
        };
        let dialer = TcpDialer::any_of(self.addresses.clone());
        Ok(match self.certificate {
            None => Link::connect(dialer, settings).await?,
            Some(certificate) => {
                // The certificate is known, so its name does not matter.
                let name = ServerName::try_from("agent")?;
                let dialer = TlsDialer::new(dialer, name, Trust::Pinned(certificate))?;
                Link::connect(dialer, settings).await?
            }
        })
    }
}

/// An agent on this machine, for one session. It ends with us, however we end: it watches its standard input.
#[derive(Debug)]
struct LocalAgent(Child);

impl LocalAgent {
    fn start(pid: u32, token: &str) -> Result<(Self, SocketAddr)> {
        let program = agent_program()?;
        let process = Command::new(&program)
            .args(["agent", "--end-with-input", "--process", &pid.to_string()])
            .env(AGENT_TOKEN, token)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the agent {}", program.display()))?;
        let mut agent = LocalAgent(process);
        let mut line = String::new();
        let output = agent.0.stdout.take().context("the agent has no output")?;
        BufReader::new(output).read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on ");
        match address.and_then(|address| address.parse().ok()) {
            Some(address) => Ok((agent, address)),
            None => {
                bail!("the agent beside process/{pid} did not start; what it said is above")
            }
        }
    }
}

impl Drop for LocalAgent {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn agent_program() -> Result<PathBuf> {
    if let Some(program) = env::var_os(AGENT_PROGRAM) {
        return Ok(PathBuf::from(program));
    }
    let beside = env::current_exe()
        .context("finding this program")?
        .with_file_name("standind");
    if beside.is_file() {
        return Ok(beside);
    }
    bail!(
        "standind is not beside standin at {}; set {AGENT_PROGRAM} to its path",
        beside.display()
    )
}

/// A secret of this session alone.
fn new_token() -> Result<String> {
    let mut bytes = [0_u8; 16];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .context("no randomness")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
