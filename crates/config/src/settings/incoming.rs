//! `feature.network.incoming`.

mod http_filter;
mod port;
mod texts;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{List, short_forms};

pub use http_filter::{BodyFilter, BodyKind, HttpFilterItem, HttpFilterSettings};
pub use port::{Port, PortPair};
pub use texts::{PatternText, QueryText, Timeout};
pub(crate) use texts::{check_method, check_pattern, check_query, check_time};

/// Incoming traffic of the target, for ports on which the process listens
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = short_forms::incoming)]
pub struct IncomingSettings {
    /// What happens to the target's traffic.
    pub mode: IncomingMode,

    /// Which HTTP requests the process gets, if not all incoming traffic. All others go to the target's application.
    ///
    /// Set one filter, or a list of filters (`all_of` or `any_of`). Patterns are regular expressions that match anywhere in
    /// the text and ignore case. Lookaround is supported.
    #[schemars(extend("examples" = [{"header_filter": "^x-user: alice$"}, {"all_of": [{"path": "^/orders"}, {"method": "POST"}]}]))]
    pub http_filter: HttpFilterSettings,

    /// Ports of the process that have another number at the target, as pairs `[local, remote]`.
    ///
    /// Text is `local:remote`, with semicolons between several.
    #[schemars(extend("examples" = [[[8081, 8080]], "8081:8080"]))]
    pub port_mapping: List<PortPair>,

    /// Ports of the process for which another port is used on this machine, as pairs `[requested, used]`.
    ///
    /// The process still sees the port that it requested. For ports that are in use on this machine, or that only root
    /// may use.
    #[schemars(extend("examples" = [[[80, 8080]]]))]
    pub listen_ports: List<PortPair>,

    /// Only these ports of the process get traffic of the target. The default is all ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "List::<Port>::json_schema", extend("examples" = [[80, 8080]]))]
    pub ports: Option<List<Port>>,

    /// Ports of the process that get no traffic of the target, such as the port of a debugger.
    #[schemars(extend("examples" = [[9229]]))]
    pub ignore_ports: List<Port>,

    /// Whether listeners on localhost get no traffic of the target.
    pub ignore_localhost: bool,

    /// What happens if another session already steals the same traffic.
    pub on_concurrent_steal: OnConcurrentSteal,

    /// Whether connections that are open when the process begins to listen are reset, so that their clients connect again
    /// and reach the process. Otherwise they stay with the target's application until they end.
    pub flush_connections: bool,

    /// The timeout for the start of the process's response to a stolen request. After that, the target's application gets
    /// the request, and for a while also later ones. The default is 30 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "Timeout::json_schema", extend("examples" = ["10s"]))]
    pub response_timeout: Option<Timeout>,

    /// Whether health probes are stolen as well. Otherwise the target's application responds to them, so that the
    /// kubelet does not restart it.
    pub take_probes: bool,

    /// The certificate of the target's application, for ports with TLS. It is needed to filter requests inside TLS.
    /// Without it, TLS is stolen or mirrored unchanged, and filters match nothing.
    #[schemars(extend("examples" = [{"certificate": "/etc/tls/tls.crt", "key": "/etc/tls/tls.key"}]))]
    pub tls: TargetTlsSettings,

    /// How decrypted traffic is delivered to the process. Has an effect only with `tls`.
    pub tls_delivery: TlsDeliverySettings,
}

/// What happens to the target's traffic
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IncomingMode {
    /// The process gets a copy of the traffic. Clients get the responses of the target's application.
    #[default]
    Mirror,
    /// The process gets the traffic instead of the target's application, and responds to it.
    Steal,
    /// No incoming traffic: the process gets connections from this machine only.
    Off,
}

/// What happens if another session already steals the same traffic
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnConcurrentSteal {
    /// The process cannot listen, and the error names the holder of the traffic.
    #[default]
    Abort,
    /// The process gets the traffic that the other session leaves, and all traffic when the other session has ended.
    Continue,
    /// The process gets the traffic, and the other session is notified.
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

/// How decrypted traffic is delivered to the process
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TlsDeliverySettings {
    /// Whether the traffic is encrypted again.
    pub protocol: DeliveryProtocol,

    /// CA certificates for the certificate of the process: PEM files, or folders with PEM files.
    ///
    /// Without them, and without `server_cert`, any certificate is accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "List::<String>::json_schema", extend("examples" = [["certificates/root.pem"]]))]
    pub trust_roots: Option<List<String>>,

    /// The certificate that the process must present: a PEM file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null, "examples" = ["certificates/server.pem"]))]
    pub server_cert: Option<String>,

    /// The server name (SNI) that is sent to the process. The default is the client's, or else `localhost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null, "examples" = ["checkout.shop.svc"]))]
    pub server_name: Option<String>,
}

/// Whether the traffic is encrypted again
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryProtocol {
    /// With TLS, as the client sent it.
    #[default]
    Tls,
    /// Without TLS.
    Tcp,
}
