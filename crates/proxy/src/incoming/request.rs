//! The subscribe request for a port.

use std::time::Duration;

use config::{HttpFilter, IncomingMode, IncomingSettings, OnConcurrentSteal, Timeout};
use protocol::rpc;
use protocol::rpc::http_filter::Filter;

use super::PortKey;

/// Identifies the user of a session.
#[derive(Debug, Clone, Default)]
pub struct Holder {
    /// A readable name, shown to other users with conflicting claims.
    pub name: String,
    /// The same for all sessions of one user on one machine, and different for all others. Empty: unknown.
    pub owner: String,
}

/// The options that all ports of a session share.
#[derive(Debug, Clone)]
pub(super) struct SubscribeOptions {
    mode: rpc::IncomingMode,
    on_conflict: rpc::OnConflict,
    takes_probes: bool,
    flush_connections: bool,
    response_timeout_milliseconds: u32,
    /// How long the application may take to accept a connection.
    pub(super) accept_timeout: Duration,
    holder: Holder,
    tls: Option<rpc::TargetTls>,
}

/// The timeout that an agent uses if the request has none.
const DEFAULT_RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Added to the accept timeout, so that the agent, which can report the reason better, notices an unanswered request first.
const ACCEPT_TIMEOUT_MARGIN: Duration = Duration::from_secs(1);

impl SubscribeOptions {
    pub(super) fn new(settings: &IncomingSettings, holder: Holder) -> Self {
        let tls = settings
            .tls
            .certificate
            .as_ref()
            .zip(settings.tls.key.as_ref());
        let response_timeout = settings.response_timeout.as_ref();
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
            response_timeout_milliseconds: response_timeout
                .and_then(|time| u32::try_from(time.duration().as_millis()).ok())
                .unwrap_or(0),
            accept_timeout: ACCEPT_TIMEOUT_MARGIN
                + response_timeout.map_or(DEFAULT_RESPONSE_TIMEOUT, Timeout::duration),
            holder,
            tls: tls.map(|(certificate, key)| rpc::TargetTls {
                certificate_path: certificate.clone().into(),
                key_path: key.clone().into(),
                ..rpc::TargetTls::default()
            }),
        }
    }

    /// In a renewed subscription, open connections are not flushed: they belong to this session, or were left alone on
    /// purpose.
    pub(super) fn request(
        &self,
        key: PortKey,
        filter: Option<&HttpFilter>,
        is_renewed: bool,
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
            flush_connections: self.flush_connections && !is_renewed,
            response_timeout_milliseconds: self.response_timeout_milliseconds,
            holder: self.holder.name.clone(),
            tls: self.tls.clone(),
            probe_paths: Vec::new(),
            owner: self.holder.owner.clone(),
            claim_age_milliseconds: 0,
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
            "response_timeout": "3s",
            "tls": {"certificate": "/tls.crt", "key": "/tls.key"}
        }}}}"#;
        let layers = Layers::new().file("test", text, Format::Json);
        let settings = layers.resolve().unwrap().settings.feature.network.incoming;
        let rules = IncomingRules::new(&settings);
        let holder = Holder {
            name: "alice".to_owned(),
            owner: "her machine".to_owned(),
        };
        let options = SubscribeOptions::new(&settings, holder);
        let key = |is_udp| PortKey { is_udp, port: 80 };
        let request = options.request(key(false), rules.filter(80, 80), false);
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
            response_timeout_milliseconds: 3000,
            holder: "alice".to_owned(),
            tls: Some(rpc::TargetTls {
                certificate_path: "/tls.crt".into(),
                key_path: "/tls.key".into(),
                ..rpc::TargetTls::default()
            }),
            probe_paths: Vec::new(),
            owner: "her machine".to_owned(),
            claim_age_milliseconds: 0,
        };
        assert_eq!(request, expected);
        let renewed = options.request(key(false), rules.filter(80, 80), true);
        assert!(!renewed.flush_connections);
        let datagrams = options.request(key(true), None, false);
        assert_eq!(datagrams.transport(), rpc::IncomingTransport::Udp);
    }
}
