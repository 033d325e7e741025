//! The project's language: words that STYLE.md's glossary replaces are refused.
//!
//! Two rules. Names (types, constants, modules, flags, variables, configuration keys, metrics) and log messages must not contain an old word as a
//! part. Some phrases are refused everywhere, comments and documents included. [`ALLOWED`] lists what must stay.

use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use super::Finding;
use super::log_events::log_calls;
use crate::workspace::Source;

/// Words that no name of a type, constant, module, flag or metric has as a part, each with a word of the field.
const NAME_PARTS: &[(&[&str], &str)] = &[
    (&["patience", "within"], "timeout, deadline"),
    (&["most"], "max, limit"),
    (&["look", "looks", "looked"], "reconcile, poll, interval"),
    (&["pause", "pauses"], "backoff, delay"),
    (&["farewell"], "shutdown, grace period"),
    (
        &["keeper", "keepers"],
        "reconnector, rotator, supervisor, pool",
    ),
    (
        &["place", "places", "placed"],
        "endpoint, path, span, address",
    ),
    (&["way", "ways"], "route, path, upstream"),
    (&["leg", "legs"], "connection, upstream connection"),
    (&["envoy"], "member clusters"),
    (
        &["arrival", "arrivals", "arrived", "arriving"],
        "incoming or stolen connection, connection metadata",
    ),
    (&["door", "doors"], "listener"),
    (&["asking"], "pending"),
    (&["fate", "fateful"], "reset"),
    (&["wanted", "wishes"], "spec, options"),
    (&["told", "said", "news"], "event, message, report"),
    (
        &["stranger", "strangers", "nobody", "somebody", "whoever"],
        "unauthenticated peer, client, caller",
    ),
    (
        &[
            "story", "stories", "scene", "scenes", "stage", "stages", "world", "worlds",
        ],
        "scenario, setup, namespace, environment",
    ),
    (
        &["plumbing", "guests"],
        "infrastructure, allowed dependencies",
    ),
];

/// Words that no log message has, beyond those of [`NAME_PARTS`].
const LOG_WORDS: &[&str] = &["asked", "tells", "says", "hears", "heard", "comes", "came"];

/// Words of [`NAME_PARTS`] that are ordinary English in a sentence.
const ORDINARY_IN_LOGS: &[&str] = &[
    "within", "most", "way", "place", "placed", "stage", "look", "world", "wanted", "pause",
];

/// Phrases that are refused everywhere, each with what to write instead.
const PHRASES: &[(&str, &str)] = &[
    ("stranger", "unauthenticated peer"),
    ("strangers", "unauthenticated peers"),
    ("somebody", "a client, a caller, a peer"),
    ("nobody", "no client, no caller, no process"),
    ("whoever", "the client, the caller"),
    ("is told", "is notified, receives"),
    ("are told", "are notified, receive"),
    ("looked after", "supervised, maintained"),
    ("looks after", "supervises, maintains"),
    ("asked alone", "the stateful agent"),
    ("look at", "read, inspect, check"),
    ("looks at", "reads, inspects, checks"),
    ("goes on", "continues"),
    ("has come", "has arrived, is connected"),
    ("have come", "have arrived, are connected"),
    ("comes back", "returns, reconnects"),
    ("come back", "return, reconnect"),
    ("to be had", "available"),
    ("on its way", "in flight, pending"),
    ("on their way", "in flight, pending"),
    ("given away", "released, published"),
];

/// A word that stays in files whose path starts so, and why.
struct Allowed {
    path: &'static str,
    word: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "the table's own documentation"))]
    reason: &'static str,
}

#[rustfmt::skip] // A table is read by its columns.
const ALLOWED: &[Allowed] = &[
    Allowed { path: "STYLE.md",                    word: "*", reason: "the glossary names the old words" },
    Allowed { path: "xtask/src/tidy/language.rs",  word: "*", reason: "the rule names the old words" },
    Allowed { path: "crates/lab/src/debian.rs",    word: "nobody", reason: "a user of /etc/passwd" },
    Allowed { path: "schemas",                     word: "pause", reason: "a key of another tool's files, accepted without effect" },
    Allowed { path: "docs/lab.md",                 word: "way", reason: "the flag `--one-way`" },
];

