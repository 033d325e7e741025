//! Port numbers, alone and in pairs.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::super::list::ListItem;

/// A port number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Port(pub u16);

/// A mapped port: first the port of the process, then the port that it is mapped to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PortPair(pub Port, pub Port);

impl JsonSchema for Port {
    fn schema_name() -> Cow<'static, str> {
        "Port".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 1, "maximum": 65535 })
    }
}

impl JsonSchema for PortPair {
    fn schema_name() -> Cow<'static, str> {
        "PortPair".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let port = generator.subschema_for::<Port>();
        json_schema!({
            "anyOf": [
                { "type": "string" },
                { "type": "array", "items": port, "minItems": 2, "maxItems": 2 },
            ],
            "x-expand": "pair",
        })
    }
}

impl ListItem for Port {
    const EXPAND: &str = "numbers";
}

impl ListItem for PortPair {
    const EXPAND: &str = "pairs";
}
