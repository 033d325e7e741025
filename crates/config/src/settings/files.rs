//! `feature.fs`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::list::ListItem;
use super::{List, OrderedMap, short_forms};

/// Files of the target
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = short_forms::files)]
pub struct FileSettings {
    /// Where files are accessed that match no list.
    pub mode: FileMode,

    /// Files that are read at the target. If they are opened for writing, they are local.
    #[schemars(extend("examples" = [["^/opt/shop/config/"]]))]
    pub read_only: List<RegexText>,

    /// Files that are read and written at the target.
    #[schemars(extend("examples" = ["^/var/lib/shop/uploads/"]))]
    pub read_write: List<RegexText>,

    /// Files that are local.
    #[schemars(extend("examples" = [["^/etc/ssl/", "\\.pem$"]]))]
    pub local: List<RegexText>,

    /// Files that do not exist for the process, neither on this machine nor at the target.
    #[schemars(extend("examples" = [["/\\.config/gcloud/"]]))]
    pub not_found: List<RegexText>,

    /// Regular expressions for paths that the process uses, and the paths to use instead. `$1` or `${name}` in a new path
    /// refers to a group of the expression. The first expression that matches is used. All other rules apply to the new
    /// path, which may be local or at the target.
    #[schemars(extend("examples" = [{"^/srv/dev/(?<app>[^/]+)": "/mnt/configs/$app"}], "x-key-check" = "regex"))]
    pub mapping: OrderedMap<String>,
}

/// Where files are accessed that match no list
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileMode {
    /// All files are local. The lists have no effect; a mapping does. `/etc/resolv.conf` and `/etc/hosts` are read from the
    /// target if DNS names are resolved there.
    Local,
    /// Files are local, except those that a list or the built-in list of configuration and secrets puts at the target.
    LocalWithOverrides,
    /// Files are read at the target and written locally.
    #[default]
    Read,
    /// Files are read and written at the target.
    Write,
}

/// A regular expression that is known to be one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RegexText(pub(crate) String);

impl RegexText {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for RegexText {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        check_regex(&text)?;
        Ok(Self(text))
    }
}

impl From<RegexText> for String {
    fn from(regex: RegexText) -> Self {
        regex.0
    }
}

/// A short message about an invalid regular expression.
pub(crate) fn check_regex(text: &str) -> Result<(), String> {
    match regex::bytes::Regex::new(text) {
        Ok(_) => Ok(()),
        Err(error) => {
            // The last line is the reason; those before draw an arrow into the expression.
            let message = error.to_string();
            let reason = message.lines().last().unwrap_or_default();
            Err(reason.trim_start_matches("error: ").to_owned())
        }
    }
}

impl JsonSchema for RegexText {
    fn schema_name() -> Cow<'static, str> {
        "RegexText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "x-check": "regex" })
    }
}

impl ListItem for RegexText {
    // A semicolon can be part of an expression.
    const EXPAND: &str = "one-or-many";
}
