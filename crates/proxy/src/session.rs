//! One session: the rules of its configuration, and the agent behind them.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use config::{
    Choice, EnvFile, EnvRules, FileRules, OutgoingRules, Protocol, Settings, Side, SkipRules,
    Surroundings,
};
use interceptor::{Destination, Errno, Host, Intent, Outgoing, PathChoice, RemoteFiles, Transport};
use link::Pipe;
use link::http2::{Client, Windows};
use protocol::control::{FEATURES, VERSION};
use protocol::rpc::control_client::ControlClient;
use protocol::rpc::env_client::EnvClient;
use protocol::rpc::{Failure, HelloRequest, HelloResponse, ListEnvRequest};
use tokio::runtime::Handle;

use crate::agent::Agent;
use crate::error::Error;
use crate::files::{FilesThrough, TargetFiles, is_served};
use crate::outgoing;

/// Variables as the kernel has them.
pub(crate) type Variables = Vec<(Vec<u8>, Vec<u8>)>;

/// A session with one agent. It is the host of the processes that stand in for the target.
#[derive(Debug)]
pub struct Session {
    agent: Agent,
    files: TargetFiles,
    rules: Rules,
    hello: HelloResponse,
}

#[derive(Debug)]
struct Rules {
    env: EnvRules,
    files: FileRules,
    outgoing: OutgoingRules,
    skip: SkipRules,
    hostname: bool,
    dns: bool,
}

impl Session {
    /// Greets the agent at the other end of a pipe. Must be called on the runtime that carries the session.
    pub async fn start(
        pipe: impl Pipe,
        token: &str,
        settings: &Settings,
        env_file: &EnvFile,
        surroundings: &Surroundings,
    ) -> Result<Self, Error> {
        let rules = Rules {
            env: EnvRules::new(&settings.feature.env, env_file)?,
            files: FileRules::new(&settings.feature.fs, surroundings)?,
            outgoing: OutgoingRules::new(&settings.feature.network.outgoing)?,
            skip: SkipRules::new(settings),
            hostname: settings.feature.hostname,
            dns: settings.feature.network.dns.enabled,
        };
        let client = Client::start(pipe, Windows::default()).await?;
        let hello = HelloRequest {
            version: Some(VERSION),
            features: FEATURES.iter().copied().map(str::to_owned).collect(),
            token: token.to_owned(),
            client: format!("standin {}", env!("CARGO_PKG_VERSION")),
        };
        let hello = ControlClient::new(client.clone())
            .hello(hello)
            .await
            .map_err(|status| refused(&status))?
            .into_inner();
        let agent = Agent {
            client,
            runtime: Handle::current(),
        };
        let through = FilesThrough::default();
        Ok(Session {
            files: TargetFiles::new(agent.clone(), rules.files.clone(), through)?,
            agent,
            rules,
            hello,
        })
    }

    /// The same session, with files as descriptors in this way instead of the best one.
    pub fn with_files_through(mut self, through: FilesThrough) -> Result<Self, Error> {
        self.files = TargetFiles::new(self.agent.clone(), self.rules.files.clone(), through)?;
        Ok(self)
    }

    /// The environment of a process that stands in for the target.
    pub async fn environment(&self, local: Variables) -> Result<Vec<(OsString, OsString)>, Error> {
        let answer = EnvClient::new(self.agent.client.clone())
            .list(ListEnvRequest {})
            .await
            .map_err(|status| refused(&status))?;
        let target = answer.into_inner().variables.into_iter();
        let target = target
            .map(|variable| (variable.name.to_vec(), variable.value.to_vec()))
            .collect();
        let environment = self.rules.env.apply(target, local).into_iter();
        Ok(environment
            .map(|(name, value)| (OsString::from_vec(name), OsString::from_vec(value)))
            .collect())
    }
}

impl Host for Session {
    fn choose_path(&self, path: &Path, intent: Intent) -> PathChoice {
        let bytes = path.as_os_str().as_bytes();
        let writes = intent == Intent::Write;
        match self.rules.files.choose(bytes, writes) {
            // Names are the target's wherever its files are.
            Choice::Local(_) if self.rules.dns && !writes && is_served(path) => {
                PathChoice::Remote(path.to_path_buf())
            }
            Choice::Local(_) => PathChoice::Local,
            Choice::ReadOnlyRemote(_) if writes => PathChoice::Refused(Errno::EROFS),
            Choice::Remote(path) | Choice::ReadOnlyRemote(path) => {
                PathChoice::Remote(PathBuf::from(OsString::from_vec(path.into_owned())))
            }
            Choice::NotFound => PathChoice::Refused(Errno::ENOENT),
        }
    }

    fn choose_destination(&self, transport: Transport, destination: &Destination) -> bool {
        let protocol = if transport == Transport::Udp {
            Protocol::Udp
        } else {
            Protocol::Tcp
        };
        let side = match destination {
            Destination::Internet(address) => self.rules.outgoing.choose(protocol, *address, &[]),
            Destination::Unix(path) => self.rules.outgoing.choose_unix(path.as_os_str().as_bytes()),
        };
        side == Side::Remote
    }

    fn files(&self) -> &dyn RemoteFiles {
        &self.files
    }

    fn connect(&self, outgoing: Outgoing) {
        outgoing::connect(&self.agent, outgoing);
    }

    fn hostname(&self) -> Option<OsString> {
        let hostname = self
            .hello
            .target
            .as_ref()
            .map(|target| target.hostname.to_vec());
        hostname
            .filter(|_| self.rules.hostname)
            .map(OsString::from_vec)
    }

    fn leaves_alone(&self, program: &Path) -> bool {
        self.rules
            .skip
            .choose(program.as_os_str().as_bytes())
            .is_some()
    }
}

fn refused(status: &tonic::Status) -> Error {
    let detail = Failure::from_status(status).map(|failure| failure.detail);
    Error::Refused(detail.unwrap_or_else(|| status.to_string()))
}
