//! The short forms of sections. `x-expand` names the function of [`crate::read`] that expands them.

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

pub(super) fn incoming(schema: &mut Schema) {
    let modes = json!({ "enum": ["mirror", "steal", "off"] });
    allow(schema, "incoming", &[json!({ "type": "boolean" }), modes]);
    let long = schema.get_mut("anyOf").and_then(Value::as_array_mut);
    let properties =
        long.and_then(|forms| forms.last_mut()?.get_mut("properties")?.as_object_mut());
    if let Some(properties) = properties {
        let old_name = json!({
            "type": "object",
            "description": "The old name of `tls_delivery`, with the same keys.",
            "x-ignored": true,
        });
        properties.insert("https_delivery".to_owned(), old_name);
    }
}

/// A missing filter and an empty one are the same.
pub(super) fn http_filter(schema: &mut Schema) {
    let filters = [
        "header_filter",
        "path_filter",
        "method_filter",
        "body_filter",
        "all_of",
        "any_of",
    ];
    schema.insert("x-expand".to_owned(), "filter".into());
    schema.insert("x-replace".to_owned(), true.into());
    schema.insert("x-one-of".to_owned(), filters.as_slice().into());
}

/// One filter of a list.
pub(super) fn http_filter_item(schema: &mut Schema) {
    let filters = ["header", "path", "method", "body"];
    schema.insert("x-one-of".to_owned(), filters.as_slice().into());
    schema.insert("minProperties".to_owned(), 1.into());
    body_filter(schema);
}

pub(super) fn body_filter(schema: &mut Schema) {
    let needs = json!({ "body": ["query", "matches"], "query": ["body", "matches"], "matches": ["body", "query"] });
    schema.insert("x-needs".to_owned(), needs);
}

pub(super) fn target_tls(schema: &mut Schema) {
    let needs = json!({ "certificate": ["key"], "key": ["certificate"] });
    schema.insert("x-needs".to_owned(), needs);
}

pub(super) fn magic(schema: &mut Schema) {
    let texts = json!({ "enum": ["true", "false"] });
    allow(schema, "magic", &[json!({ "type": "boolean" }), texts]);
}

pub(super) fn network(schema: &mut Schema) {
    allow(schema, "network", &[json!({ "type": "boolean" })]);
}

pub(super) fn outgoing(schema: &mut Schema) {
    let texts = json!({ "enum": ["remote", "local"] });
    allow(schema, "outgoing", &[json!({ "type": "boolean" }), texts]);
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
