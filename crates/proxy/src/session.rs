//! A session: the rules of its configuration, and the agents that serve what belongs to the target.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::{
    Choice, DnsRules, EnvFile, EnvRules, FileMode, FileRules, OutgoingRules, Protocol, Settings,
    Side, SkipReason, SkipRules, Surroundings,
};
use interceptor::{
    Destination, DestinationChoice, Errno, Host, Intent, ListenerChoice, Notice, PathChoice,
    PendingConnection, PendingListener, RemoteFiles, Transport,
};
use link::Pipe;
use protocol::MAX_MESSAGE_BYTES;
use protocol::rpc::env_client::EnvClient;
use protocol::rpc::{HelloResponse, ListEnvRequest};
use tracing::{Level, enabled};

use crate::agent::{
    AgentConnection, Agents, FirstAgent, SessionContext, SupervisorHandle, handshake, refused,
};
use crate::dns::Dns;
use crate::error::Error;
use crate::event::{Event, EventSink};
use crate::files::{FileBackend, TargetFiles, is_served};
use crate::incoming::{Holder, Incoming};
use crate::monitor::{Monitor, MonitoredFiles};
use crate::outgoing;

/// Environment variables as bytes, as the kernel has them.
pub(crate) type Variables = Vec<(Vec<u8>, Vec<u8>)>;

/// A session with its agents. It is the [`Host`] of the processes that stand in for the target.
pub struct Session {
    context: SessionContext,
    files: Arc<TargetFiles>,
    /// The same files with monitoring, if the monitor is on.
    monitored_files: Option<MonitoredFiles<TargetFiles>>,
    dns: Arc<Dns>,
    incoming: Incoming,
    /// The target's environment when the session started.
    variables: Variables,
    rules: Rules,
    hello: HelloResponse,
    events: EventSink,
    supervisor: Option<SupervisorHandle>,
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
    /// Starts a session whose first agent is connected. Lost agents are reconnected, and agents may join and leave.
    /// `holder` identifies the session to other users. Must be called on the runtime of the session.
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
            events,
            supervisor,
        } = first;
        let observers = (events, monitor);
        let mut session =
            Self::with_agents(agents, hello, rules, settings, observers, holder).await?;
        session.supervisor = Some(supervisor);
        Ok(session)
    }

    /// A session over a single pipe to an agent. It ends with the pipe.
    pub async fn over_pipe(
        pipe: impl Pipe,
        token: &str,
        settings: &Settings,
        env_file: &EnvFile,
        surroundings: &Surroundings,
    ) -> Result<Self, Error> {
        let rules = Rules::new(settings, env_file, surroundings)?;
        let (client, hello) = handshake(pipe, token.to_owned()).await?;
        let events: EventSink = Arc::new(|event| tracing::warn!(%event, "session event"));
        let holder = Holder {
            name: "unknown".to_owned(),
            ..Holder::default()
        };
        let agents = Agents::only(AgentConnection::new(client, &hello));
        Self::with_agents(
            agents,
            hello,
            rules,
            settings,
            (events, Monitor::off()),
            holder,
        )
        .await
    }

    async fn with_agents(
        agents: Agents,
        hello: HelloResponse,
        rules: Rules,
        settings: &Settings,
        observers: (EventSink, Monitor),
        holder: Holder,
    ) -> Result<Self, Error> {
        let (events, monitor) = observers;
        let context = SessionContext::new(agents, events.clone()).with_monitor(monitor);
        let dns = Dns::new(
            context.clone(),
            DnsRules::new(&settings.feature.network.dns),
            rules.outgoing.names(),
        );
        // Concurrently, so that they cost one round trip.
        let (variables, ()) = tokio::join!(variables_of(&context), dns.start());
        let backend = FileBackend::default();
        let incoming = &settings.feature.network.incoming;
        let incoming = Incoming::new(context.clone(), incoming, holder)?;
        let files = TargetFiles::new(context.clone(), rules.files.clone(), backend)?;
        Ok(Session {
            monitored_files: monitored(&context, &files),
            files,
            context,
            dns,
            incoming,
            variables: variables?,
            rules,
            hello,
            events,
            supervisor: None,
        })
    }

    /// The same session with a given file backend instead of the best available one.
    pub fn with_file_backend(mut self, backend: FileBackend) -> Result<Self, Error> {
        self.files = TargetFiles::new(self.context.clone(), self.rules.files.clone(), backend)?;
        self.monitored_files = monitored(&self.context, &self.files);
        Ok(self)
    }

    /// Writes pending data to the target after the program has ended. Afterwards the agents are not reconnected any more
    /// and may end.
    pub fn end(&self) {
        self.files.flush();
        if let Some(supervisor) = &self.supervisor {
            supervisor.stop();
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
        self.context.monitor.environment(of_target);
        environment
            .into_iter()
            .map(|(name, value)| (OsString::from_vec(name), OsString::from_vec(value)))
            .collect()
    }
}

fn monitored(
    context: &SessionContext,
    files: &Arc<TargetFiles>,
) -> Option<MonitoredFiles<TargetFiles>> {
    let monitor = context.monitor.clone();
    let files = Arc::clone(files);
    monitor.is_on().then_some(MonitoredFiles { files, monitor })
}

/// The target's own environment.
async fn variables_of(context: &SessionContext) -> Result<Variables, Error> {
    let response = EnvClient::new(context.stateful_agent.clone())
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .list(ListEnvRequest {})
        .await
        .map_err(|status| refused(&status))?;
    let variables = response.into_inner().variables.into_iter();
    Ok(variables
        .map(|variable| (variable.name.to_vec(), variable.value.to_vec()))
        .collect())
}

