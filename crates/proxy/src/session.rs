//! One session: the rules of its configuration, and the agent behind them.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::{
    Choice, DnsRules, EnvFile, EnvRules, FileMode, FileRules, OutgoingRules, Protocol, Settings,
    Side, SkipRules, Surroundings,
};
use interceptor::{
    Destination, DestinationChoice, Errno, Host, Intent, ListenerChoice, Listening, Notice,
    Outgoing, PathChoice, RemoteFiles, Transport,
};
use link::Pipe;
use protocol::MESSAGE_BYTES;
use protocol::rpc::env_client::EnvClient;
use protocol::rpc::{HelloResponse, ListEnvRequest};
use tracing::{Level, enabled};

use crate::agent::{Agent, Agents, FirstAgent, Keeping, Member, greet, refused};
use crate::dns::Dns;
use crate::error::Error;
use crate::event::{Event, Tell};
use crate::files::{FilesThrough, TargetFiles, is_served};
use crate::incoming::{Holder, Incoming};
use crate::monitor::{Monitor, WatchedFiles};
use crate::outgoing;

/// Variables as the kernel has them.
pub(crate) type Variables = Vec<(Vec<u8>, Vec<u8>)>;

/// A session with its agents. It is the host of the processes that stand in for the target.
pub struct Session {
    agent: Agent,
    files: Arc<TargetFiles>,
    /// The same, when somebody may look.
    watched_files: Option<WatchedFiles<TargetFiles>>,
    dns: Arc<Dns>,
    incoming: Incoming,
    /// The target's environment, as it was when the session began.
    variables: Variables,
    rules: Rules,
    hello: HelloResponse,
    tell: Tell,
    keeper: Option<Keeping>,
}

#[derive(Debug)]
struct Rules {
    env: EnvRules,
    files: FileRules,
    files_are_local: bool,
    outgoing: OutgoingRules,
    skip: SkipRules,
    hostname: bool,
}

impl Rules {
    fn new(
        settings: &Settings,
        env_file: &EnvFile,
        surroundings: &Surroundings,
    ) -> Result<Self, Error> {
        Ok(Rules {
            env: EnvRules::new(&settings.feature.env, env_file)?,
            files: FileRules::new(&settings.feature.fs, surroundings)?,
            files_are_local: settings.feature.fs.mode == FileMode::Local,
            outgoing: OutgoingRules::new(&settings.feature.network.outgoing)?,
            skip: SkipRules::new(settings),
            hostname: settings.feature.hostname,
        })
    }
}

impl Session {
    /// A session whose first agent is there. It keeps itself up from then on: agents come and go, and one that is lost is
    /// reached again. `holder` says to others whose session it is. Must be called on the runtime that carries the session.
    pub async fn start(
        first: FirstAgent,
        monitor: Monitor,
        holder: Holder,
        settings: &Settings,
        env_file: &EnvFile,
        surroundings: &Surroundings,
    ) -> Result<Self, Error> {
        let rules = Rules::new(settings, env_file, surroundings)?;
        let FirstAgent {
            agents,
            hello,
            tell,
            keeper,
        } = first;
        let observers = (tell, monitor);
        let mut session =
            Self::with_agents(agents, hello, rules, settings, observers, holder).await?;
        session.keeper = Some(keeper);
        Ok(session)
    }

    /// A session over a pipe to an agent, which ends with the pipe.
    pub async fn over(
        pipe: impl Pipe,
        token: &str,
        settings: &Settings,
        env_file: &EnvFile,
        surroundings: &Surroundings,
    ) -> Result<Self, Error> {
        let rules = Rules::new(settings, env_file, surroundings)?;
        let (client, hello) = greet(pipe, token.to_owned()).await?;
        let tell: Tell = Arc::new(|event| tracing::warn!(%event, "session"));
        let holder = Holder {
            name: "somebody".to_owned(),
            ..Holder::default()
        };
        let agents = Agents::only(Member::new(client, &hello));
        Self::with_agents(
            agents,
            hello,
            rules,
            settings,
            (tell, Monitor::off()),
            holder,
        )
        .await
    }

