//! Expands short forms. Other values are returned unchanged, and checked by the caller.

use crate::shape::Expand;
use crate::tree::{Key, Node, Span, Value};

pub(super) fn write_out(expand: Expand, node: Node) -> Node {
    let span = node.span;
    let same = |keys: &[&str], value: Value| {
        let entry = |key: &&str| entry(key, value.clone(), span);
        Value::Map(keys.iter().map(entry).collect())
    };
    let value = match (expand, node.value) {
        (Expand::Enabled, value @ Value::Boolean(_)) => same(&["enabled"], value),
        (Expand::Magic, value @ (Value::Boolean(_) | Value::Text(_))) => {
            same(&["aws", "auto_mount", "proxy"], value)
        }
        (Expand::Switch, Value::Text(text)) => match text.as_str() {
            "true" => Value::Boolean(true),
            "false" => Value::Boolean(false),
            _ => Value::Text(text),
        },
        (Expand::Files, Value::Boolean(remote)) => {
            let mode = if remote { "read" } else { "local" };
            same(&["mode"], Value::Text(mode.to_owned()))
        }
        (Expand::Incoming, Value::Boolean(enabled)) => {
            let mode = if enabled { "mirror" } else { "off" };
            same(&["mode"], Value::Text(mode.to_owned()))
        }
        (Expand::Files | Expand::Incoming, value @ Value::Text(_)) => same(&["mode"], value),
        (Expand::Incoming, Value::Map(mut entries)) => {
            for (key, _) in &mut entries {
                if key.text == "https_delivery" {
                    key.text = "tls_delivery".to_owned();
                }
            }
            Value::Map(entries)
        }
        (Expand::Network, value @ Value::Boolean(_)) => {
            same(&["incoming", "outgoing", "dns"], value)
        }
        (Expand::Outgoing, value @ Value::Boolean(_)) => same(&["tcp", "udp"], value),
        (Expand::Outgoing, Value::Text(text)) if text == "remote" || text == "local" => {
            same(&["tcp", "udp"], Value::Boolean(text == "remote"))
        }
        // An empty filter is no filter.
        (Expand::Filter, Value::Map(entries)) if entries.is_empty() => Value::Null,
        (Expand::Target, value @ Value::Text(_)) => same(&["path"], value),
        (Expand::TargetPath, Value::Map(entries)) => target_path(entries),
        (Expand::OneOrMany, value @ (Value::Text(_) | Value::Map(_)))
        | (Expand::Numbers, value @ Value::Number(_)) => Value::List(vec![Node { value, span }]),
        (Expand::Numbers, Value::Text(text)) => {
            Value::List(separated(&text, span).into_iter().map(number).collect())
        }
        (Expand::Pair, Value::Text(text)) => match text.split_once(':') {
            Some((left, right)) => {
                let side = |text: &str| Value::Number(text.trim().to_owned());
                let items = [side(left), side(right)];
                Value::List(items.map(|value| Node { value, span }).into())
            }
            None => Value::Text(text),
        },
        // One pair, as a list.
        (Expand::Pairs, value @ Value::List(_)) if has_numbers(&value) => {
            Value::List(vec![Node { value, span }])
        }
        (Expand::Separated | Expand::Pairs, Value::Text(text)) => {
            Value::List(separated(&text, span))
        }
        (_, value) => value,
    };
    Node { value, span }
}

/// Converts text from a variable or a flag to a number.
fn number(node: Node) -> Node {
    let value = match node.value {
        Value::Text(text) => Value::Number(text),
        value => value,
    };
    Node { value, ..node }
}

fn has_numbers(value: &Value) -> bool {
    let number = |node: &Node| matches!(node.value, Value::Number(_));
    matches!(value, Value::List(items) if items.iter().any(number))
}

fn entry(key: &str, value: Value, span: Span) -> (Key, Node) {
    let text = key.to_owned();
    (Key { text, span }, Node { value, span })
}

/// `{deployment: checkout, container: app}` is `deployment/checkout/container/app`.
fn target_path(entries: Vec<(Key, Node)>) -> Value {
    let text = |node: &Node| match &node.value {
        Value::Text(text) | Value::Number(text) => Some(text.clone()),
        _ => None,
    };
    let is_container = |key: &Key| key.text == "container";
    let path = match entries.as_slice() {
        [(key, name)] => text(name).map(|name| format!("{}/{name}", key.text)),
        [(key, name), (other, container)] | [(other, container), (key, name)]
            if is_container(other) && !is_container(key) =>
        {
            text(name)
                .zip(text(container))
                .map(|(name, container)| format!("{}/{name}/container/{container}", key.text))
        }
        _ => None,
    };
    path.map_or(Value::Map(entries), Value::Text)
}

/// The parts between semicolons, each with its span.
fn separated(text: &str, span: Span) -> Vec<Node> {
    // Quotes take a byte on each side; with escapes, the span of a part cannot be computed from its text.
    let offset = match (span.end - span.start).checked_sub(text.len()) {
        Some(0) => Some(0),
        Some(2) => Some(1),
        _ => None,
    };
    let mut items = Vec::new();
    let mut start = 0;
    for part in text.split(';') {
        let trimmed = part.trim();
        if !trimmed.is_empty() {
            let inside = start + (part.len() - part.trim_start().len());
            let span = offset.map_or(span, |offset| Span {
                start: span.start + offset + inside,
                end: span.start + offset + inside + trimmed.len(),
                ..span
            });
            let value = Value::Text(trimmed.to_owned());
            items.push(Node { value, span });
        }
        start += part.len() + 1;
    }
    items
}
