//! Names, as the target resolves them.
//!
//! The application reads the target's `resolv.conf` and hosts file as files, and sends its questions to the nameservers
//! that it finds there. Those never leave as packets: the resolver answers them, from memory or with one call to the
//! agent, which asks from beside the target. So a nameserver may well be `127.0.0.11` or `127.0.0.53`: it is the
//! target's.
//!
//! What answers say is remembered by address, because filters for connections speak of names.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use bytes::Bytes;
use config::{DnsRules, Side};
use interceptor::{Names, Outgoing, Transport};
use protocol::dns::hosts_lines;
use protocol::files::FIRST_BYTES;
use protocol::rpc::{self, DnsSettingsRequest, ExchangeRequest, LookupRequest, Outcome};
use tokio::time::{Instant, sleep, timeout};

mod answer;
mod cache;
mod names;
mod resolver;
mod service;
mod this_machine;

use self::answer::Resolved;
use self::names::NameMap;
use self::resolver::{Exchange, Resolver, Upstream, lock};
use self::this_machine::ThisMachine;
use crate::agent::{Agent, address};

const PORT: u16 = 53;
/// How often names are asked for again that filters mention, and the target's settings are read again.
const REFRESH: Duration = Duration::from_secs(30);
/// How long a session's start waits for names that filters mention.
const START_PATIENCE: Duration = Duration::from_secs(3);
/// The settings are not read more often than this because of packets to unknown nameservers.
const SETTINGS_PAUSE: Duration = Duration::from_secs(2);

/// Files that say how names are resolved. With names of the target they are the target's.
const FILES: &[&str] = &["/etc/resolv.conf", "/etc/hosts"];

/// Sockets of services of this machine that resolve names for its programs: nscd, systemd-resolved and Avahi. To a
/// program that shall see the target's names, they are not there, and it asks a nameserver.
const SERVICES: &[&str] = &[
    "/run/nscd/socket",
    "/var/run/nscd/socket",
    "/run/systemd/resolve/io.systemd.Resolve",
    "/run/systemd/resolve/io.systemd.Resolve.Monitor",
    "/run/avahi-daemon/socket",
    "/var/run/avahi-daemon/socket",
];

/// The names of a session.
#[derive(Debug)]
pub(crate) struct Dns {
    agent: Agent,
    rules: DnsRules,
    enabled: bool,
    resolver: Arc<Resolver>,
    names: Arc<Mutex<NameMap>>,
    /// Names without wildcards that filters for connections mention. None: they do not speak of names.
    mentioned: Option<Vec<String>>,
    this_machine: Arc<ThisMachine>,
    nameservers: RwLock<Nameservers>,
}

/// Whom programs ask: those of the target's `resolv.conf`, and those of this machine's.
#[derive(Debug)]
struct Nameservers {
    target: HashSet<SocketAddr>,
    this_machine: HashSet<SocketAddr>,
    /// When somebody last began to read them.
    read: Instant,
}

impl Dns {
    /// `mentioned` are the names that filters for connections speak of; nothing, if they speak of none.
    pub(crate) fn new(agent: Agent, rules: DnsRules, mentioned: Option<Vec<String>>) -> Arc<Self> {
        let this_machine = Arc::new(ThisMachine::default());
        let names = Arc::new(Mutex::new(NameMap::default()));
        let resolver = Resolver::new(
            rules.clone(),
            Arc::new(Target(agent.clone())),
            Arc::clone(&this_machine) as _,
            Arc::clone(&names),
            agent.monitor.clone(),
        );
        Arc::new(Self {
            agent,
            enabled: rules.is_enabled(),
            rules,
            resolver: Arc::new(resolver),
            names,
            mentioned,
            nameservers: RwLock::new(Nameservers {
                target: HashSet::new(),
                this_machine: HashSet::new(),
                read: Instant::now(),
            }),
            this_machine,
        })
    }

