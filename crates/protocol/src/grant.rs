//! The policy for a session at its target, set by administrators. An agent gets it from the process that starts it and
//! enforces it; clients cannot change it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What is forbidden. An empty grant forbids nothing. A rule that an agent does not know is an error and is never ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Grant {
    /// The owner of the session. Conflicting sessions see this name, not the one that the client sends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    #[serde(skip_serializing_if = "IncomingGrant::is_empty")]
    pub incoming: IncomingGrant,
    /// Environment variables that are never sent: patterns with `*` for any characters.
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
    /// Regular expressions. A session steals only requests in which a header line matches, for each of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub header_filters: Vec<String>,
    /// Paths of the target's health probes, by port. They are not forbidden, but only a session that asks for probes gets
    /// them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub probes: BTreeMap<u16, Vec<String>>,
}

/// Regular expressions of canonical paths, that is, without symbolic links.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FilesGrant {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub read_only: Vec<String>,
    /// These files appear not to exist.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<String>,
}

/// Rules for addresses: `[tcp://|udp://][ADDRESS|NETWORK][:PORT]`, such as `10.0.0.0/8`, `udp://[fd00::1]:53` or `:5432`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OutgoingGrant {
    /// An address that is missing in one of these lists is forbidden.
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
