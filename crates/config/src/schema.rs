//! The JSON schema of a config file, made from the types of [`crate::settings`].
//!
//! Keywords that start with `x-` are annotations for [`crate::shape`] that JSON schema cannot express. They are removed from
//! the published schema.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::other_tools::KEYS_OF_OTHER_TOOLS;
use crate::settings::Settings;

/// The schema for editors and other programs, as pretty JSON that ends with a newline.
pub fn schema_text() -> String {
    let published = published(annotated());
    // Pretty-printing a value cannot fail; an empty text would be noticed by the check of generated files.
    let text = serde_json::to_string_pretty(&published).unwrap_or_default();
    text + "\n"
}

/// The schema with all annotations, and with the keys of other tools.
pub(crate) fn annotated() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    let mut schema = settings
        .into_generator()
        .into_root_schema_for::<Settings>()
        .to_value();
    remove_section_defaults(&mut schema);
    add_property(
        &mut schema,
        &["$schema"],
        json!({ "type": "string", "description": "The address of this schema, for editors.", "x-ignored": true }),
    );
    for (index, tool_key) in KEYS_OF_OTHER_TOOLS.iter().enumerate() {
        let path: Vec<&str> = tool_key.path.split('.').collect();
        let description = format!("Has no effect: {}.", tool_key.reason);
        let note = json!({ "description": description, "x-other-tool": index });
        add_property(&mut schema, &path, note);
    }
    schema
}

/// The default of a section only repeats those of its keys.
fn remove_section_defaults(schema: &mut Value) {
    let Some(properties) = long_form(schema)
        .and_then(|schema| schema.get_mut("properties"))
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    for property in properties.values_mut() {
        remove_section_defaults(property);
    }
    if let Some(object) = schema.as_object_mut() {
        object.remove("default");
    }
}

fn add_property(schema: &mut Value, path: &[&str], property: Value) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    let Some(properties) = long_form(schema)
        .and_then(|schema| schema.get_mut("properties"))
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    if rest.is_empty() {
        properties.insert((*first).to_owned(), property);
    } else if let Some(next) = properties.get_mut(*first) {
        add_property(next, rest, property);
    }
}

/// Of several forms, the last one is the complete one.
fn long_form(schema: &mut Value) -> Option<&mut Value> {
    if schema.get("anyOf").is_some() {
        schema
            .get_mut("anyOf")?
            .as_array_mut()?
            .last_mut()
            .and_then(long_form)
    } else {
        Some(schema)
    }
}

/// Removes annotations and sorts keys: whether maps keep their order depends on the features of serde_json.
fn published(schema: Value) -> Value {
    match schema {
        Value::Object(object) => {
            let mut entries: Vec<(String, Value)> = object
                .into_iter()
                .filter(|(keyword, _)| !keyword.starts_with("x-"))
                .map(|(keyword, value)| (keyword, published(value)))
                .collect();
            entries.sort_by(|left, right| left.0.cmp(&right.0));
            Value::Object(entries.into_iter().collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(published).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_other_tools_is_in_the_schema() {
        let mut schema = annotated();
        for tool_key in KEYS_OF_OTHER_TOOLS {
            let mut at = &mut schema;
            for part in tool_key.path.split('.') {
                at = long_form(at)
                    .and_then(|schema| schema.get_mut("properties"))
                    .and_then(|properties| properties.get_mut(part))
                    .unwrap_or_else(|| panic!("{} is not in the schema", tool_key.path));
            }
            assert!(at.get("x-other-tool").is_some(), "{}", tool_key.path);
        }
    }

    #[test]
    fn annotations_are_not_published() {
        assert!(!schema_text().contains("\"x-"));
    }
}