/// Files that others write.
const FOREIGN_FILES: &[&str] = &[
    "Cargo.lock",
    "go.sum",
    "package-lock.json",
    "LICENSE-APACHE",
    "LICENSE-MIT",
];

pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    sources
        .iter()
        .filter(|source| !is_foreign(&source.path))
        .flat_map(|source| {
            let mut findings = phrases(source);
            if source.path.extension().is_some_and(|kind| kind == "rs") {
                findings.extend(rust_names(source));
                findings.extend(log_messages(source));
                findings.extend(module_name(source));
            }
            findings.extend(flags_and_metrics(source));
            if source.path.starts_with("schemas") {
                findings.extend(configuration_keys(source));
            }
            findings
        })
        .collect()
}

fn is_foreign(path: &Path) -> bool {
    let name = path.file_name();
    FOREIGN_FILES
        .iter()
        .any(|foreign| name.is_some_and(|name| name == *foreign))
}

fn is_allowed(path: &Path, word: &str) -> bool {
    ALLOWED.iter().any(|allowed| {
        path.starts_with(allowed.path) && (allowed.word == "*" || allowed.word == word)
    })
}

/// Definitions of types, constants and modules in a Rust file.
fn rust_names(source: &Source) -> Vec<Finding> {
    static DEFINITION: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r"^\s*(?:pub(?:\([a-z: ]+\))? )?(?:struct|enum|trait|type|union|const|static|mod) (\w+)").ok()
    });
    name_findings(source, DEFINITION.as_ref())
}

/// The module that a file is.
fn module_name(source: &Source) -> Option<Finding> {
    let name = source.path.file_stem()?.to_string_lossy();
    name_finding(source, 1, &name)
}

/// Flags such as `--timeout`, environment variables such as `STANDIN_TARGET` and metrics such as `sessions_total`, in any
/// file.
fn flags_and_metrics(source: &Source) -> Vec<Finding> {
    static NAME: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r"(?:^|[\s`\x22'(\[])--([a-z][a-z0-9-]+)|\b(standin_[a-z_]+|STANDIN_[A-Z_]+|[a-z_]+_total)\b")
            .ok()
    });
    name_findings(source, NAME.as_ref())
}

/// The keys of a configuration file, which are the keys of its schema.
fn configuration_keys(source: &Source) -> Vec<Finding> {
    static KEY: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r#"^\s*"([a-z_]+)": \{"#).ok());
    name_findings(source, KEY.as_ref())
}

/// The findings for all names in a file. A group of the pattern captures each.
fn name_findings(source: &Source, pattern: Option<&Regex>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        for captures in pattern
            .into_iter()
            .flat_map(|pattern| pattern.captures_iter(line))
        {
            let name = captures.iter().skip(1).flatten().next();
            findings.extend(name.and_then(|name| name_finding(source, index + 1, name.as_str())));
        }
    }
    findings
}

fn name_finding(source: &Source, line: usize, name: &str) -> Option<Finding> {
    parts(name).into_iter().find_map(|part| {
        let (_, instead) = NAME_PARTS
            .iter()
            .find(|(words, _)| words.contains(&part.as_str()))?;
        (!is_allowed(&source.path, &part)).then(|| {
            Finding::new(
                &source.path,
                line,
                format!("the name `{name}` has the word `{part}`; the glossary has: {instead}"),
            )
        })
    })
}