    /// Learns what must be known before the application starts, and keeps it up to date as long as the session lives.
    pub(crate) async fn start(self: &Arc<Self>) {
        let learn = async { tokio::join!(self.read_settings(), self.learn_names()) };
        if timeout(START_PATIENCE, learn).await.is_err() {
            tracing::warn!("the target's nameservers take long; filters by name may miss at first");
        }
        let this = Arc::downgrade(self);
        self.agent.runtime.spawn(async move {
            loop {
                sleep(REFRESH).await;
                let Some(this) = this.upgrade() else { return };
                tokio::join!(this.read_settings(), this.learn_names());
            }
        });
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Whether a file says how names are resolved, so that it belongs where they are.
    pub(crate) fn is_file(path: &Path) -> bool {
        FILES.iter().any(|file| path == Path::new(file))
    }

    /// Whether a Unix socket leads to a service of this machine that resolves names, which shall not be asked.
    pub(crate) fn hides(&self, path: &Path) -> bool {
        self.enabled && SERVICES.iter().any(|service| path == Path::new(service))
    }

    /// Where packets to an address go, if it is a nameserver's: to the resolver, or with names of this machine to its own
    /// nameservers. Quick.
    pub(crate) fn choose(self: &Arc<Self>, address: SocketAddr) -> Option<Side> {
        if address.port() != PORT {
            return None;
        }
        let address = comparable(address);
        if !self.enabled {
            let own = self.this_machine.settings().nameservers;
            return own.contains(&address).then_some(Side::Local);
        }
        if self.is_nameserver(address) {
            return Some(Side::Remote);
        }
        self.look_again();
        None
    }

    /// Whether the resolver answers for this address.
    pub(crate) fn answers_for(&self, address: SocketAddr) -> bool {
        self.enabled && address.port() == PORT && self.is_nameserver(comparable(address))
    }

    fn is_nameserver(&self, address: SocketAddr) -> bool {
        let known = self.nameservers.read();
        known.is_ok_and(|known| {
            known.target.contains(&address) || known.this_machine.contains(&address)
        })
    }

    /// Answers a socket of the application, as long as that has it. Takes as long as connecting it to us.
    pub(crate) fn serve(&self, outgoing: Outgoing) {
        let resolver = Arc::clone(&self.resolver);
        let transport = outgoing.transport();
        let establish = move || {
            let established = outgoing.establish(Names::default());
            established.inspect_err(|errno| {
                tracing::debug!(%errno, "a socket for names could not be connected to us");
            })
        };
        let serve = async move |established| {
            if let Ok(connection) = established
                && let Err(error) = service::serve(resolver, transport, connection).await
            {
                tracing::debug!(%error, "a socket for names ended");
            }
        };
        // A stream is asked for on a thread that must not be held up, a datagram socket on one that waits for it.
        let runtime = &self.agent.runtime;
        if transport == Transport::Udp {
            runtime.spawn(serve(establish()));
        } else {
            runtime.spawn(async move { serve(establish()).await });
        }
    }

    /// Decides with the names that lead to an address.
    pub(crate) fn with_names<T>(&self, address: IpAddr, decide: impl FnOnce(&[&str]) -> T) -> T {
        decide(&lock(&self.names).of(address))
    }

    /// A packet went to a nameserver that we do not know: the target's settings may have changed.
    fn look_again(self: &Arc<Self>) {
        let is_due = |read: Instant| read.elapsed() > SETTINGS_PAUSE;
        let due = self.nameservers.write().is_ok_and(|mut known| {
            let due = is_due(known.read);
            if due {
                known.read = Instant::now();
            }
            due
        });
        if due {
            let this = Arc::clone(self);
            let runtime = &self.agent.runtime;
            runtime.spawn(async move { this.read_settings().await });
        }
    }

    async fn read_settings(&self) {
        if !self.enabled {
            return;
        }
        let settings = self.agent.dns().settings(DnsSettingsRequest {}).await;
        let settings = match settings {
            Ok(settings) => settings.into_inner(),
            Err(status) => {
                tracing::warn!(%status, "the target's resolv.conf cannot be read");
                return;
            }
        };
        lock(&self.names).set_search(&settings.search);
        let target = settings.nameservers.iter();
        let target = target.filter_map(|text| text.parse().ok().map(comparable));
        let own = self.this_machine.settings().nameservers;
        if let Ok(mut known) = self.nameservers.write() {
            known.target = target.collect();
            known.this_machine = own.into_iter().map(comparable).collect();
        }
    }

    /// Learns the hosts file and the names that filters mention. An application may know an address from elsewhere.
    async fn learn_names(&self) {
        let Some(mentioned) = &self.mentioned else {
            return;
        };
        tokio::join!(self.learn_hosts(), async {
            let mut lookups = tokio::task::JoinSet::new();
            for name in mentioned {
                let (agent, name) = (self.agent.clone(), name.clone());
                let side = self.rules.choose(&name, None);
                lookups.spawn(async move {
                    match side {
                        Side::Remote => look_up_at_target(&agent, name).await,
                        Side::Local => look_up_here(name).await,
                    }
                });
            }
            while let Some(found) = lookups.join_next().await {
                let mut names = lock(&self.names);
                for resolved in found.unwrap_or_default() {
                    names.learn(&resolved);
                }
            }
        });
    }

    async fn learn_hosts(&self) {
        let text = match self.enabled {
            true => read_hosts_at_target(&self.agent).await,
            false => tokio::fs::read(&self.this_machine.hosts).await.ok(),
        };
        let Some(text) = text else { return };
        let mut hosts: HashMap<IpAddr, Vec<String>> = HashMap::new();
        for line in hosts_lines(&text) {
            let names = line.names.iter().map(|name| name.to_ascii_lowercase());
            hosts
                .entry(line.address.to_canonical())
                .or_default()
                .extend(names);
        }
        lock(&self.names).set_hosts(hosts);
    }
}

/// An address as far as it tells nameservers apart.
fn comparable(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

async fn look_up_at_target(agent: &Agent, name: String) -> Vec<Resolved> {
    let request = LookupRequest {
        name: name.clone(),
        family: rpc::Family::Any.into(),
    };
    let Ok(answer) = agent.dns().lookup(request).await else {
        return Vec::new();
    };
    let answer = answer.into_inner();
    if answer.outcome() != Outcome::Found {
        tracing::info!(name, outcome = ?answer.outcome(), "a filter mentions a name that the target cannot resolve");
    }
    let addresses = answer.addresses.iter();
    let addresses = addresses.filter_map(|found| address(&found.address));
    let names = vec![name, answer.canonical_name.to_ascii_lowercase()];
    addresses
        .map(|address| Resolved {
            address,
            names: names.clone(),
        })
        .collect()
}

async fn look_up_here(name: String) -> Vec<Resolved> {
    let found = tokio::net::lookup_host((name.as_str(), 0)).await;
    let addresses = found.into_iter().flatten();
    addresses
        .map(|address| Resolved {
            address: address.ip(),
            names: vec![name.clone()],
        })
        .collect()
}

async fn read_hosts_at_target(agent: &Agent) -> Option<Vec<u8>> {
    let request = rpc::OpenRequest {
        path: Bytes::from_static(b"/etc/hosts"),
        first_bytes: FIRST_BYTES,
        forget_when_whole: true,
        ..rpc::OpenRequest::default()
    };
    let opened = agent.files().open(request).await.ok()?.into_inner();
    if !opened.whole {
        // So large a file is a list of blocked names, and they lead nowhere.
        let handles = vec![opened.handle];
        let _ = agent.files().close(rpc::CloseRequest { handles }).await;
    }
    Some(opened.first_bytes.to_vec())
}

/// The target's nameservers, through the agent.
#[derive(Debug)]
struct Target(Agent);

impl Upstream for Target {
    fn exchange(&self, query: Bytes) -> Exchange<'_> {
        Box::pin(async move {
            let answer = self.0.dns().exchange(ExchangeRequest { query }).await;
            let answer = match answer {
                Ok(answer) => answer.into_inner(),
                Err(status) => {
                    tracing::debug!(%status, "no nameserver of the target answered");
                    return None;
                }
            };
            self.0.routes.learn(&answer.reach);
            Some(answer.answer)
        })
    }
}
