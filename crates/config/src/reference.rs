//! Generates the user's reference of all keys, `docs/configuration.md`, from the types of the settings.

use std::fmt::Write;

use serde_json::Value;

use crate::env::MACHINE_VARIABLES;
use crate::environment::VARIABLES;
use crate::files::{LOCAL, LOCAL_CONFIGURATION, REMOTE};
use crate::magic::{AWS, AWS_FOLDER, LOCAL_FOLDERS, PROXY, SYSTEM_MOUNTS};
use crate::other_tools::KEYS_OF_OTHER_TOOLS;
use crate::shape::{self, Kind, Shape};
use crate::skip::BUILD_TOOLS;

/// The whole page, in Markdown.
pub fn reference_text() -> String {
    let mut page = include_str!("reference.md.in").to_owned();
    page.push_str("\n## Keys\n");
    for (key, shape) in shape::root().all_keys() {
        if !matches!(shape.kind, Kind::KeyOfOtherTool(_)) {
            page.push_str(&describe(&key, shape));
        }
    }
    page.push_str(&built_in());
    page.push_str(&variables());
    page.push_str(&keys_of_other_tools());
    page
}

fn describe(key: &str, shape: &Shape) -> String {
    let mut text = format!(
        "\n### {key}\n\n{}\n",
        shape.description.replace('\n', " ").replace("  ", "\n\n")
    );
    let mut facts = vec![format!("is {}", shape.allowed)];
    if let Some(default) = shape.default.as_ref().filter(|default| !default.is_null()) {
        facts.push(format!("default `{default}`"));
    }
    let variable = VARIABLES.iter().find(|variable| variable.key == key);
    if let Some(variable) = variable {
        facts.push(format!("variable `{}`", variable.name));
    }
    let _ = write!(text, "\n- {}\n", facts.join("\n- "));
    for (choice, meaning) in &shape.choices {
        let _ = writeln!(text, "- `{choice}`: {}", meaning.replace('\n', " "));
    }
    for example in &shape.examples {
        let _ = writeln!(text, "- for example `{}`", example_text(example));
    }
    text
}

fn example_text(example: &Value) -> String {
    example.to_string()
}

fn built_in() -> String {
    let mut text = "\n## Built-in lists\n".to_owned();
    let mut list = |title: &str, explanation: &str, items: &[&str]| {
        let items: Vec<String> = items.iter().map(|item| format!("`{item}`")).collect();
        let items = items.join(", ");
        let _ = write!(text, "\n### {title}\n\n{explanation}\n\n{items}\n");
    };
    list(
        "Files at the target",
        "In every mode except `local`, with everything below them. A list in `feature.fs` overrides this.",
        REMOTE,
    );
    list(
        "Local files",
        "In every mode, with everything below them, unless a list in `feature.fs` overrides this: programs, libraries, \
         devices and temporary files. Also local are the home, working and temporary directory, the folder of the program, \
         the parent folders of these, and shared libraries (`*.so`, `*.so.1`) anywhere.",
        LOCAL,
    );
    list(
        "Local files in /etc",
        "Configuration that belongs to programs and users of this machine.",
        LOCAL_CONFIGURATION,
    );
    list(
        "Variables of a machine",
        "Not taken from the target, unless `feature.env.include` contains their full names.",
        MACHINE_VARIABLES,
    );
    list(
        "Variables of AWS tools",
        "`magic.aws` removes those of this machine, in upper and lower case. Those of the target stay.",
        AWS,
    );
    list(
        "Folders of AWS tools",
        "`magic.aws` replaces it with an empty folder of the session.",
        &[&*format!("~/{AWS_FOLDER}")],
    );
    list(
        "Variables of HTTP proxies",
        "`magic.proxy` removes those of this machine, in upper and lower case. Those of the target stay.",
        PROXY,
    );
    list(
        "Mounts that are no volumes",
        "`magic.auto_mount` does not read them, and what is mounted below them, at the target.",
        SYSTEM_MOUNTS,
    );
    list(
        "Local folders that no volume replaces",
        "`magic.auto_mount` does not read a mount at the target that is one of these or contains one of them.",
        LOCAL_FOLDERS,
    );
    list(
        "Build tools",
        "They run outside of the session, unless `skip_build_tools` is `false`.",
        BUILD_TOOLS,
    );
    text
}

fn variables() -> String {
    let mut text = "\n## Environment variables\n\nSemicolons separate the entries of a list. A list of regular expressions has only \
                    one entry, because a semicolon can be part of an expression: write `a|b` for two.\n\n| variable | key \
                    |\n|---|---|\n"
        .to_owned();
    for variable in VARIABLES {
        let anchor = variable.key.replace('.', "");
        let _ = writeln!(
            text,
            "| `{}` | [{}](#{anchor}) |",
            variable.name, variable.key
        );
    }
    text
}

fn keys_of_other_tools() -> String {
    let mut text = "\n## Keys that load and have no effect\n\nKeys and values below them are not checked.\n\n| key | why |\n|---|---|\n"
        .to_owned();
    for tool_key in KEYS_OF_OTHER_TOOLS {
        let _ = writeln!(text, "| `{}` | {} |", tool_key.path, tool_key.reason);
    }
    text
}
