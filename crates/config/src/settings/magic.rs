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
    /// Variables of this machine that select a profile or contain credentials are not passed to the process
    /// (`feature.env.unset_local`). Its `~/.aws` is an empty folder of the session (`feature.fs.mapping`), unless one of
    /// your lists matches files in `~/.aws`. Has no effect without variables of the target.
    #[schemars(schema_with = "switch")]
    pub aws: bool,

    /// Volumes that are mounted at the target are read there (`feature.fs.read_only`), even if their mount points are
    /// otherwise local. With `feature.fs.mode: write`, they are also written there (`feature.fs.read_write`). Has no
    /// effect when all files are local.
    #[schemars(schema_with = "switch")]
    pub auto_mount: bool,

    /// Variables of this machine that set an HTTP proxy (`HTTP_PROXY` and similar) are not passed to the process
    /// (`feature.env.unset_local`), because its connections leave from the target, which may not reach that proxy. Has no
    /// effect when TCP connections leave from this machine.
    #[schemars(schema_with = "switch")]
    pub proxy: bool,
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
