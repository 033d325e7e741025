//! The configuration: what administrators write in the chart's values. It is a file that is mounted from a ConfigMap, and a
//! change takes effect without a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use authority::rotation::{Durations, Policy};
use error_chain::error_chain;
use jiff::SignedDuration;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::sleep;
use tunnel::{AcceptorSettings, Limits};

use crate::authenticate::OidcSettings;
use crate::error::{Error, Result};
use crate::proxy::ProxySettings;

/// The kubelet takes up to a minute to update a mounted file anyway.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The common name of a certificate has at most 64 characters, and the label of an object 63.
const MAX_NAME_LENGTH: usize = 63;
/// The only backend. The others reach a cluster with credentials for it, which a hub does not have.
const BACKEND: &str = "agent";

/// The validated configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Configuration {
    /// The clusters that may dial in, besides those that are registered at run time.
    pub(crate) clusters: Vec<ClusterEntry>,
    pub(crate) agent: AgentConfiguration,
    /// How users prove who they are. A change takes effect when a replica starts.
    pub(crate) authentication: AuthenticationConfiguration,
    pub(crate) proxy: ProxyConfiguration,
    /// The address for Kubernetes clients, such as `https://hub.example.com:6443`.
    #[serde(rename = "apiURL")]
    pub(crate) api_url: Option<String>,
    /// Further DNS names and IP addresses of the address for Kubernetes clients.
    #[serde(rename = "apiSANs")]
    pub(crate) api_names: Vec<String>,
    /// The addresses of all replicas for each other. Without any, they are those of the headless Service. A change takes
    /// effect when a replica starts.
    pub(crate) peers: Vec<SocketAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ClusterEntry {
    pub(crate) name: String,
    #[serde(default = "default_backend")]
    pub(crate) backend: String,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
}

fn default_backend() -> String {
    BACKEND.to_owned()
}

/// The credentials of users that are accepted, besides tokens of the hub's cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct AuthenticationConfiguration {
    /// The audiences of accepted tokens of the hub's cluster. Without any, those of its API server.
    pub(crate) audiences: Vec<String>,
    pub(crate) oidc: Vec<OidcSettings>,
    /// A file with the authorities of client certificates, in PEM.
    #[serde(rename = "clientCAFile")]
    pub(crate) client_authorities: Option<PathBuf>,
}

/// Which users may use clusters. A change takes effect when a replica starts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct ProxyConfiguration {
    allow_service_accounts: bool,
    /// The users that are operators of a Primary, such as `system:serviceaccount:NAMESPACE:NAME`.
    primary_operators: Vec<String>,
    response_timeout_secs: u32,
}

impl Default for ProxyConfiguration {
    fn default() -> Self {
        Self {
            allow_service_accounts: true,
            primary_operators: Vec::new(),
            response_timeout_secs: 120,
        }
    }
}

impl ProxyConfiguration {
    pub(crate) fn settings(&self) -> ProxySettings {
        ProxySettings {
            response_timeout: Duration::from_secs(self.response_timeout_secs.into()),
            allow_service_accounts: self.allow_service_accounts,
            primary_operators: self.primary_operators.clone(),
        }
    }
}

/// What agents need, and what they may do.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct AgentConfiguration {
    /// The address for agents, such as `wss://hub.example.com:8443`.
    pub(crate) url: Option<String>,
    /// The address for registrations, if it is not the one for agents.
    #[serde(rename = "registrationURL")]
    pub(crate) registration_url: Option<String>,
    /// The DNS names and IP addresses of the address for agents.
    #[serde(rename = "tunnelSANs")]
    pub(crate) tunnel_names: Vec<String>,
    /// The chart that onboarding instructions name.
    pub(crate) chart: String,
    token_lifetime_secs: u32,
    certificate_lifetime_secs: u32,
    /// Of certificate authorities that the hub generates.
    authority_lifetime_secs: u32,
    /// How long a rotation of the authority waits for agents that are away. Without it, as long as a certificate is valid.
    authority_overlap_secs: Option<u32>,
    /// More than it takes until every replica has read a change of the authority's Secret.
    authority_distribution_secs: u32,
    pub(crate) registrations: RateConfiguration,
    pub(crate) limits: TunnelLimits,
}

