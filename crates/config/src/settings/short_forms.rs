//! What a section may be instead of a map. `x-expand` names the function of [`crate::read`] that writes it out.

use schemars::Schema;
use serde_json::{Value, json};

pub(super) fn env(schema: &mut Schema) {
    allow(schema, "enabled", &[json!({ "type": "boolean" })]);
}

pub(super) fn dns(schema: &mut Schema) {
    allow(schema, "enabled", &[json!({ "type": "boolean" })]);
}

pub(super) fn files(schema: &mut Schema) {
    let modes = json!({ "enum": ["local", "localwithoverrides", "read", "write"] });
    allow(schema, "files", &[json!({ "type": "boolean" }), modes]);
}

pub(super) fn network(schema: &mut Schema) {
    allow(schema, "network", &[json!({ "type": "boolean" })]);
}

pub(super) fn outgoing(schema: &mut Schema) {
    let places = json!({ "enum": ["remote", "local"] });
    allow(schema, "outgoing", &[json!({ "type": "boolean" }), places]);
}

pub(super) fn target(schema: &mut Schema) {
    let path = json!({ "type": "string", "examples": super::target::EXAMPLES });
    allow(schema, "target", &[path]);
}

fn allow(schema: &mut Schema, expand: &str, short: &[Value]) {
    let object = schema.ensure_object();
    let mut long = serde_json::Map::new();
    for keyword in ["type", "properties", "additionalProperties", "required"] {
        if let Some(value) = object.remove(keyword) {
            long.insert(keyword.to_owned(), value);
        }
    }
    let branches: Vec<Value> = short.iter().cloned().chain([Value::Object(long)]).collect();
    object.insert("anyOf".to_owned(), Value::Array(branches));
    object.insert("x-expand".to_owned(), expand.into());
}
