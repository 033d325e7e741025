use config::{Format, Severity, VARIABLES, reference_text, schema_text, verify};
use serde_json::{Value, json};

/// Every key of the published schema with its whole path.
fn keys() -> Vec<(Vec<String>, Value)> {
    let schema: Value = serde_json::from_str(&schema_text()).unwrap();
    let mut found = Vec::new();
    collect(&schema, &[], &mut found);
    assert!(found.len() > 50, "{} keys", found.len());
    found
}

fn collect(schema: &Value, path: &[String], found: &mut Vec<(Vec<String>, Value)>) {
    let long = match schema.get("anyOf").and_then(Value::as_array) {
        Some(forms) => forms.last().unwrap(),
        None => schema,
    };
    let Some(properties) = long.get("properties").and_then(Value::as_object) else {
        return;
    };
    for (key, property) in properties {
        let path = [path, std::slice::from_ref(key)].concat();
        collect(property, &path, found);
        found.push((path, property.clone()));
    }
}

fn text_of(value: &Value, format: Format) -> String {
    match format {
        Format::Json => value.to_string(),
        Format::Yaml => serde_saphyr::to_string(value).unwrap(),
        Format::Toml => toml::to_string(value).unwrap(),
    }
}

fn nested(path: &[String], value: &Value) -> Value {
    let wrap = |inner, key: &String| json!({ key.as_str(): inner });
    path.iter().rev().fold(value.clone(), wrap)
}

#[test]
fn every_example_and_default_loads_in_every_notation() {
    let mut loaded = 0;
    for (path, property) in keys() {
        let examples = property.get("examples").and_then(Value::as_array).cloned();
        let default = property.get("default").filter(|default| !default.is_null());
        for value in examples.unwrap_or_default().iter().chain(default) {
            for format in Format::ALL {
                let text = text_of(&nested(&path, value), format);
                let report = verify("test", &text, format);
                assert!(report.problems().is_empty(), "{text}\n{report}");
                loaded += 1;
            }
        }
    }
    assert!(loaded > 60, "{loaded}");
}

#[test]
fn every_key_of_other_tools_warns_once() {
    let mut warned = 0;
    for (path, property) in keys() {
        let description = property["description"].as_str().unwrap_or_default();
        if !description.starts_with("Has no effect: ") {
            continue;
        }
        for value in [json!(true), json!({ "any": [1, { "thing": "x" }] })] {
            for format in Format::ALL {
                let text = text_of(&nested(&path, &value), format);
                let report = verify("test", &text, format);
                let problems = report.problems();
                assert_eq!(problems.len(), 1, "{text}\n{report}");
                assert_eq!(problems[0].severity(), Severity::Warning);
                assert_eq!(problems[0].key, path.join("."));
            }
        }
        warned += 1;
    }
    assert!(warned > 25, "{warned}");
}

#[test]
fn every_key_has_a_description_and_a_heading() {
    let reference = reference_text();
    for (path, property) in keys() {
        // The kinds of a target are names, not keys with a meaning of their own.
        if path.starts_with(&["target".to_owned(), "path".to_owned()]) && path.len() > 2 {
            continue;
        }
        let key = path.join(".");
        let description = property["description"].as_str().unwrap_or_default();
        assert!(!description.is_empty(), "{key}");
        let documented = if description.starts_with("Has no effect: ") {
            format!("\n| `{key}` |")
        } else {
            format!("\n### {key}\n")
        };
        assert!(reference.contains(&documented), "{key}");
    }
    for variable in VARIABLES {
        assert!(reference.contains(&format!("| `{}` |", variable.name)));
    }
}

#[test]
fn the_examples_of_the_reference_load() {
    let reference = reference_text();
    let mut loaded = 0;
    for (name, format) in [
        ("json", Format::Json),
        ("yaml", Format::Yaml),
        ("toml", Format::Toml),
    ] {
        let fence = format!("```{name}\n");
        for block in reference.split(&fence).skip(1) {
            let text = block.split("```").next().unwrap();
            let report = verify("test", text, format);
            assert!(report.problems().is_empty(), "{text}\n{report}");
            loaded += 1;
        }
    }
    assert_eq!(loaded, 3);
}
