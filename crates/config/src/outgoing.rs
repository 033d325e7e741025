//! Decides whether an outgoing connection leaves from this machine or from the target.

use std::net::{IpAddr, SocketAddr};

use regex::bytes::RegexSet;

use crate::address::{AddressPattern, HostPattern, Protocol};
use crate::error::RuleError;
use crate::settings::{AddressFilter, OutgoingSettings, RegexText};
use crate::wildcard::has_wildcards;

/// Where a call is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Local,
    Remote,
}

/// Compiled once for a session.
#[derive(Debug, Clone)]
pub struct OutgoingRules {
    tcp: bool,
    udp: bool,
    ignore_localhost: bool,
    filter: Option<AddressFilter>,
    unix: RegexSet,
}

impl OutgoingRules {
    pub fn new(settings: &OutgoingSettings) -> Result<Self, RuleError> {
        let unix = settings.unix_streams.iter().map(RegexText::as_str);
        let unix = RegexSet::new(unix).map_err(|source| RuleError::TooLarge {
            key: "feature.network.outgoing.unix_streams",
            source,
        })?;
        Ok(Self {
            tcp: settings.tcp,
            udp: settings.udp,
            ignore_localhost: settings.ignore_localhost,
            filter: settings.filter.clone(),
            unix,
        })
    }

    /// Decides about a connection or packet. `names` are the names that the process resolved to this address, if any are
    /// known. That the process's own listeners are reachable on localhost is not decided here.
    pub fn choose(&self, protocol: Protocol, address: SocketAddr, names: &[&str]) -> Side {
        let enabled = match protocol {
            Protocol::Tcp => self.tcp,
            Protocol::Udp => self.udp,
        };
        if !enabled || self.ignore_localhost && is_this_machine(address.ip()) {
            return Side::Local;
        }
        choose_by_filter(self.filter.as_ref(), |pattern| {
            pattern.matches(protocol, address, names)
        })
    }

    /// The setting that decides about a connection or packet, by its key in the documentation.
    pub fn rule(&self, protocol: Protocol, address: SocketAddr) -> &'static str {
        match (protocol, &self.filter) {
            (Protocol::Tcp, _) if !self.tcp => "feature.network.outgoing.tcp",
            (Protocol::Udp, _) if !self.udp => "feature.network.outgoing.udp",
            _ if self.ignore_localhost && is_this_machine(address.ip()) => {
                "feature.network.outgoing.ignore_localhost"
            }
            (_, Some(AddressFilter::Remote(_))) => "feature.network.outgoing.filter.remote",
            (_, Some(AddressFilter::Local(_))) => "feature.network.outgoing.filter.local",
            (_, None) => "feature.network.outgoing",
        }
    }

    /// The names without wildcards in the filter. `None` if the filter has no names at all.
    pub fn names(&self) -> Option<Vec<String>> {
        let (AddressFilter::Remote(patterns) | AddressFilter::Local(patterns)) =
            self.filter.as_ref()?;
        let names: Vec<&String> = patterns
            .iter()
            .filter_map(|pattern| match &pattern.host {
                Some(HostPattern::Name(name)) => Some(name),
                _ => None,
            })
            .collect();
        let exact = names.iter().filter(|name| !has_wildcards(name));
        (!names.is_empty()).then(|| exact.copied().cloned().collect())
    }

    /// Decides about a Unix socket by its path, or by its name without the leading zero byte if it is abstract.
    pub fn choose_unix(&self, path: &[u8]) -> Side {
        if self.unix.is_match(path) {
            Side::Remote
        } else {
            Side::Local
        }
    }
}

/// With a list of remote destinations, all others are local, and vice versa.
pub(crate) fn choose_by_filter(
    filter: Option<&AddressFilter>,
    matches: impl Fn(&AddressPattern) -> bool,
) -> Side {
    let remote = match filter {
        None => true,
        Some(AddressFilter::Remote(patterns)) => patterns.iter().any(matches),
        Some(AddressFilter::Local(patterns)) => !patterns.iter().any(matches),
    };
    if remote { Side::Remote } else { Side::Local }
}