/// The words of a name in any case: `MaxHeaders`, `MAX_HEADERS`, `max-headers`.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut after_lower_case = false;
    for character in name.chars() {
        let begins = character.is_uppercase() && after_lower_case;
        if !character.is_alphanumeric() || begins {
            parts.push(String::new());
        }
        if character.is_alphanumeric()
            && let Some(part) = parts.last_mut()
        {
            part.extend(character.to_lowercase());
        }
        after_lower_case = character.is_lowercase() || character.is_numeric();
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// The texts in calls of `tracing`'s macros.
fn log_messages(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for call in log_calls(&source.text) {
        for message in call.texts() {
            let old = parts(message)
                .into_iter()
                .find(|word| is_old_in_logs(word) && !is_allowed(&source.path, word));
            findings.extend(old.map(|word| {
                Finding::new(
                    &source.path,
                    call.line,
                    format!("the log message {message:?} has the word `{word}`"),
                )
            }));
        }
    }
    findings
}

fn is_old_in_logs(word: &str) -> bool {
    let is_name_part = NAME_PARTS.iter().any(|(words, _)| words.contains(&word));
    LOG_WORDS.contains(&word) || is_name_part && !ORDINARY_IN_LOGS.contains(&word)
}

/// Phrases in a text of any kind, also across the line breaks of comments and in names.
fn phrases(source: &Source) -> Vec<Finding> {
    static PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| {
        let alternatives: Vec<String> = PHRASES
            .iter()
            .map(|(phrase, _)| phrase.replace(' ', r"(?:[\s_]|//[/!]?|#)+"))
            .collect();
        Regex::new(&format!(
            r"(?i)(?:\b|_)({})(?:\b|_)",
            alternatives.join("|")
        ))
        .ok()
    });
    let Some(pattern) = &*PATTERN else {
        return Vec::new();
    };
    pattern
        .captures_iter(&source.text)
        .filter_map(|captures| captures.get(1))
        .filter_map(|found| {
            let words: Vec<String> = parts(found.as_str());
            let phrase = words.join(" ");
            let (_, instead) = PHRASES.iter().find(|(known, _)| *known == phrase)?;
            (!is_allowed(&source.path, &phrase)).then(|| {
                Finding::new(
                    &source.path,
                    line_at(&source.text, found.start()),
                    format!("`{phrase}`; write for example: {instead}"),
                )
            })
        })
        .collect()
}

fn line_at(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::super::test_support::source;
    use super::*;

    fn is_found(path: &str, text: &str) -> bool {
        !check(&[source(path, text)]).is_empty()
    }

    #[test]
    fn names_with_old_words_are_found() {
        for text in [
            "pub(crate) struct Place;",
            "enum AgentKeeper {",
            "const CONNECT_PATIENCE: u32 = 1;",
            "    const MOST_HEADERS: usize = 1;",
            "mod doors;",
            "run `standin exec --patience 3`",
            "    refused_strangers_total: Counter,",
        ] {
            assert!(is_found("a.rs", text), "{text}");
        }
        assert!(is_found("agent/keeper.rs", ""));
        assert!(is_found("a.md", "set `STANDIN_INCOMING_ANSWER_WITHIN`"));
        let key = "  \"answer_within\": {";
        assert!(is_found("schemas/a.json", key) && !is_found("a.json", key));
        for text in [
            "struct Placeholder;",
            "struct Gateway;",
            "const ALMOST: u32 = 1;",
            "let place = 1;",
            "mod always;",
            "--timeout, --waypoint",
        ] {
            assert!(!is_found("a.rs", text), "{text}");
        }
    }

    #[test]
    fn phrases_are_found_in_comments_names_and_across_lines() {
        for text in [
            "// Nobody listens.",
            "/// The client is\n    /// told so.",
            "# what goes\n# on",
            "fn an_agent_that_comes_back() {}",
            "fn somebody_connects() {}",
        ] {
            assert!(is_found("a.rs", text), "{text}");
        }
        for text in ["// It is toldless.", "// The list is long. Told apart."] {
            assert!(!is_found("a.rs", text), "{text}");
        }
    }

    #[test]
    fn log_messages_with_old_words_are_found() {
        for text in [
            r#"tracing::info!("the operator is asked again");"#,
            "tracing::warn!(\n    error = chain(&error),\n    \"it was told so\"\n);",
        ] {
            assert!(is_found("a.rs", text), "{text}");
        }
        for text in [
            r#"tracing::info!(addr = %addr, "listening");"#,
            r#"let text = "asked"; tracing::info!("x");"#,
        ] {
            assert!(!is_found("a.rs", text), "{text}");
        }
    }

    #[test]
    fn every_exception_has_a_reason() {
        for allowed in ALLOWED {
            assert!(!allowed.reason.is_empty(), "{}", allowed.path);
        }
    }
}