/// How many requests a source may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct RateConfiguration {
    pub(crate) per_second: u32,
    pub(crate) burst: u32,
}

/// The limits of each tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct TunnelLimits {
    pub(crate) streams: u32,
    pub(crate) new_streams_per_second: u32,
    #[serde(rename = "bytesInFlight")]
    pub(crate) bytes_in_flight: u64,
    resume_window_secs: u32,
}

impl Default for AgentConfiguration {
    fn default() -> Self {
        Self {
            url: None,
            registration_url: None,
            tunnel_names: Vec::new(),
            chart: "standin/standin-tunnel-agent".to_owned(),
            token_lifetime_secs: 15 * 60,
            certificate_lifetime_secs: 90 * 24 * 3600,
            authority_lifetime_secs: 10 * 365 * 24 * 3600,
            authority_overlap_secs: None,
            authority_distribution_secs: 120,
            registrations: RateConfiguration::default(),
            limits: TunnelLimits::default(),
        }
    }
}

impl Default for RateConfiguration {
    fn default() -> Self {
        Self {
            per_second: 10,
            burst: 50,
        }
    }
}

impl Default for TunnelLimits {
    fn default() -> Self {
        Self {
            streams: 4096,
            new_streams_per_second: 2000,
            bytes_in_flight: 256 * 1024 * 1024,
            resume_window_secs: 30,
        }
    }
}

impl TunnelLimits {
    /// The settings of the hub's end of tunnels.
    pub(crate) fn acceptor(&self) -> AcceptorSettings {
        AcceptorSettings {
            max_resume_window: Duration::from_secs(self.resume_window_secs.into()),
            limits: Limits {
                streams: self.streams,
                new_streams_per_second: self.new_streams_per_second,
                bytes_in_flight: self.bytes_in_flight,
            },
            ..AcceptorSettings::default()
        }
    }
}

impl AgentConfiguration {
    pub(crate) fn token_lifetime(&self) -> SignedDuration {
        SignedDuration::from_secs(self.token_lifetime_secs.into())
    }

    pub(crate) fn certificate_lifetime(&self) -> SignedDuration {
        SignedDuration::from_secs(self.certificate_lifetime_secs.into())
    }

    /// How long authorities and certificates last.
    pub(crate) fn durations(&self) -> Durations {
        let seconds = |seconds: u32| SignedDuration::from_secs(seconds.into());
        Durations {
            authority: seconds(self.authority_lifetime_secs),
            certificate: self.certificate_lifetime(),
            overlap: self.authority_overlap_secs.map(seconds),
            distribution: seconds(self.authority_distribution_secs),
        }
    }
}

