//! Decides which listeners of the process get incoming traffic of the target, and which traffic.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use crate::settings::{
    HttpFilterItem, HttpFilterSettings, IncomingMode, IncomingSettings, List, PatternText, Port,
    PortPair,
};

/// Compiled once for a session.
#[derive(Debug, Clone)]
pub struct IncomingRules {
    mode: IncomingMode,
    mapping: List<PortPair>,
    listen: List<PortPair>,
    only: Option<HashSet<u16>>,
    ignored: HashSet<u16>,
    ignore_localhost: bool,
    filter: Option<HttpFilter>,
    filter_ports: Option<HashSet<u16>>,
}

/// Which requests the session gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpFilter {
    Header(String),
    Path(String),
    Method(String),
    Body { query: String, matches: String },
    AllOf(Vec<HttpFilter>),
    AnyOf(Vec<HttpFilter>),
}

impl IncomingRules {
    pub fn new(settings: &IncomingSettings) -> Self {
        let numbers = |ports: &List<Port>| ports.iter().map(|port| port.0).collect();
        Self {
            mode: settings.mode,
            mapping: settings.port_mapping.clone(),
            listen: settings.listen_ports.clone(),
            only: settings.ports.as_ref().map(numbers),
            ignored: numbers(&settings.ignore_ports),
            ignore_localhost: settings.ignore_localhost,
            filter: HttpFilter::of(&settings.http_filter),
            filter_ports: settings.http_filter.ports.as_ref().map(numbers),
        }
    }

    pub fn mode(&self) -> IncomingMode {
        self.mode
    }

    /// The port of the target whose traffic a listener of the process gets, if any.
    pub fn choose(&self, address: SocketAddr) -> Option<u16> {
        let port = address.port();
        let stays_local = self.mode == IncomingMode::Off
            || self.ignore_localhost && is_localhost(address.ip())
            || self.only.as_ref().is_some_and(|only| !only.contains(&port))
            || self.ignored.contains(&port);
        if stays_local {
            return None;
        }
        let mapped = self.mapping.iter().find(|pair| pair.0.0 == port);
        if let Some(PortPair(_, remote)) = mapped {
            return Some(remote.0);
        }
        // The traffic of the target's port with this number goes to the listener that it is mapped to.
        let is_taken = self.mapping.iter().any(|pair| pair.1.0 == port);
        (!is_taken).then_some(port)
    }

    /// The port of this machine on which the process listens instead of the requested one, if it differs.
    pub fn listen_port(&self, asked: u16) -> Option<u16> {
        let mut pairs = self.listen.iter();
        pairs.find(|pair| pair.0.0 == asked).map(|pair| pair.1.0)
    }

    /// The filter of a port, or `None` if it gets all traffic. The filter's list of ports may contain either port number.
    pub fn filter(&self, local: u16, remote: u16) -> Option<&HttpFilter> {
        let is_meant = self
            .filter_ports
            .as_ref()
            .is_none_or(|ports| ports.contains(&local) || ports.contains(&remote));
        self.filter.as_ref().filter(|_| is_meant)
    }
}

impl IncomingRules {
    /// Whether the settings contain this port, at either end.
    pub fn names(&self, local: u16, remote: u16) -> bool {
        let has = |ports: &Option<HashSet<u16>>, port| {
            ports.as_ref().is_some_and(|ports| ports.contains(&port))
        };
        has(&self.only, local)
            || has(&self.filter_ports, local)
            || has(&self.filter_ports, remote)
            || self.mapping.iter().any(|pair| pair.0.0 == local)
            || self.listen.iter().any(|pair| pair.0.0 == local)
    }
}

impl HttpFilter {
    fn of(settings: &HttpFilterSettings) -> Option<Self> {
        let text = |pattern: &PatternText| pattern.as_str().to_owned();
        let list = |items: &List<HttpFilterItem>| items.iter().filter_map(Self::of_item).collect();
        let HttpFilterSettings {
            header_filter,
            path_filter,
            method_filter,
            body_filter,
            all_of,
            any_of,
            ports: _,
        } = settings;
        let header = header_filter
            .as_ref()
            .map(|header| Self::Header(text(header)));
        header
            .or_else(|| path_filter.as_ref().map(|path| Self::Path(text(path))))
            .or_else(|| method_filter.clone().map(Self::Method))
            .or_else(|| {
                body_filter.as_ref().map(|body| Self::Body {
                    query: body.query.as_str().to_owned(),
                    matches: text(&body.matches),
                })
            })
            .or_else(|| all_of.as_ref().map(|items| Self::AllOf(list(items))))
            .or_else(|| any_of.as_ref().map(|items| Self::AnyOf(list(items))))
    }

    fn of_item(item: &HttpFilterItem) -> Option<Self> {
        let text = |pattern: &PatternText| pattern.as_str().to_owned();
        let header = item
            .header
            .as_ref()
            .map(|header| Self::Header(text(header)));
        header
            .or_else(|| item.path.as_ref().map(|path| Self::Path(text(path))))
            .or_else(|| item.method.clone().map(Self::Method))
            .or_else(|| {
                let (query, matches) = item.query.as_ref().zip(item.matches.as_ref())?;
                Some(Self::Body {
                    query: query.as_str().to_owned(),
                    matches: text(matches),
                })
            })
    }
}

