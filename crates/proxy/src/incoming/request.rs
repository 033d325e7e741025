//! What is asked of the agent for a port.

use std::time::Duration;

use config::{HttpFilter, IncomingMode, IncomingSettings, OnConcurrentSteal, Patience};
use protocol::rpc;
use protocol::rpc::http_filter::Filter;

use super::Key;

/// Whose session it is.
#[derive(Debug, Clone, Default)]
pub struct Holder {
    /// In words, for others who want the same.
    pub name: String,
    /// The same for all sessions of one user on one machine, and for no other. Empty: not known.
    pub owner: String,
}

/// What all ports of a session have in common.
#[derive(Debug, Clone)]
pub(super) struct Wishes {
    mode: rpc::IncomingMode,
    on_conflict: rpc::OnConflict,
    takes_probes: bool,
    flush_connections: bool,
    answer_within_milliseconds: u32,
    /// How long the application may take to accept a connection.
    pub(super) accept_within: Duration,
    holder: Holder,
    tls: Option<rpc::TargetTls>,
}

/// As long as an agent waits for an answer of which nothing is said.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// The agent sees by itself that a request is not answered, and can tell it better.
const LATER: Duration = Duration::from_secs(1);

impl Wishes {
    pub(super) fn new(settings: &IncomingSettings, holder: Holder) -> Self {
        let tls = settings
            .tls
            .certificate
            .as_ref()
            .zip(settings.tls.key.as_ref());
        let answer_within = settings.answer_within.as_ref();
        Self {
            mode: match settings.mode {
                IncomingMode::Steal => rpc::IncomingMode::Steal,
                IncomingMode::Mirror | IncomingMode::Off => rpc::IncomingMode::Mirror,
            },
            on_conflict: match settings.on_concurrent_steal {
                OnConcurrentSteal::Abort => rpc::OnConflict::Abort,
                OnConcurrentSteal::Continue => rpc::OnConflict::Continue,
                OnConcurrentSteal::Override => rpc::OnConflict::Override,
            },
            takes_probes: settings.take_probes,
            flush_connections: settings.flush_connections,
            answer_within_milliseconds: answer_within
                .and_then(|time| u32::try_from(time.duration().as_millis()).ok())
                .unwrap_or(0),
            accept_within: LATER + answer_within.map_or(ANSWER_WITHIN, Patience::duration),
            holder,
            tls: tls.map(|(certificate, key)| rpc::TargetTls {
                certificate_path: certificate.clone().into(),
                key_path: key.clone().into(),
                ..rpc::TargetTls::default()
            }),
        }
    }

    /// With `again`, connections that are open now are ours, or were left alone on purpose.
    pub(super) fn request(
        &self,
        key: Key,
        filter: Option<&HttpFilter>,
        again: bool,
    ) -> rpc::SubscribeRequest {
        let transport = if key.is_udp {
            rpc::IncomingTransport::Udp
        } else {
            rpc::IncomingTransport::Tcp
        };
        rpc::SubscribeRequest {
            port: key.port.into(),
            transport: transport.into(),
            mode: self.mode.into(),
            filter: filter.map(to_protocol),
            on_conflict: self.on_conflict.into(),
            takes_probes: self.takes_probes,
            flush_connections: self.flush_connections && !again,
            answer_within_milliseconds: self.answer_within_milliseconds,
            holder: self.holder.name.clone(),
            tls: self.tls.clone(),
            probe_paths: Vec::new(),
            owner: self.holder.owner.clone(),
            held_for_milliseconds: 0,
        }
    }
}

fn to_protocol(filter: &HttpFilter) -> rpc::HttpFilter {
    let list = |filters: &[HttpFilter]| rpc::HttpFilters {
        filters: filters.iter().map(to_protocol).collect(),
    };
    let filter = match filter {
        HttpFilter::Header(pattern) => Filter::Header(pattern.clone()),
        HttpFilter::Path(pattern) => Filter::Path(pattern.clone()),
        HttpFilter::Method(method) => Filter::Method(method.clone()),
        HttpFilter::Body { query, matches } => Filter::Body(rpc::JsonFilter {
            query: query.clone(),
            matches: matches.clone(),
        }),
        HttpFilter::AllOf(filters) => Filter::AllOf(list(filters)),
        HttpFilter::AnyOf(filters) => Filter::AnyOf(list(filters)),
    };
    rpc::HttpFilter {
        filter: Some(filter),
    }
}

#[cfg(test)]
mod tests {
    use config::{Format, IncomingRules, Layers};

    use super::*;

    #[test]
    fn settings_become_a_request() {
        let text = r#"{"feature": {"network": {"incoming": {
            "mode": "steal",
            "http_filter": {"all_of": [{"header": "a: b"}, {"body": "json", "query": "$.x", "matches": "y"}]},
            "on_concurrent_steal": "continue",
            "flush_connections": true,
            "take_probes": true,
            "answer_within": "3s",
            "tls": {"certificate": "/tls.crt", "key": "/tls.key"}
        }}}}"#;
        let layers = Layers::new().file("test", text, Format::Json);
        let settings = layers.resolve().unwrap().settings.feature.network.incoming;
        let rules = IncomingRules::new(&settings);
        let holder = Holder {
            name: "alice".to_owned(),
            owner: "her machine".to_owned(),
        };
        let wishes = Wishes::new(&settings, holder);
        let key = |is_udp| Key { is_udp, port: 80 };
        let request = wishes.request(key(false), rules.filter(80, 80), false);
        let header = rpc::HttpFilter {
            filter: Some(Filter::Header("a: b".to_owned())),
        };
        let body = rpc::HttpFilter {
            filter: Some(Filter::Body(rpc::JsonFilter {
                query: "$.x".to_owned(),
                matches: "y".to_owned(),
            })),
        };
        let filters = vec![header, body];
        let expected = rpc::SubscribeRequest {
            port: 80,
            transport: rpc::IncomingTransport::Tcp.into(),
            mode: rpc::IncomingMode::Steal.into(),
            filter: Some(rpc::HttpFilter {
                filter: Some(Filter::AllOf(rpc::HttpFilters { filters })),
            }),
            on_conflict: rpc::OnConflict::Continue.into(),
            takes_probes: true,
            flush_connections: true,
            answer_within_milliseconds: 3000,
            holder: "alice".to_owned(),
            tls: Some(rpc::TargetTls {
                certificate_path: "/tls.crt".into(),
                key_path: "/tls.key".into(),
                ..rpc::TargetTls::default()
            }),
            probe_paths: Vec::new(),
            owner: "her machine".to_owned(),
            held_for_milliseconds: 0,
        };
        assert_eq!(request, expected);
        let again = wishes.request(key(false), rules.filter(80, 80), true);
        assert!(!again.flush_connections);
        let datagrams = wishes.request(key(true), None, false);
        assert_eq!(datagrams.transport(), rpc::IncomingTransport::Udp);
    }
}
