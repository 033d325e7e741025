//! `feature.env`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::list::ListItem;
use super::{List, OrderedMap, Secret, short_forms};

/// Environment variables of the target
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = short_forms::env)]
pub struct EnvSettings {
    /// Whether the process gets variables of the target at all. `override`, `env_file` and `unset` work without them.
    pub enabled: bool,

    /// Take only these variables from the target. `*` matches any characters, and `?` one.
    ///
    /// Variables that describe a machine (`PATH`, `HOME` and similar) are taken only if their full names are in this list.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        schema_with = "List::<NamePattern>::json_schema",
        extend("examples" = ["DATABASE_*;REGION", ["DATABASE_*", "REGION"]])
    )]
    pub include: Option<List<NamePattern>>,

    /// Do not take these variables from the target, even if `include` contains them. `*` matches any characters, and `?`
    /// one.
    #[schemars(extend("examples" = ["*_PASSWORD;SECRET_?"]))]
    pub exclude: List<NamePattern>,

    /// Variables that are set to these values. They override those of the target and of this machine.
    #[schemars(extend("examples" = [{"LOG_LEVEL": "debug"}]))]
    pub r#override: OrderedMap<Secret>,

    /// Variables of the target and of this machine that are removed. Patterns are as in `include`, but ignore case. Values
    /// from `env_file` and `override` are kept.
    #[schemars(extend("examples" = [["AWS_PROFILE"]]))]
    pub unset: List<NamePattern>,

    /// Variables of this machine that are not passed to the process. Variables of the target with the same names are kept.
    /// Patterns are as in `unset`.
    #[schemars(extend("examples" = [["HTTP_PROXY"]]))]
    pub unset_local: List<NamePattern>,

    /// A file with lines of the form `NAME=value`. They override the target's variables, and `override` overrides them.
    /// A relative path is relative to the working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null, "examples" = [".env"]))]
    pub env_file: Option<String>,

    /// New values for variables of the target, by regular expressions that match their names. `$1` or `${name}` in a value
    /// refers to a group of the expression. The first expression that matches is used.
    #[schemars(extend("examples" = [{".+_TIMEOUT": "10000"}], "x-key-check" = "regex"))]
    pub mapping: OrderedMap<Secret>,
}

/// Names of variables, with `*` for any characters and `?` for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NamePattern(pub String);

impl Default for EnvSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            include: None,
            exclude: List::default(),
            r#override: OrderedMap::default(),
            unset: List::default(),
            unset_local: List::default(),
            env_file: None,
            mapping: OrderedMap::default(),
        }
    }
}

impl JsonSchema for NamePattern {
    fn schema_name() -> Cow<'static, str> {
        "NamePattern".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

impl ListItem for NamePattern {
    const EXPAND: &str = "separated";
}