impl Configuration {
    /// Parses and validates. The error says which value is wrong and what is accepted.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let read: Self = if text.trim().is_empty() {
            Self::default()
        } else {
            serde_saphyr::from_str(text).map_err(|error| error.to_string().trim().to_owned())?
        };
        read.check_clusters()?;
        read.check_lifetimes()?;
        check_url("agent.url", read.agent.url.as_deref(), &["wss", "https"])?;
        let registration = read.agent.registration_url.as_deref();
        check_url("agent.registrationURL", registration, &["https"])?;
        check_url("apiURL", read.api_url.as_deref(), &["https"])?;
        for (key, names) in [
            ("agent.tunnelSANs", &read.agent.tunnel_names),
            ("apiSANs", &read.api_names),
        ] {
            for name in names {
                check_host(name).map_err(|why| format!("{key}: `{name}` {why}"))?;
            }
        }
        Ok(read)
    }

    /// Reads the file.
    pub(crate) async fn read(path: &Path) -> Result<Self> {
        let text = tokio::fs::read_to_string(path)
            .await
            .map_err(|source| Error::File {
                path: path.to_owned(),
                source,
            })?;
        Self::parse(&text).map_err(|reason| Error::Configuration {
            path: path.to_owned(),
            reason,
        })
    }

    /// The names in the hub's own certificate, beyond those of its Service.
    pub(crate) fn server_names(&self) -> Vec<String> {
        let agent_host = self.agent.url.as_deref().and_then(host);
        let api_host = self.api_url.as_deref().and_then(host);
        let hosts = agent_host.into_iter().chain(api_host).map(str::to_owned);
        let mut names: Vec<String> = Vec::new();
        let listed = self.agent.tunnel_names.iter().chain(&self.api_names);
        for name in listed.cloned().chain(hosts) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn check_clusters(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        for cluster in &self.clusters {
            let name = &cluster.name;
            check_cluster_name(name).map_err(|why| format!("clusters: `{name}` {why}"))?;
            if !names.insert(name) {
                return Err(format!("clusters: `{name}` is listed twice"));
            }
            if cluster.backend != BACKEND {
                return Err(format!(
                    "clusters: `{name}` has the backend `{}`; the hub has only the backend `{BACKEND}`, with which the cluster \
                     dials in",
                    cluster.backend
                ));
            }
        }
        Ok(())
    }

    fn check_lifetimes(&self) -> Result<(), String> {
        let agent = &self.agent;
        for (key, value, min, max) in [
            (
                "tokenLifetimeSecs",
                agent.token_lifetime_secs,
                30,
                24 * 3600,
            ),
            (
                "certificateLifetimeSecs",
                agent.certificate_lifetime_secs,
                30,
                5 * 366 * 24 * 3600,
            ),
            (
                "authorityLifetimeSecs",
                agent.authority_lifetime_secs,
                60,
                30 * 366 * 24 * 3600,
            ),
            (
                "registrations.perSecond",
                agent.registrations.per_second,
                1,
                100_000,
            ),
            (
                "registrations.burst",
                agent.registrations.burst,
                1,
                1_000_000,
            ),
            ("limits.streams", agent.limits.streams, 1, 100_000),
            (
                "limits.newStreamsPerSecond",
                agent.limits.new_streams_per_second,
                1,
                1_000_000,
            ),
            (
                "limits.resumeWindowSecs",
                agent.limits.resume_window_secs,
                0,
                3600,
            ),
        ] {
            if !(min..=max).contains(&value) {
                return Err(format!("agent.{key}: {value} is not from {min} to {max}"));
            }
        }
        Policy::new("", agent.durations()).map(drop).map_err(|_| {
            "agent.authorityLifetimeSecs: an authority must live at least twice as long as a certificate and the overlap \
             together"
                .to_owned()
        })
    }
}

/// Whether a text can be a cluster's name: it is the name of an object, and the common name of certificates.
pub(crate) fn check_cluster_name(name: &str) -> Result<(), &'static str> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_valid = (1..=MAX_NAME_LENGTH).contains(&name.len())
        && name.bytes().all(is_inner)
        && !name.starts_with('-')
        && !name.ends_with('-');
    is_valid.then_some(()).ok_or(
        "is no name of a cluster; use at most 63 lower-case letters, digits and hyphens, and a letter or digit at both ends",
    )
}

fn check_url(key: &str, url: Option<&str>, schemes: &[&str]) -> Result<(), String> {
    let Some(url) = url else { return Ok(()) };
    let parsed: Option<http::Uri> = url.parse().ok();
    let is_valid = parsed.is_some_and(|parsed| {
        let is_bare = parsed.path_and_query().is_none_or(|path| path == "/");
        is_bare
            && parsed.host().is_some_and(|host| !host.is_empty())
            && parsed.scheme_str().is_some_and(|it| schemes.contains(&it))
    });
    let example = schemes.first().copied().unwrap_or_default();
    is_valid.then_some(()).ok_or_else(|| {
        format!("{key}: `{url}` is not accepted; use the form `{example}://hub.example.com:8443`, without a path")
    })
}

/// The host of a URL that was checked.
fn host(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.trim_end_matches('/');
    if let Some(address) = authority.strip_prefix('[') {
        return address.split_once(']').map(|(address, _)| address);
    }
    Some(
        authority
            .rsplit_once(':')
            .map_or(authority, |(host, _)| host),
    )
}

fn check_host(name: &str) -> Result<(), &'static str> {
    let is_valid = rustls::pki_types::ServerName::try_from(name.strip_prefix("*.").unwrap_or(name));
    is_valid
        .map(drop)
        .map_err(|_| "is neither a DNS name nor an IP address")
}

