//! DNS, as the target resolves it.
//!
//! The application reads the target's `resolv.conf` and hosts file as files, and sends its queries to the nameservers
//! that it finds there. The queries never leave this machine as packets: the resolver answers them, from its cache or with
//! one call to the agent, which queries the nameserver from the target's network. So a nameserver may be `127.0.0.11` or
//! `127.0.0.53`: that is an address of the target.
//!
//! The resolved addresses are stored with their DNS names, because filters for connections can contain names.
//!
//! | module | what it does |
//! |---|---|
//! | [`service`] | the application's sockets to a nameserver |
//! | [`resolver`] | answers queries from the cache or an upstream |
//! | [`local`] | the upstream with this machine's nameservers |
//! | [`response`], [`cache`] | DNS responses, and their cache |
//! | [`name_map`] | the DNS names of addresses |

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use config::{DnsRules, Side};
use interceptor::{PendingConnection, SocketAddresses, Transport};
use parking_lot::{Mutex, RwLock};
use protocol::dns::hosts_entries;
use protocol::files::MAX_FIRST_BYTES;
use protocol::rpc::{self, DnsSettingsRequest, ExchangeRequest, LookupRequest, Outcome};
use tokio::time::{Instant, sleep, timeout};

mod cache;
mod local;
mod name_map;
mod resolver;
mod response;
mod service;

use self::local::LocalResolver;
use self::name_map::NameMap;
use self::resolver::{Exchange, Resolver, Upstream};
use self::response::ResolvedAddress;
use crate::agent::{SessionContext, decode_ip};

const DNS_PORT: u16 = 53;
/// How often the names in filters are resolved again, and the target's settings are read again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);
/// How long the start of a session waits for the names in filters.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(3);
/// The minimum interval between reads of the settings that are caused by packets to unknown nameservers.
const MIN_SETTINGS_INTERVAL: Duration = Duration::from_secs(2);

/// Files that configure DNS. If DNS is remote, they are read from the target.
const CONFIG_FILES: &[&str] = &["/etc/resolv.conf", "/etc/hosts"];

/// Sockets of local services that resolve names: nscd, systemd-resolved and Avahi. They are hidden from a program with
/// remote DNS, which then queries a nameserver.
const SERVICE_SOCKETS: &[&str] = &[
    "/run/nscd/socket",
    "/var/run/nscd/socket",
    "/run/systemd/resolve/io.systemd.Resolve",
    "/run/systemd/resolve/io.systemd.Resolve.Monitor",
    "/run/avahi-daemon/socket",
    "/var/run/avahi-daemon/socket",
];

/// The DNS of a session.
#[derive(Debug)]
pub(crate) struct Dns {
    context: SessionContext,
    rules: DnsRules,
    enabled: bool,
    resolver: Arc<Resolver>,
    names: Arc<Mutex<NameMap>>,
    /// Names without wildcards in the filters for connections. `None` if the filters contain no names.
    filter_names: Option<Vec<String>>,
    local: Arc<LocalResolver>,
    nameservers: RwLock<Nameservers>,
}

/// The nameservers of the target's `resolv.conf` and of this machine's.
#[derive(Debug)]
struct Nameservers {
    target: HashSet<SocketAddr>,
    local: HashSet<SocketAddr>,
    /// When the last read of the target's settings began.
    read_at: Instant,
}

impl Dns {
    /// `filter_names` are the names in the filters for connections; `None` if there are none.
    pub(crate) fn new(
        context: SessionContext,
        rules: DnsRules,
        filter_names: Option<Vec<String>>,
    ) -> Arc<Self> {
        let local = Arc::new(LocalResolver::default());
        let names = Arc::new(Mutex::new(NameMap::default()));
        let resolver = Resolver::new(
            rules.clone(),
            Arc::new(TargetUpstream(context.clone())),
            Arc::clone(&local) as _,
            Arc::clone(&names),
            context.monitor.clone(),
        );
        Arc::new(Self {
            context,
            enabled: rules.is_enabled(),
            rules,
            resolver: Arc::new(resolver),
            names,
            filter_names,
            nameservers: RwLock::new(Nameservers {
                target: HashSet::new(),
                local: HashSet::new(),
                read_at: Instant::now(),
            }),
            local,
        })
    }

