//! The resolved settings of a session: every key with its documentation and its default.
//!
//! Keys are declared only in these types. The JSON schema, the reference in `docs/configuration.md` and the check of a config
//! file are generated from them. A short form, such as `fs: read` for `fs: {mode: read}`, exists only in files:
//! [`crate::read`] expands it.
//!
//! Comments on fields are written for users, since they are shown to them.

mod agent;
mod env;
mod files;
mod incoming;
mod list;
mod magic;
mod network;
mod ordered_map;
mod secret;
mod short_forms;
mod target;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use agent::{AgentSettings, ImagePullPolicy, PullSecret, Resources, Seconds, Toleration};
pub use env::{EnvSettings, NamePattern};
pub(crate) use files::check_regex;
pub use files::{FileMode, FileSettings, RegexText};
pub use incoming::{
    BodyFilter, BodyKind, DeliveryProtocol, HttpFilterItem, HttpFilterSettings, IncomingMode,
    IncomingSettings, OnConcurrentSteal, PatternText, Port, PortPair, QueryText, TargetTlsSettings,
    Timeout, TlsDeliverySettings,
};
pub(crate) use incoming::{check_method, check_pattern, check_query, check_time};
pub use list::List;
pub use magic::MagicSettings;
pub use network::{AddressFilter, DnsSettings, NetworkSettings, OutgoingSettings};
pub use ordered_map::OrderedMap;
pub use secret::Secret;
pub use target::{Target, TargetError, TargetSettings, WorkloadKind};

/// Settings of a Standin session
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What the process stands in for: a process or a container on this machine, or a workload in a cluster.
    ///
    /// Text is short for `{"path": …}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "TargetSettings::json_schema")]
    pub target: Option<TargetSettings>,

    /// Which parts of the target's environment the process sees.
    pub feature: FeatureSettings,

    /// The agent, which is started beside the target in a cluster.
    pub agent: AgentSettings,

    /// Whether other programs of the same user, such as `standin ui`, can monitor and end the session. With `false`, there
    /// is no socket, and there are counters only with `--record`.
    pub api: bool,

    /// Bundles of settings that help almost all programs. They are on by default.
    ///
    /// `true` and `false` are short for the same value in all bundles.
    pub magic: MagicSettings,

    /// Whether a session in a cluster uses the operator (`true`) or your own rights (`false`).
    ///
    /// Without a value, the operator is used if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool", extend("default" = null, "examples" = [true]))]
    pub operator: Option<bool>,

    /// Whether the session covers all clusters that the operator coordinates (`true`), or only the cluster of your context
    /// (`false`).
    ///
    /// Without a value, it covers all clusters if the operator coordinates several. With `true`, an operator that
    /// coordinates no other clusters is an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool", extend("default" = null, "examples" = [false]))]
    pub multi_cluster: Option<bool>,

    /// The kubeconfig file. The default is the files in `KUBECONFIG`, or else `~/.kube/config`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null, "examples" = ["~/.kube/config"]))]
    pub kubeconfig: Option<String>,

    /// The context of the kubeconfig. The default is the current context.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null, "examples" = ["staging"]))]
    pub kube_context: Option<String>,

    /// Whether to accept an API server with an invalid certificate. An attacker in the network path can then read and
    /// change all traffic.
    pub accept_invalid_certificates: bool,

    /// Whether the API server is reached through the proxy in `HTTPS_PROXY`, if it is set.
    pub use_proxy: bool,

    /// Programs that run outside of the session, by file name or absolute path.
    ///
    /// Their children are part of the session again, unless they are listed too. Text is a list separated by semicolons.
    #[schemars(extend("examples" = [["bash", "node"], "ide-debugger"]))]
    pub skip_processes: List<String>,

    /// Whether compilers, linkers, package managers and version control run outside of the session.
    ///
    /// So a command that builds and then runs a program builds it with local files and tools. In a working directory that is
    /// the target's, such a tool runs in the same directory of this machine. It is not started if there is none.
    pub skip_build_tools: bool,

    /// Additional programs that count as build tools. Has an effect only with `skip_build_tools`.
    #[schemars(extend("examples" = [["my-code-generator"]]))]
    pub skip_extra_build_tools: List<String>,
}

/// Which parts of the target's environment the process sees
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FeatureSettings {
    /// Environment variables of the target.
    ///
    /// `true` and `false` are short for `{"enabled": …}`.
    pub env: EnvSettings,

    /// Files of the target.
    ///
    /// Text is short for `{"mode": …}`; `true` is `read` and `false` is `local`. The lists contain regular expressions that
    /// match anywhere in an absolute path and ignore case. The first list that matches decides, in the order `not_found`,
    /// `local`, `read_write`, `read_only`; then the built-in lists apply, then the mode.
    pub fs: FileSettings,

    /// Connections and DNS.
    ///
    /// `true` and `false` are short for the same value in `incoming`, `outgoing` and `dns`.
    pub network: NetworkSettings,

    /// Whether the process sees the target's host name.
    ///
    /// A program that sets the host name sets it for its session, and neither for this machine nor for the target.
    pub hostname: bool,

    /// The same as the top-level `magic`. A bundle is off if either of them disables it.
    pub magic: MagicSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            target: None,
            feature: FeatureSettings::default(),
            agent: AgentSettings::default(),
            api: true,
            magic: MagicSettings::default(),
            operator: None,
            multi_cluster: None,
            kubeconfig: None,
            kube_context: None,
            accept_invalid_certificates: false,
            use_proxy: true,
            skip_processes: List::default(),
            skip_build_tools: true,
            skip_extra_build_tools: List::default(),
        }
    }
}

impl Default for FeatureSettings {
    fn default() -> Self {
        Self {
            env: EnvSettings::default(),
            fs: FileSettings::default(),
            network: NetworkSettings::default(),
            hostname: true,
            magic: MagicSettings::default(),
        }
    }
}