    async fn with_agents(
        agents: Agents,
        hello: HelloResponse,
        rules: Rules,
        settings: &Settings,
        observers: (Tell, Monitor),
        holder: Holder,
    ) -> Result<Self, Error> {
        let (tell, monitor) = observers;
        let agent = Agent::new(agents, tell.clone()).watched(monitor);
        let dns = Dns::new(
            agent.clone(),
            DnsRules::new(&settings.feature.network.dns),
            rules.outgoing.names(),
        );
        // Together, so that they cost one round trip.
        let (variables, ()) = tokio::join!(variables_of(&agent), dns.start());
        let through = FilesThrough::default();
        let incoming = &settings.feature.network.incoming;
        let incoming = Incoming::new(agent.clone(), incoming, holder)?;
        let files = TargetFiles::new(agent.clone(), rules.files.clone(), through)?;
        Ok(Session {
            watched_files: watched(&agent, &files),
            files,
            agent,
            dns,
            incoming,
            variables: variables?,
            rules,
            hello,
            tell,
            keeper: None,
        })
    }

    /// The same session, with files as descriptors in this way instead of the best one.
    pub fn with_files_through(mut self, through: FilesThrough) -> Result<Self, Error> {
        self.files = TargetFiles::new(self.agent.clone(), self.rules.files.clone(), through)?;
        self.watched_files = watched(&self.agent, &self.files);
        Ok(self)
    }

    /// Brings what is still to be written to the target, when the program has ended. Afterwards nobody looks after the
    /// agent any more, which may end.
    pub fn end(&self) {
        self.files.settle();
        if let Some(keeper) = &self.keeper {
            keeper.end();
        }
    }

    /// The environment of a process that stands in for the target.
    pub fn environment(&self, local: Variables) -> Vec<(OsString, OsString)> {
        let environment = self.rules.env.apply(self.variables.clone(), local);
        let of_target = self.variables.iter().filter_map(|(name, _)| {
            let value = environment
                .get(name)
                .filter(|_| self.rules.env.takes(name))?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Some((text(name), text(value)))
        });
        self.agent.monitor.environment(of_target);
        environment
            .into_iter()
            .map(|(name, value)| (OsString::from_vec(name), OsString::from_vec(value)))
            .collect()
    }
}

fn watched(agent: &Agent, files: &Arc<TargetFiles>) -> Option<WatchedFiles<TargetFiles>> {
    let monitor = agent.monitor.clone();
    let files = Arc::clone(files);
    monitor.is_on().then_some(WatchedFiles { files, monitor })
}

/// The target's own environment.
async fn variables_of(agent: &Agent) -> Result<Variables, Error> {
    let answer = EnvClient::new(agent.client.clone())
        .max_decoding_message_size(MESSAGE_BYTES)
        .list(ListEnvRequest {})
        .await
        .map_err(|status| refused(&status))?;
    let variables = answer.into_inner().variables.into_iter();
    Ok(variables
        .map(|variable| (variable.name.to_vec(), variable.value.to_vec()))
        .collect())
}

impl Session {
    /// The place of a file that says how names are resolved: it follows the names, unless a list of the user names it.
    fn choose_dns_file(&self, path: &Path, intent: Intent) -> Option<PathChoice> {
        if writes(intent) || !Dns::is_file(path) {
            return None;
        }
        match self.dns.is_enabled() {
            false => Some(PathChoice::Local),
            true if self.rules.files_are_local => Some(PathChoice::Remote(path.to_path_buf())),
            true => None,
        }
    }

    fn choose_address(&self, protocol: Protocol, address: SocketAddr) -> Side {
        if let Some(side) = self.dns.choose(address) {
            return side;
        }
        // The kernel takes the unspecified address for localhost, and so do filters.
        let ip = match address.ip().to_canonical() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let address = SocketAddr::new(ip, address.port());
        let rules = &self.rules.outgoing;
        self.dns
            .with_names(ip, |names| rules.choose(protocol, address, names))
    }
}

fn writes(intent: Intent) -> bool {
    matches!(intent, Intent::Write | Intent::ReadAndWrite)
}

fn to_path(path: Cow<'_, [u8]>) -> PathBuf {
    PathBuf::from(OsString::from_vec(path.into_owned()))
}

impl Session {
    /// The place of a path, and the rule that says so if it is none about files.
    fn decide_path(&self, path: &Path, intent: Intent) -> (PathChoice, Option<&'static str>) {
        const NAMES: Option<&str> = Some("feature.network.dns");
        if let Some(choice) = self.choose_dns_file(path, intent) {
            return (choice, NAMES);
        }
        let bytes = path.as_os_str().as_bytes();
        let writes = writes(intent);
        let choice = match self.rules.files.choose(bytes, writes) {
            // Names are the target's wherever its files are.
            Choice::Local(_) if self.dns.is_enabled() && !writes && is_served(path) => {
                return (PathChoice::Remote(path.to_path_buf()), NAMES);
            }
            Choice::Local(name) => {
                if intent == Intent::ReadAndWrite {
                    self.tell_of_other_content(path);
                }
                match name {
                    Cow::Borrowed(_) => PathChoice::Local,
                    mapped @ Cow::Owned(_) => PathChoice::LocalAs(to_path(mapped)),
                }
            }
            Choice::ReadOnlyRemote(_) if writes => PathChoice::Refused(Errno::EROFS),
            Choice::Remote(path) | Choice::ReadOnlyRemote(path) => {
                PathChoice::Remote(to_path(path))
            }
            Choice::NotFound => PathChoice::Refused(Errno::ENOENT),
        };
        (choice, None)
    }