    /// Loads the settings and names that are needed before the application starts, and refreshes them during the session.
    pub(crate) async fn start(self: &Arc<Self>) {
        let load = async { tokio::join!(self.read_settings(), self.refresh_names()) };
        if timeout(STARTUP_TIMEOUT, load).await.is_err() {
            tracing::warn!("target nameservers timed out, filters by name incomplete");
        }
        let this = Arc::downgrade(self);
        self.context.runtime.spawn(async move {
            loop {
                sleep(REFRESH_INTERVAL).await;
                let Some(this) = this.upgrade() else { return };
                tokio::join!(this.read_settings(), this.refresh_names());
            }
        });
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Whether a file configures DNS, so that it is read from the side that resolves names.
    pub(crate) fn is_config_file(path: &Path) -> bool {
        CONFIG_FILES.iter().any(|file| path == Path::new(file))
    }

    /// Whether a Unix socket belongs to a local name service that the application must not use.
    pub(crate) fn hides_socket(&self, path: &Path) -> bool {
        self.enabled
            && SERVICE_SOCKETS
                .iter()
                .any(|service| path == Path::new(service))
    }

    /// Where packets to a nameserver go: to the resolver, or if DNS is local, to this machine's own nameservers. `None` if
    /// the address is no nameserver. Fast: it never waits for the agent.
    pub(crate) fn choose(self: &Arc<Self>, address: SocketAddr) -> Option<Side> {
        if address.port() != DNS_PORT {
            return None;
        }
        let address = canonical(address);
        if !self.enabled {
            let own = self.local.settings().nameservers;
            return own.contains(&address).then_some(Side::Local);
        }
        if self.is_nameserver(address) {
            return Some(Side::Remote);
        }
        self.refresh_settings_if_due();
        None
    }

    /// Whether the resolver serves this address.
    pub(crate) fn is_resolver_address(&self, address: SocketAddr) -> bool {
        self.enabled && address.port() == DNS_PORT && self.is_nameserver(canonical(address))
    }

    fn is_nameserver(&self, address: SocketAddr) -> bool {
        let nameservers = self.nameservers.read();
        nameservers.target.contains(&address) || nameservers.local.contains(&address)
    }

    /// Serves a socket of the application until it is closed. Returns at once for a stream; blocks until the socket is
    /// connected to the proxy for a datagram socket.
    pub(crate) fn serve(&self, outgoing: PendingConnection) {
        let resolver = Arc::clone(&self.resolver);
        let transport = outgoing.transport();
        let establish = move || {
            let established = outgoing.establish(SocketAddresses::default());
            established.inspect_err(|errno| {
                tracing::debug!(%errno, "connecting a dns socket failed");
            })
        };
        let serve = async move |established| {
            if let Ok(connection) = established
                && let Err(error) = service::serve(resolver, transport, connection).await
            {
                tracing::debug!(%error, "dns socket failed");
            }
        };
        // For a stream, the caller is a thread that must not block. For a datagram socket, the caller waits for the
        // connection.
        let runtime = &self.context.runtime;
        if transport == Transport::Udp {
            runtime.spawn(serve(establish()));
        } else {
            runtime.spawn(async move { serve(establish()).await });
        }
    }

    /// Calls `decide` with the DNS names of an address.
    pub(crate) fn with_names<T>(&self, address: IpAddr, decide: impl FnOnce(&[&str]) -> T) -> T {
        decide(&self.names.lock().names_of(address))
    }

    /// Reads the target's settings again after a packet to an unknown nameserver: they may have changed.
    fn refresh_settings_if_due(self: &Arc<Self>) {
        {
            let mut nameservers = self.nameservers.write();
            if nameservers.read_at.elapsed() <= MIN_SETTINGS_INTERVAL {
                return;
            }
            nameservers.read_at = Instant::now();
        }
        let this = Arc::clone(self);
        let runtime = &self.context.runtime;
        runtime.spawn(async move { this.read_settings().await });
    }

    async fn read_settings(&self) {
        if !self.enabled {
            return;
        }
        let settings = self.context.dns().settings(DnsSettingsRequest {}).await;
        let settings = match settings {
            Ok(settings) => settings.into_inner(),
            Err(status) => {
                tracing::warn!(%status, "DNS settings request failed");
                return;
            }
        };
        self.names.lock().set_search(&settings.search);
        let target = settings.nameservers.iter();
        let target = target.filter_map(|text| text.parse().ok().map(canonical));
        let own = self.local.settings().nameservers;
        let mut nameservers = self.nameservers.write();
        nameservers.target = target.collect();
        nameservers.local = own.into_iter().map(canonical).collect();
    }

    /// Loads the hosts file and resolves the names in filters. An application may connect to an address of such a name
    /// without resolving it.
    async fn refresh_names(&self) {
        let Some(filter_names) = &self.filter_names else {
            return;
        };
        tokio::join!(self.refresh_hosts(), async {
            let mut lookups = tokio::task::JoinSet::new();
            for name in filter_names {
                let (context, name) = (self.context.clone(), name.clone());
                let side = self.rules.choose(&name, None);
                lookups.spawn(async move {
                    match side {
                        Side::Remote => lookup_at_target(&context, name).await,
                        Side::Local => lookup_locally(name).await,
                    }
                });
            }
            while let Some(found) = lookups.join_next().await {
                let mut names = self.names.lock();
                for resolved in found.unwrap_or_default() {
                    names.insert(&resolved);
                }
            }
        });
    }

    async fn refresh_hosts(&self) {
        let text = match self.enabled {
            true => read_hosts_at_target(&self.context).await,
            false => tokio::fs::read(&self.local.hosts).await.ok(),
        };
        let Some(text) = text else { return };
        let mut hosts: HashMap<IpAddr, Vec<String>> = HashMap::new();
        for line in hosts_entries(&text) {
            let names = line.names.iter().map(|name| name.to_ascii_lowercase());
            hosts
                .entry(line.address.to_canonical())
                .or_default()
                .extend(names);
        }
        self.names.lock().set_hosts(hosts);
    }
}

/// The canonical form of an address, for comparisons.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

async fn lookup_at_target(context: &SessionContext, name: String) -> Vec<ResolvedAddress> {
    let request = LookupRequest {
        name: name.clone(),
        family: rpc::Family::Any.into(),
    };
    let Ok(response) = context.dns().lookup(request).await else {
        return Vec::new();
    };
    let response = response.into_inner();
    if response.outcome() != Outcome::Found {
        tracing::info!(name, outcome = ?response.outcome(), "filter name not resolved");
    }
    let addresses = response.addresses.iter();
    let addresses = addresses.filter_map(|found| decode_ip(&found.address));
    let names = vec![name, response.canonical_name.to_ascii_lowercase()];
    addresses
        .map(|address| ResolvedAddress {
            address,
            names: names.clone(),
        })
        .collect()
}

async fn lookup_locally(name: String) -> Vec<ResolvedAddress> {
    let found = tokio::net::lookup_host((name.as_str(), 0)).await;
    let addresses = found.into_iter().flatten();
    addresses
        .map(|address| ResolvedAddress {
            address: address.ip(),
            names: vec![name.clone()],
        })
        .collect()
}

async fn read_hosts_at_target(context: &SessionContext) -> Option<Vec<u8>> {
    let request = rpc::OpenRequest {
        path: Bytes::from_static(b"/etc/hosts"),
        first_bytes: MAX_FIRST_BYTES,
        close_if_whole: true,
        ..rpc::OpenRequest::default()
    };
    let opened = context.files().open(request).await.ok()?.into_inner();
    if !opened.whole {
        // A hosts file of this size is a block list, whose names are never connected to. Its first part is enough.
        let handles = vec![opened.handle];
        let _ = context.files().close(rpc::CloseRequest { handles }).await;
    }
    Some(opened.first_bytes.to_vec())
}

/// The target's nameservers, which are queried through the agent.
#[derive(Debug)]
struct TargetUpstream(SessionContext);

impl Upstream for TargetUpstream {
    fn exchange(&self, query: Bytes) -> Exchange<'_> {
        Box::pin(async move {
            let response = self.0.dns().exchange(ExchangeRequest { query }).await;
            let response = match response {
                Ok(response) => response.into_inner(),
                Err(status) => {
                    tracing::debug!(%status, "dns exchange at the target failed");
                    return None;
                }
            };
            self.0.routes.insert(&response.route_hints);
            Some(response.response)
        })
    }
}