/// Reloads the configuration when the file changes. Never returns.
pub(crate) async fn run(path: PathBuf, current: watch::Sender<Configuration>) {
    let mut reported = None;
    loop {
        sleep(POLL_INTERVAL).await;
        match Configuration::read(&path).await {
            Ok(read) => {
                reported = None;
                let has_changed = current.send_if_modified(|current| {
                    let has_changed = *current != read;
                    *current = read;
                    has_changed
                });
                if has_changed {
                    tracing::info!("configuration changed");
                }
            }
            Err(error) => {
                let error = error_chain(&error);
                // Once per reason, not every few seconds.
                if reported.as_ref() != Some(&error) {
                    tracing::warn!(error, "configuration not usable, keeping the previous one");
                    reported = Some(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_configuration_has_the_documented_defaults() {
        let configuration = Configuration::parse("").unwrap();
        assert_eq!(configuration, Configuration::parse("{}").unwrap());
        assert!(configuration.clusters.is_empty());
        let agent = &configuration.agent;
        assert_eq!(agent.token_lifetime(), SignedDuration::from_mins(15));
        assert_eq!(
            agent.certificate_lifetime(),
            SignedDuration::from_hours(90 * 24)
        );
        assert_eq!(
            agent.limits.acceptor().max_resume_window,
            Duration::from_secs(30)
        );
    }

    #[test]
    fn a_complete_configuration_is_read() {
        let configuration = Configuration::parse(
            "clusters:\n\
             - name: prod-eu\n  backend: agent\n  labels: {region: eu}\n\
             - name: prod-us\n\
             agent:\n  url: wss://hub.example.com:8443\n  registrationURL: https://console.example.com\n  \
             tunnelSANs: [agents.example.com, 10.0.0.7]\n  tokenLifetimeSecs: 60\n\
             apiURL: https://hub.example.com:6443\n",
        );
        let configuration = configuration.unwrap();
        let names: Vec<&str> = configuration
            .clusters
            .iter()
            .map(|cluster| cluster.name.as_str())
            .collect();
        assert_eq!(names, ["prod-eu", "prod-us"]);
        assert_eq!(configuration.clusters[0].labels["region"], "eu");
        assert_eq!(
            configuration.server_names(),
            ["agents.example.com", "10.0.0.7", "hub.example.com"]
        );
    }

    #[test]
    fn an_error_names_the_value_and_what_is_accepted() {
        for (text, expected) in [
            (
                "clusters: [{name: a, backend: eks}]",
                "backend `eks`; the hub has only",
            ),
            ("clusters: [{name: a, backend: kubeconfig}]", "`kubeconfig`"),
            ("clusters: [{name: a, backend: in-cluster}]", "`in-cluster`"),
            ("clusters: [{name: A}]", "`A` is no name of a cluster"),
            ("clusters: [{name: a.b}]", "`a.b` is no name of a cluster"),
            ("clusters: [{name: -a}]", "`-a` is no name of a cluster"),
            ("clusters: [{name: a}, {name: a}]", "`a` is listed twice"),
            ("cluster: []", "cluster"),
            (
                "agent: {tokenLifetimeSecs: 5}",
                "tokenLifetimeSecs: 5 is not from 30 to 86400",
            ),
            (
                "agent: {url: 'http://hub'}",
                "agent.url: `http://hub` is not accepted",
            ),
            ("agent: {url: 'wss://hub/path'}", "without a path"),
            (
                "agent: {registrationURL: 'wss://hub'}",
                "agent.registrationURL",
            ),
            (
                "agent: {tunnelSANs: ['a b']}",
                "`a b` is neither a DNS name nor an IP address",
            ),
            (
                "agent: {authorityLifetimeSecs: 60, certificateLifetimeSecs: 90}",
                "must live at least twice as long",
            ),
        ] {
            let error = Configuration::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn hosts_of_urls() {
        for (url, expected) in [
            ("wss://hub.example.com:8443", "hub.example.com"),
            ("https://hub.example.com/", "hub.example.com"),
            ("https://[2001:db8::1]:6443", "2001:db8::1"),
            ("wss://10.0.0.1:8443", "10.0.0.1"),
        ] {
            assert_eq!(host(url), Some(expected), "{url}");
        }
    }
}
