//! `magic`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::short_forms;

/// Bundles of settings that help almost all programs
///
/// All are on unless they are turned off. Each adds to the settings, and never removes or replaces settings of the
/// user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = short_forms::magic)]
pub struct MagicSettings {
    /// AWS tools and libraries use the identity of the target instead of the local user's.
    ///
    /// Variables of this machine that select a profile, contain credentials or select an endpoint are not passed to the
    /// process (`feature.env.unset_local`); the built-in list *Variables of AWS tools* has them. Its `~/.aws` is an empty,
    /// writable folder of the session (`feature.fs.mapping`), unless one of your lists matches files in `~/.aws`. The
    /// region of this machine stays, because it is no part of the identity. Has no effect without variables of the target,
    /// as with `feature.env: false` or without a target.
    #[schemars(schema_with = "switch")]
    pub aws: bool,

    /// Volumes that are mounted at the target are read there (`feature.fs.read_only`), even if their mount points are
    /// otherwise local. With `feature.fs.mode: write`, they are also written there (`feature.fs.read_write`). The mounts of
    /// the built-in list *Mounts that are no volumes* stay local, and so does a mount that contains the home, working or
    /// temporary directory or a folder of *Local folders that no volume replaces*. Has no effect when all files are local.
    #[schemars(schema_with = "switch")]
    pub auto_mount: bool,

    /// Variables of this machine that set an HTTP proxy (the built-in list *Variables of HTTP proxies*) are not passed to
    /// the process (`feature.env.unset_local`), because its connections leave from the target, which may not reach that
    /// proxy. Has no effect when TCP connections leave from this machine, or without a target.
    #[schemars(schema_with = "switch")]
    pub proxy: bool,
}

impl MagicSettings {
    pub(crate) const OFF: Self = Self {
        aws: false,
        auto_mount: false,
        proxy: false,
    };
}

impl Default for MagicSettings {
    fn default() -> Self {
        Self {
            aws: true,
            auto_mount: true,
            proxy: true,
        }
    }
}

fn switch(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [{ "enum": ["true", "false"] }, { "type": "boolean" }],
        "x-expand": "switch",
        "default": true,
    })
}
