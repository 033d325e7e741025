//! `feature.network.incoming`.

mod http_filter;
mod port;
mod texts;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{List, short_forms};

pub use http_filter::{BodyFilter, BodyKind, HttpFilterItem, HttpFilterSettings};
pub use port::{Port, PortPair};
pub use texts::{Patience, PatternText, QueryText};
pub(crate) use texts::{check_method, check_pattern, check_query, check_time};

/// Traffic that arrives at the target, for ports on which the process listens
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = short_forms::incoming)]
pub struct IncomingSettings {
    /// What happens to the target's traffic.
    pub mode: IncomingMode,

    /// Which HTTP requests, if not everything that arrives. All others go to the target's application.
    ///
    /// There is one kind of filter, or a list of several. Patterns are regular expressions that may look around and may
    /// match anywhere; upper and lower case are the same.
    #[schemars(extend("examples" = [{"header_filter": "^x-user: alice$"}, {"all_of": [{"path": "^/orders"}, {"method": "POST"}]}]))]
    pub http_filter: HttpFilterSettings,

    /// Ports of the process that have another number at the target, as pairs `[local, remote]`.
    ///
    /// Text is `local:remote`, with semicolons between several.
    #[schemars(extend("examples" = [[[8081, 8080]], "8081:8080"]))]
    pub port_mapping: List<PortPair>,

    /// Ports of the process for which another one is used on this machine, as pairs `[asked for, used]`.
    ///
    /// The process still sees the one that it asked for. For ports that are taken here, or that only root may use.
    #[schemars(extend("examples" = [[[80, 8080]]]))]
    pub listen_ports: List<PortPair>,

    /// Only these ports of the process get traffic of the target. By default all do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "List::<Port>::json_schema", extend("examples" = [[80, 8080]]))]
    pub ports: Option<List<Port>>,

    /// These ports of the process get no traffic of the target, such as that of a debugger.
    #[schemars(extend("examples" = [[9229]]))]
    pub ignore_ports: List<Port>,

    /// Whether listeners on localhost get no traffic of the target.
    pub ignore_localhost: bool,

    /// What happens when somebody else already steals the same traffic.
    pub on_concurrent_steal: OnConcurrentSteal,

    /// Whether connections that are open when the process begins to listen are reset, so that their clients connect again
    /// and reach the process. Otherwise they stay with the target's application until they end.
    pub flush_connections: bool,

    /// How long the process may take to begin an answer to a stolen request. Then the target's application gets the
    /// request, and for a while those after it. By default 30 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "Patience::json_schema", extend("examples" = ["10s"]))]
    pub answer_within: Option<Patience>,

    /// Whether health probes are stolen as well. Otherwise the target's application answers them, so that whoever sends
    /// them does not restart it.
    pub take_probes: bool,

    /// The certificate of the target's application, for ports that speak TLS: with it, requests inside of TLS can be
    /// filtered. Without it, TLS is stolen or copied as it is, and filters find nothing in it.
    #[schemars(extend("examples" = [{"certificate": "/etc/tls/tls.crt", "key": "/etc/tls/tls.key"}]))]
    pub tls: TargetTlsSettings,

    /// How the process gets what was read inside of TLS. Has an effect only together with `tls`.
    pub tls_delivery: TlsDeliverySettings,
}

/// What happens to the target's traffic
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IncomingMode {
    /// The process gets a copy. Clients get the answers of the target's application.
    #[default]
    Mirror,
    /// The process gets it instead of the target's application, and answers.
    Steal,
    /// Nothing: the process gets connections from this machine alone.
    Off,
}

/// What happens when somebody else already steals the same traffic
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnConcurrentSteal {
    /// The process cannot listen, and it is said who has the traffic.
    #[default]
    Abort,
    /// The process gets what the other one leaves, and everything when the other one is gone.
    Continue,
    /// The process gets it, and the other one is told.
    Override,
}

/// The certificate of the target's application
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = short_forms::target_tls)]
pub struct TargetTlsSettings {
    /// The certificate with its chain: a PEM file at the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null))]
    pub certificate: Option<String>,

    /// The key of the certificate: a PEM file at the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null))]
    pub key: Option<String>,
}

/// How the process gets what was read inside of TLS
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TlsDeliverySettings {
    /// With TLS again, or without.
    pub protocol: DeliveryProtocol,

    /// Files, and folders with files, of certificates in PEM that the certificate of the process must come from.
    ///
    /// Without them, and without `server_cert`, any certificate is good.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "List::<String>::json_schema", extend("examples" = [["certificates/root.pem"]]))]
    pub trust_roots: Option<List<String>>,

    /// The certificate that the process must show: a PEM file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null, "examples" = ["certificates/server.pem"]))]
    pub server_cert: Option<String>,

    /// The name that the process is asked for. By default the one that the client asked for, or else `localhost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null, "examples" = ["checkout.shop.svc"]))]
    pub server_name: Option<String>,
}

/// With TLS again, or without
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryProtocol {
    /// As the client sent it: with TLS.
    #[default]
    Tls,
    /// Without TLS.
    Tcp,
}
