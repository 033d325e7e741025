//! `feature.network`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::list::ListItem;
use super::{IncomingSettings, List, RegexText, short_forms};
use crate::address::AddressPattern;

/// Connections and DNS
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = short_forms::network)]
pub struct NetworkSettings {
    /// Incoming traffic of the target, for ports on which the process listens.
    ///
    /// Text is short for `{"mode": …}`; `true` is `mirror` and `false` is `off`. See `docs/incoming.md`.
    pub incoming: IncomingSettings,

    /// Connections that the process opens.
    ///
    /// `true` and `"remote"` are short for `tcp` and `udp` from the target, `false` and `"local"` for neither.
    pub outgoing: OutgoingSettings,

    /// DNS names that the process resolves.
    ///
    /// `true` and `false` are short for `{"enabled": …}`.
    pub dns: DnsSettings,
}

/// Connections that the process opens
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = short_forms::outgoing)]
pub struct OutgoingSettings {
    /// Whether TCP connections leave from the target.
    pub tcp: bool,

    /// Whether UDP packets leave from the target.
    pub udp: bool,

    /// Unix sockets at the target, as regular expressions that match their absolute paths. All others are local.
    #[schemars(extend("examples" = [["^/run/shop/"]]))]
    pub unix_streams: List<RegexText>,

    /// Which connections leave from the target, if not all.
    ///
    /// With `remote`, only the listed connections do; with `local`, all others do. An entry is
    /// `[protocol://][name|address|subnet][:port]`. In a DNS name, `*` matches any characters, and `?` one. It matches
    /// connections to addresses that such a name was resolved to. See `docs/network.md`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        schema_with = "AddressFilter::json_schema",
        extend("examples" = [{"local": ["tcp://10.0.0.0/8:5432", "api.example.com:443", ":53"]}])
    )]
    pub filter: Option<AddressFilter>,

    /// Whether connections to localhost stay on this machine. Otherwise they go to the target's localhost, except to ports
    /// on which the process itself listens.
    pub ignore_localhost: bool,
}

/// DNS names that the process resolves
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = short_forms::dns)]
pub struct DnsSettings {
    /// Whether DNS names are resolved at the target. `/etc/resolv.conf` and `/etc/hosts` are then the target's, and
    /// otherwise this machine's.
    pub enabled: bool,

    /// Which DNS names are resolved at the target, if not all.
    ///
    /// With `remote`, only the listed names are; with `local`, all others are. An entry is `[name][:port]`; `*` matches any
    /// characters, and `?` one. A DNS query has no port, so entries with a port never match.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        schema_with = "AddressFilter::json_schema",
        extend("examples" = [{"remote": ["*.svc.cluster.local"]}])
    )]
    pub filter: Option<AddressFilter>,
}

/// Which addresses are at the target: only those listed, or all except those listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressFilter {
    Remote(List<AddressPattern>),
    Local(List<AddressPattern>),
}

impl Default for OutgoingSettings {
    fn default() -> Self {
        Self {
            tcp: true,
            udp: true,
            unix_streams: List::default(),
            filter: None,
            ignore_localhost: false,
        }
    }
}

impl Default for DnsSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            filter: None,
        }
    }
}

impl JsonSchema for AddressFilter {
    fn schema_name() -> Cow<'static, str> {
        "AddressFilter".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let described = |mut list: Schema, description: &str| {
            list.insert("description".to_owned(), description.into());
            list
        };
        let list = generator.subschema_for::<List<AddressPattern>>();
        let remote = described(list.clone(), "Only these are at the target.");
        let local = described(list, "These are local, all others are at the target.");
        json_schema!({
            "type": "object",
            "properties": { "remote": remote, "local": local },
            "additionalProperties": false,
            "maxProperties": 1,
            "x-expand": "filter",
            "x-replace": true,
        })
    }
}

impl JsonSchema for AddressPattern {
    fn schema_name() -> Cow<'static, str> {
        "AddressPattern".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "x-check": "address" })
    }
}

impl ListItem for AddressPattern {
    const EXPAND: &str = "separated";
}