    /// A file is opened for reading and writing on this machine. If it is the target's for those who only read, its content
    /// is not what the program expects.
    fn tell_of_other_content(&self, path: &Path) {
        let to_read = self.rules.files.choose(path.as_os_str().as_bytes(), false);
        if let Choice::Remote(target) | Choice::ReadOnlyRemote(target) = to_read {
            self.files.tell_if_there(path, &to_path(target));
        }
    }

    fn decide_destination(
        &self,
        protocol: Protocol,
        destination: &Destination,
    ) -> DestinationChoice {
        let side = match destination {
            Destination::Internet(address) => self.choose_address(protocol, *address),
            Destination::Unix(path) => {
                let side = self.rules.outgoing.choose_unix(path.as_os_str().as_bytes());
                if side == Side::Local && self.dns.hides(path) {
                    return DestinationChoice::Refused(Errno::ENOENT);
                }
                side
            }
        };
        match side {
            Side::Local => DestinationChoice::Local,
            Side::Remote => DestinationChoice::Remote,
        }
    }

    /// The rule that decides about a destination, for the log.
    fn rule_of(&self, protocol: Protocol, destination: &Destination) -> &'static str {
        let address = match destination {
            Destination::Unix(path) if self.dns.hides(path) => return "feature.network.dns",
            Destination::Unix(_) => return "feature.network.outgoing.unix_streams",
            Destination::Internet(address) => *address,
        };
        if self.dns.choose(address).is_some() {
            return "feature.network.dns";
        }
        self.rules.outgoing.rule(protocol, address)
    }
}

impl Host for Session {
    fn choose_path(&self, path: &Path, intent: Intent) -> PathChoice {
        let (choice, rule) = self.decide_path(path, intent);
        if enabled!(Level::TRACE) {
            let of_files = || {
                let bytes = path.as_os_str().as_bytes();
                self.rules.files.rule(bytes)
            };
            let rule = rule.unwrap_or_else(of_files);
            tracing::trace!(path = %path.display(), ?intent, ?choice, rule, "path");
        }
        self.agent.monitor.judged(path, intent, &choice);
        choice
    }

    fn choose_destination(
        &self,
        transport: Transport,
        destination: &Destination,
    ) -> DestinationChoice {
        let protocol = if transport == Transport::Udp {
            Protocol::Udp
        } else {
            Protocol::Tcp
        };
        let choice = self.decide_destination(protocol, destination);
        if enabled!(Level::TRACE) {
            let rule = self.rule_of(protocol, destination);
            tracing::trace!(?transport, ?destination, ?choice, rule, "destination");
        }
        choice
    }

    fn files(&self) -> &dyn RemoteFiles {
        match &self.watched_files {
            Some(watched) => watched,
            None => &*self.files,
        }
    }

    fn connect(&self, outgoing: Outgoing) {
        match outgoing.destination() {
            Destination::Internet(address) if self.dns.answers_for(*address) => {
                self.dns.serve(outgoing);
            }
            destination => {
                let names = || match destination {
                    Destination::Internet(address) => self.dns.with_names(address.ip(), |names| {
                        names.iter().map(|name| (*name).to_owned()).collect()
                    }),
                    Destination::Unix(_) => Vec::new(),
                };
                let monitor = &self.agent.monitor;
                let attempt = monitor.attempt(outgoing.transport(), destination, names);
                outgoing::connect(&self.agent, outgoing, attempt);
            }
        }
    }

    fn choose_listener(&self, transport: Transport, address: SocketAddr) -> ListenerChoice {
        self.incoming.choose(transport, address)
    }

    fn choose_port(&self, _: Transport, address: SocketAddr) -> Option<u16> {
        self.incoming.choose_port(address)
    }

    fn listen(&self, listening: Listening) {
        self.incoming.listen(listening);
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

    fn notice(&self, notice: &Notice) {
        (self.tell)(&Event::Program(notice.clone()));
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Session");
        debug.field("rules", &self.rules).finish_non_exhaustive()
    }
}