impl Session {
    /// Decides about a file that configures name resolution: it belongs to the side that resolves DNS names, unless a list of
    /// the user contains it.
    fn choose_dns_file(&self, path: &Path, intent: Intent) -> Option<PathChoice> {
        if writes(intent) || !Dns::is_config_file(path) {
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
        // The kernel connects to localhost for the unspecified address, and filters treat it the same way.
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

/// The name that the kernel will give to a process that executes this program.
fn name_of_program(program: &Path) -> String {
    const MAX_BYTES: usize = 15;
    let name = program.file_name().unwrap_or_default().as_bytes();
    String::from_utf8_lossy(&name[..name.len().min(MAX_BYTES)]).into_owned()
}

fn name_of_process(process: u32) -> String {
    let name = std::fs::read(format!("/proc/{process}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

fn to_path(path: Cow<'_, [u8]>) -> PathBuf {
    PathBuf::from(OsString::from_vec(path.into_owned()))
}

impl Session {
    /// Decides about a path. Also returns the rule behind the decision if it is not one of the file rules.
    fn decide_path(&self, path: &Path, intent: Intent) -> (PathChoice, Option<&'static str>) {
        const DNS_RULE: Option<&str> = Some("feature.network.dns");
        if let Some(choice) = self.choose_dns_file(path, intent) {
            return (choice, DNS_RULE);
        }
        let bytes = path.as_os_str().as_bytes();
        let writes = writes(intent);
        let choice = match self.rules.files.choose(bytes, writes) {
            // DNS names are resolved as at the target, even when files are local.
            Choice::Local(_) if self.dns.is_enabled() && !writes && is_served(path) => {
                return (PathChoice::Remote(path.to_path_buf()), DNS_RULE);
            }
            Choice::Local(name) => {
                if intent == Intent::ReadAndWrite {
                    self.report_other_content(path);
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

    /// Reports a file that is opened for reading and writing on this machine, but would be read at the target: its content
    /// is not what the program expects.
    fn report_other_content(&self, path: &Path) {
        let read_choice = self.rules.files.choose(path.as_os_str().as_bytes(), false);
        if let Choice::Remote(target) | Choice::ReadOnlyRemote(target) = read_choice {
            self.files.report_if_at_target(path, &to_path(target));
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
                if side == Side::Local && self.dns.hides_socket(path) {
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
            Destination::Unix(path) if self.dns.hides_socket(path) => return "feature.network.dns",
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
        self.decide_path(path, intent).0
    }

    fn path_decided(&self, path: &Path, intent: Intent, choice: &PathChoice) {
        if enabled!(Level::TRACE) {
            let rule = self.decide_path(path, intent).1;
            let of_files = || self.rules.files.rule(path.as_os_str().as_bytes());
            let rule = rule.unwrap_or_else(of_files);
            tracing::trace!(path = %path.display(), ?intent, ?choice, rule, "path decision");
        }
        self.context.monitor.path_decided(path, intent, choice);
    }

    fn process_executes(&self, process: u32, program: &Path) {
        let monitor = &self.context.monitor;
        monitor.process_started(process, || name_of_program(program));
    }

    fn process_exits(&self, process: u32) {
        let monitor = &self.context.monitor;
        // A process that never executed a program is first seen here.
        monitor.process_started(process, || name_of_process(process));
        monitor.process_ended(process);
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
            tracing::trace!(
                ?transport,
                ?destination,
                ?choice,
                rule,
                "destination decision"
            );
        }
        choice
    }

    fn files(&self) -> &dyn RemoteFiles {
        match &self.monitored_files {
            Some(monitored) => monitored,
            None => &*self.files,
        }
    }

    fn connect(&self, outgoing: PendingConnection) {
        match outgoing.destination() {
            Destination::Internet(address) if self.dns.is_resolver_address(*address) => {
                self.dns.serve(outgoing);
            }
            destination => {
                let names = || match destination {
                    Destination::Internet(address) => self.dns.with_names(address.ip(), |names| {
                        names.iter().map(|name| (*name).to_owned()).collect()
                    }),
                    Destination::Unix(_) => Vec::new(),
                };
                let monitor = &self.context.monitor;
                let attempt = monitor.attempt(outgoing.transport(), destination, names);
                let closed_port = match destination {
                    Destination::Internet(address) if outgoing.transport() == Transport::Tcp => {
                        self.incoming.wait_for_closed_port(address.port())
                    }
                    _ => None,
                };
                outgoing::connect(&self.context, outgoing, attempt, closed_port);
            }
        }
    }

    fn choose_listener(&self, transport: Transport, address: SocketAddr) -> ListenerChoice {
        self.incoming.choose(transport, address)
    }

    fn choose_port(&self, _: Transport, address: SocketAddr) -> Option<u16> {
        self.incoming.choose_port(address)
    }

    fn listen(&self, listening: PendingListener) {
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

    fn skips_program(&self, program: &Path) -> bool {
        self.rules
            .skip
            .choose(program.as_os_str().as_bytes())
            .is_some()
    }

    fn notice(&self, notice: &Notice) {
        let event = match notice {
            Notice::NoLocalDirectory {
                program,
                directory,
                errno,
            } => {
                let reason = self.rules.skip.choose(program.as_os_str().as_bytes());
                Event::NoLocalDirectory {
                    program: program.clone(),
                    directory: directory.clone(),
                    errno: *errno,
                    reason: reason.unwrap_or(SkipReason::BuildTool),
                }
            }
            notice => Event::Program(notice.clone()),
        };
        (self.events)(&event);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Session");
        debug.field("rules", &self.rules).finish_non_exhaustive()
    }
}