/// Connecting to the unspecified address is connecting to localhost.
fn is_this_machine(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || address.is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, Layers};

    fn rules(outgoing: &str) -> OutgoingRules {
        let text = format!("feature: {{network: {{outgoing: {outgoing}}}}}");
        let resolved = Layers::new()
            .file("test", &text, Format::Yaml)
            .resolve()
            .unwrap();
        OutgoingRules::new(&resolved.settings.feature.network.outgoing).unwrap()
    }

    /// The connections, from a fixed set, that stay on this machine.
    fn local(outgoing: &str) -> String {
        let rules = rules(outgoing);
        let connections: &[(&str, Protocol, &str, &[&str])] = &[
            ("db", Protocol::Tcp, "10.1.2.3:5432", &["db.shop.svc"]),
            (
                "api",
                Protocol::Tcp,
                "93.184.216.34:443",
                &["API.example.com."],
            ),
            (
                "api6",
                Protocol::Tcp,
                "[2001:db8::1]:443",
                &["api.example.com"],
            ),
            ("dns", Protocol::Udp, "10.96.0.10:53", &[]),
            ("self", Protocol::Tcp, "127.0.0.1:8080", &["localhost"]),
            ("self6", Protocol::Tcp, "[::1]:8080", &[]),
            ("any", Protocol::Tcp, "0.0.0.0:8080", &[]),
        ];
        let local: Vec<&str> = connections
            .iter()
            .filter(|(_, protocol, address, names)| {
                rules.choose(*protocol, address.parse().unwrap(), names) == Side::Local
            })
            .map(|(name, ..)| *name)
            .collect();
        local.join(" ")
    }

    #[test]
    fn connections_are_chosen() {
        for (outgoing, expected) in [
            ("true", ""),
            ("remote", ""),
            ("false", "db api api6 dns self self6 any"),
            ("local", "db api api6 dns self self6 any"),
            ("{tcp: false}", "db api api6 self self6 any"),
            ("{udp: false}", "dns"),
            ("{ignore_localhost: true}", "self self6 any"),
            ("{filter: {}}", ""),
            ("{filter: {local: []}}", ""),
            ("{filter: {remote: []}}", "db api api6 dns self self6 any"),
            ("{filter: {local: 'tcp://10.0.0.0/8:5432'}}", "db"),
            (
                "{filter: {local: ['tcp://10.0.0.0/8', ':443']}}",
                "db api api6",
            ),
            (
                "{filter: {local: 'udp://:53;api.example.com:443'}}",
                "api api6 dns",
            ),
            ("{filter: {local: ['api.example.com:80']}}", ""),
            (
                "{filter: {remote: ['*.shop.svc', '[2001:db8::/32]:443']}}",
                "api dns self self6 any",
            ),
            ("{filter: {local: [localhost]}}", "self self6"),
            (
                "{filter: {remote: [':443']}, ignore_localhost: true}",
                "db dns self self6 any",
            ),
        ] {
            assert_eq!(local(outgoing), expected, "{outgoing}");
        }
    }

    #[test]
    fn the_deciding_rule_is_named() {
        for (outgoing, address, expected) in [
            ("true", "10.0.0.1:80", ""),
            ("false", "10.0.0.1:80", ".tcp"),
            ("{tcp: false}", "10.0.0.1:80", ".tcp"),
            (
                "{ignore_localhost: true}",
                "127.0.0.1:80",
                ".ignore_localhost",
            ),
            ("{ignore_localhost: true}", "10.0.0.1:80", ""),
            (
                "{filter: {local: ['10.0.0.0/8']}}",
                "8.8.8.8:80",
                ".filter.local",
            ),
            ("{filter: {remote: [db]}}", "8.8.8.8:80", ".filter.remote"),
        ] {
            let rule = rules(outgoing).rule(Protocol::Tcp, address.parse().unwrap());
            let rule = rule.strip_prefix("feature.network.outgoing");
            assert_eq!(rule, Some(expected), "{outgoing}");
        }
    }

    #[test]
    fn names_of_the_filter_are_listed() {
        for (outgoing, expected) in [
            ("true", None),
            ("{filter: {local: ['10.0.0.0/8', ':53']}}", None),
            ("{filter: {local: ['*.shop']}}", Some(vec![])),
            (
                "{filter: {remote: ['*.shop', 'db:5432', 'tcp://API.example.com', ':53']}}",
                Some(vec!["db".to_owned(), "api.example.com".to_owned()]),
            ),
        ] {
            assert_eq!(rules(outgoing).names(), expected, "{outgoing}");
        }
    }

    #[test]
    fn unix_sockets_are_chosen() {
        for (outgoing, path, expected) in [
            ("true", "/run/shop.sock", Side::Local),
            (
                "{unix_streams: '^/run/shop'}",
                "/run/shop.sock",
                Side::Remote,
            ),
            (
                "{unix_streams: ['^/run/shop', 'x$']}",
                "/tmp/x",
                Side::Remote,
            ),
            (
                "{unix_streams: ['^/run/shop']}",
                "/var/run/shop.sock",
                Side::Local,
            ),
        ] {
            assert_eq!(
                rules(outgoing).choose_unix(path.as_bytes()),
                expected,
                "{outgoing} {path}"
            );
        }
    }
}
