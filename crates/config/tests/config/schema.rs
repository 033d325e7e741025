//! Validates a value with the published schema, like an editor does.
//!
//! The schema uses few keywords, so this is short. An unknown keyword fails the test instead of being ignored.

use serde_json::Value;

/// The paths in a value that the schema does not allow.
pub(crate) fn violations(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    validate(schema, value, "", &mut found);
    found
}

fn validate(schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    for (keyword, expected) in schema.as_object().unwrap() {
        let good = match keyword.as_str() {
            "$schema" | "title" | "description" | "default" | "examples" => true,
            "type" => match expected {
                Value::Array(types) => types.iter().any(|name| is_a(value, name)),
                name => is_a(value, name),
            },
            "const" => value == expected,
            "enum" => expected.as_array().unwrap().contains(value),
            "anyOf" => fitting(expected, value) > 0,
            "oneOf" => fitting(expected, value) == 1,
            "maxProperties" => {
                let max = expected.as_u64().unwrap();
                value.as_object().is_none_or(|map| map.len() as u64 <= max)
            }
            "minProperties" => {
                let min = expected.as_u64().unwrap();
                value.as_object().is_none_or(|map| map.len() as u64 >= min)
            }
            "minItems" | "maxItems" => {
                let bound = expected.as_u64().unwrap();
                value.as_array().is_none_or(|list| match keyword.as_str() {
                    "minItems" => list.len() as u64 >= bound,
                    _ => list.len() as u64 <= bound,
                })
            }
            "minimum" => value
                .as_f64()
                .is_none_or(|number| number >= expected.as_f64().unwrap()),
            "maximum" => value
                .as_f64()
                .is_none_or(|number| number <= expected.as_f64().unwrap()),
            "required" => expected.as_array().unwrap().iter().all(|key| {
                let key = key.as_str().unwrap();
                value.as_object().is_none_or(|map| map.contains_key(key))
            }),
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    validate(expected, item, &format!("{at}[]"), found);
                }
                true
            }
            "properties" | "additionalProperties" => {
                for (key, inner) in value.as_object().into_iter().flatten() {
                    let at = format!("{at}.{key}");
                    let named = schema["properties"].get(key);
                    match (keyword.as_str(), named, expected) {
                        ("properties", Some(property), _) => validate(property, inner, &at, found),
                        ("additionalProperties", None, Value::Bool(allowed)) if *allowed => {}
                        ("additionalProperties", None, Value::Bool(_)) => found.push(at),
                        ("additionalProperties", None, others) => {
                            validate(others, inner, &at, found);
                        }
                        _ => {}
                    }
                }
                true
            }
            other => panic!("what does `{other}` mean?"),
        };
        if !good {
            found.push(at.to_owned());
        }
    }
}

fn fitting(schemas: &Value, value: &Value) -> usize {
    let schemas = schemas.as_array().unwrap().iter();
    schemas
        .filter(|schema| violations(schema, value).is_empty())
        .count()
}

fn is_a(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "null" => value.is_null(),
        other => panic!("what is of the type `{other}`?"),
    }
}
