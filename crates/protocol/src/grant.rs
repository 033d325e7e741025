//! What a session may do at its target: what administrators have decided, whatever the client asks for. An agent is told when
//! it is started, by whoever starts it, and enforces it; clients have no say in it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What is forbidden. Nothing is, in the one that is empty. A rule that an agent does not know is an error and never
/// overlooked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Grant {
    /// Who the session belongs to. Others who want the same port are told this, and not what the client says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    #[serde(skip_serializing_if = "IncomingGrant::is_empty")]
    pub incoming: IncomingGrant,
    /// Variables that nobody gets: patterns with `*` for any characters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hidden_variables: Vec<String>,
    #[serde(skip_serializing_if = "FilesGrant::is_empty")]
    pub files: FilesGrant,
    #[serde(skip_serializing_if = "OutgoingGrant::is_empty")]
    pub outgoing: OutgoingGrant,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IncomingGrant {
    pub no_steal: bool,
    pub no_steal_without_filter: bool,
    pub no_mirror: bool,
    /// Regular expressions, each of which a header filter of a session that steals must fit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub header_filters: Vec<String>,
    /// Paths of the target's health probes, by their ports. They are known, and not forbidden: only a session that asks for
    /// probes gets them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub probes: BTreeMap<u16, Vec<String>>,
}

/// Regular expressions of paths, as they are without symbolic links.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FilesGrant {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub read_only: Vec<String>,
    /// As if they were not there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<String>,
}

/// Rules for addresses: `[tcp://|udp://][ADDRESS|NETWORK][:PORT]`, such as `10.0.0.0/8`, `udp://[fd00::1]:53` or `:5432`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OutgoingGrant {
    /// What is not in each of these lists is forbidden.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<Vec<String>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub none_of: Vec<String>,
}

impl IncomingGrant {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl FilesGrant {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl OutgoingGrant {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