fn is_localhost(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, Layers};

    fn rules(incoming: &str) -> IncomingRules {
        let text = format!("feature: {{network: {{incoming: {incoming}}}}}");
        let resolved = Layers::new()
            .file("test", &text, Format::Yaml)
            .resolve()
            .unwrap();
        IncomingRules::new(&resolved.settings.feature.network.incoming)
    }

    #[test]
    fn a_filter_without_a_value_is_no_filter() {
        for filter in [
            "{body: json, query: $.a}",
            "{body: json, query: $.a, matches: null}",
            "{header: null}",
            "{}",
        ] {
            let text = format!(
                "feature: {{network: {{incoming: {{http_filter: {{any_of: [{filter}]}}}}}}}}"
            );
            let resolved = Layers::new().file("test", &text, Format::Yaml).resolve();
            assert!(resolved.is_err(), "{filter}");
        }
    }

    #[test]
    fn listeners_are_chosen() {
        let listeners = [
            "0.0.0.0:80",
            "[::]:8080",
            "127.0.0.1:9229",
            "[::1]:8081",
            "[::ffff:127.0.0.1]:5005",
        ];
        for (incoming, expected) in [
            ("true", "80 8080 9229 8081 5005"),
            ("mirror", "80 8080 9229 8081 5005"),
            ("steal", "80 8080 9229 8081 5005"),
            ("false", ""),
            ("off", ""),
            ("{ignore_localhost: true}", "80 8080"),
            ("{ignore_ports: [9229, 5005]}", "80 8080 8081"),
            ("{ignore_ports: 80}", "8080 9229 8081 5005"),
            ("{ports: [80]}", "80"),
            ("{ports: '80;8080'}", "80 8080"),
            ("{ports: []}", ""),
            ("{ports: [8081], port_mapping: [[8081, 8080]]}", "8080"),
            ("{port_mapping: [[8081, 8080]]}", "80 9229 8080 5005"),
            ("{port_mapping: '8081:8080;80:81'}", "81 9229 8080 5005"),
            ("{port_mapping: [8081, 1]}", "80 8080 9229 1 5005"),
        ] {
            let rules = rules(incoming);
            let ports = listeners.iter().filter_map(|address| {
                let port = rules.choose(address.parse().unwrap())?;
                Some(port.to_string())
            });
            assert_eq!(ports.collect::<Vec<_>>().join(" "), expected, "{incoming}");
        }
    }

    #[test]
    fn ports_of_this_machine_are_chosen() {
        let rules = rules("{listen_ports: [[80, 8000]], port_mapping: [[80, 8080]]}");
        assert_eq!(rules.listen_port(80), Some(8000));
        assert_eq!(rules.listen_port(8000), None);
        assert_eq!(rules.choose("0.0.0.0:80".parse().unwrap()), Some(8080));
    }

    #[test]
    fn settings_name_ports() {
        for (incoming, local, remote, expected) in [
            ("steal", 80, 80, false),
            ("{http_filter: {header_filter: 'a: b'}}", 80, 80, false),
            ("{ports: [80]}", 80, 80, true),
            ("{ports: [80]}", 81, 81, false),
            ("{port_mapping: [[8081, 8080]]}", 8081, 8080, true),
            ("{port_mapping: [[8081, 8080]]}", 9000, 9000, false),
            ("{listen_ports: [[80, 8000]]}", 80, 80, true),
            ("{listen_ports: [[80, 8000]]}", 8000, 8000, false),
            (
                "{http_filter: {header_filter: 'a: b', ports: [80]}}",
                8081,
                80,
                true,
            ),
            (
                "{http_filter: {header_filter: 'a: b', ports: [80]}}",
                81,
                81,
                false,
            ),
        ] {
            let named = rules(incoming).names(local, remote);
            assert_eq!(named, expected, "{incoming}: {local}, {remote}");
        }
    }

    #[test]
    fn filters_are_for_ports() {
        let header = |text: &str| HttpFilter::Header(text.to_owned());
        for (incoming, local, remote, expected) in [
            ("{}", 80, 80, None),
            ("{http_filter: {}}", 80, 80, None),
            (
                "{http_filter: {header_filter: 'a: b'}}",
                80,
                80,
                Some(header("a: b")),
            ),
            (
                "{http_filter: {header_filter: 'a: b', ports: [81]}}",
                80,
                80,
                None,
            ),
            (
                "{http_filter: {header_filter: 'a: b', ports: 81}}",
                80,
                81,
                Some(header("a: b")),
            ),
            (
                "{http_filter: {all_of: [{header: 'a: b'}, {body: json, query: $.x, matches: y}]}}",
                80,
                80,
                Some(HttpFilter::AllOf(vec![
                    header("a: b"),
                    HttpFilter::Body {
                        query: "$.x".to_owned(),
                        matches: "y".to_owned(),
                    },
                ])),
            ),
            (
                "{http_filter: {any_of: {method: POST}}}",
                80,
                80,
                Some(HttpFilter::AnyOf(vec![HttpFilter::Method(
                    "POST".to_owned(),
                )])),
            ),
        ] {
            let rules = rules(incoming);
            assert_eq!(rules.filter(local, remote), expected.as_ref(), "{incoming}");
        }
    }
}
