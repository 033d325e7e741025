//! Log events: their messages are constant, and docs/observability.md lists those of level info and above.
//!
//! Calls that name the crate, such as `tracing::info!`, are found, and those of the operator's `audit!`. There are no others.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use super::Finding;
use crate::workspace::Source;

const PAGE: &str = "docs/observability.md";

/// The component in whose log the events of a crate are. Crates that only log below info are not listed.
const COMPONENTS: &[(&str, &str)] = &[
    ("crates/operator/src", "operator"),
    // The operator logs these, too.
    ("crates/admission/src", "agent"),
    ("crates/agent/src", "agent"),
    ("crates/server/src", "agent"),
    ("crates/splitter/src", "agent"),
    ("crates/tunnel-agent/src", "tunnel-agent"),
    ("crates/cli/src", "standin"),
    ("crates/cluster/src", "standin"),
    ("crates/interceptor/src", "standin"),
    ("crates/proxy/src", "standin"),
];
/// The component of events with the target `audit`.
const AUDIT: &str = "audit";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    message: String,
    level: String,
    component: String,
}

/// An event and the line that logs or documents it.
struct Located<'a> {
    event: Event,
    source: &'a Source,
    line: usize,
}

/// A call of one of `tracing`'s macros, or of `audit!`.
pub(super) struct LogCall<'a> {
    pub(super) line: usize,
    level: &'a str,
    is_audit: bool,
    arguments: Vec<&'a str>,
}

impl LogCall<'_> {
    /// The message, which is the last argument, unless it is computed or contains values.
    fn message(&self) -> Option<&str> {
        let message = self.arguments.last()?;
        let message = message.strip_prefix('"')?.strip_suffix('"')?;
        (!message.contains(['{', '"'])).then_some(message)
    }

    /// Whether it is in the definition of a macro, whose calls have the message.
    fn is_in_macro(&self) -> bool {
        let message = self.arguments.last();
        message.is_some_and(|message| message.ends_with("$message"))
    }

    /// All string literals.
    pub(super) fn texts(&self) -> Vec<&str> {
        static TEXT: LazyLock<Option<Regex>> =
            LazyLock::new(|| Regex::new(r#""((?:[^"\\]|\\.)*)""#).ok());
        let Some(text) = &*TEXT else {
            return Vec::new();
        };
        self.arguments
            .iter()
            .flat_map(|argument| text.captures_iter(argument))
            .filter_map(|captures| Some(captures.get(1)?.as_str()))
            .collect()
    }
}

pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut logged = Vec::new();
    for source in sources.iter().filter(|source| is_production_code(source)) {
        let calls = log_calls(production_part(&source.text)).into_iter();
        for call in calls.filter(|call| !call.is_in_macro()) {
            let Some(message) = call.message() else {
                findings.push(Finding::new(
                    &source.path,
                    call.line,
                    "the message of a log event must be a literal without values; values are fields",
                ));
                continue;
            };
            let component = component_of(source).filter(|_| is_listed(call.level));
            if let Some(component) = component {
                let component = if call.is_audit { AUDIT } else { component };
                logged.push(Located {
                    event: Event {
                        message: message.to_owned(),
                        level: call.level.to_owned(),
                        component: component.to_owned(),
                    },
                    source,
                    line: call.line,
                });
            }
        }
    }
    let page = sources.iter().find(|source| source.path.ends_with(PAGE));
    let documented: Vec<Located<'_>> = page.into_iter().flat_map(documented_events).collect();
    findings.extend(
        missing(&logged, &documented)
            .map(|located| finding(located, &format!("is not listed in {PAGE}"))),
    );
    findings.extend(
        missing(&documented, &logged).map(|located| finding(located, "is not logged by the code")),
    );
    findings
}

fn finding(located: &Located<'_>, problem: &str) -> Finding {
    let Event {
        message,
        level,
        component,
    } = &located.event;
    Finding::new(
        &located.source.path,
        located.line,
        format!("the log event `{message}` ({level}, {component}) {problem}"),
    )
}

/// The events that the others do not have.
fn missing<'a>(
    events: &'a [Located<'a>],
    others: &'a [Located<'a>],
) -> impl Iterator<Item = &'a Located<'a>> {
    let others: BTreeSet<&Event> = others.iter().map(|other| &other.event).collect();
    events
        .iter()
        .filter(move |located| !others.contains(&located.event))
}

fn is_listed(level: &str) -> bool {
    matches!(level, "info" | "warn" | "error")
}

fn component_of(source: &Source) -> Option<&'static str> {
    let found = COMPONENTS
        .iter()
        .find(|(folder, _)| source.path.starts_with(folder));
    found.map(|(_, component)| *component)
}

fn is_production_code(source: &Source) -> bool {
    let path = &source.path;
    let is_test = path.components().any(|part| {
        ["tests", "tests.rs"]
            .iter()
            .any(|test| part.as_os_str() == *test)
    });
    source.has_extension("rs") && path.starts_with("crates") && !is_test
}

fn production_part(text: &str) -> &str {
    let tests = text.find("#[cfg(test)]\nmod tests {");
    &text[..tests.unwrap_or(text.len())]
}

/// All log calls in a Rust file.
pub(super) fn log_calls(text: &str) -> Vec<LogCall<'_>> {
    static CALL: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"(?:tracing::(trace|debug|info|warn|error)|\baudit)!\(").ok());
    let Some(call) = &*CALL else {
        return Vec::new();
    };
    let calls = call.captures_iter(text).filter_map(|captures| {
        let (start, level) = (captures.get(0)?, captures.get(1));
        let arguments = arguments(&text[start.end()..]);
        Some(LogCall {
            line: text[..start.start()].matches('\n').count() + 1,
            level: level.map_or("info", |level| level.as_str()),
            is_audit: level.is_none() || arguments.contains(&"target: \"audit\""),
            arguments,
        })
    });
    calls.collect()
}

/// The arguments up to the closing parenthesis of a call.
fn arguments(text: &str) -> Vec<&str> {
    let mut arguments = Vec::new();
    let (mut start, mut depth) = (0, 0_u32);
    let (mut is_text, mut is_escaped) = (false, false);
    for (index, character) in text.char_indices() {
        if is_text {
            is_text = is_escaped || character != '"';
            is_escaped = !is_escaped && character == '\\';
            continue;
        }
        match character {
            '"' => is_text = true,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth > 0 => depth -= 1,
            ')' => {
                arguments.push(text[start..index].trim());
                break;
            }
            ',' if depth == 0 => {
                arguments.push(text[start..index].trim());
                start = index + 1;
            }
            _ => {}
        }
    }
    arguments.retain(|argument| !argument.is_empty());
    arguments
}

/// The events in the page's tables whose first column is `message`. A table without the columns `level` and `component` is
/// about the audit log.
fn documented_events(page: &Source) -> Vec<Located<'_>> {
    let mut events = Vec::new();
    let mut header: Option<Vec<&str>> = None;
    for (index, line) in page.text.lines().enumerate() {
        let Some(row) = line.strip_prefix("| ") else {
            if !line.starts_with('|') {
                header = None;
            }
            continue;
        };
        let cells: Vec<&str> = row
            .split(" | ")
            .map(|cell| cell.trim_end_matches(" |"))
            .collect();
        let Some(columns) = &header else {
            header = Some(cells);
            continue;
        };
        if columns.first() != Some(&"message") {
            continue;
        }
        let cell = |name: &str, default| {
            let position = columns.iter().position(|column| *column == name);
            position.map_or(default, |position| {
                cells.get(position).copied().unwrap_or_default()
            })
        };
        let messages = cells.first().into_iter().flat_map(|cell| cell.split('`'));
        for message in messages.skip(1).step_by(2) {
            for level in cell("level", "info").split(", ") {
                for component in cell("component", AUDIT).split(", ") {
                    events.push(Located {
                        event: Event {
                            message: message.to_owned(),
                            level: level.to_owned(),
                            component: component.to_owned(),
                        },
                        source: page,
                        line: index + 1,
                    });
                }
            }
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{shown, source};
    use super::*;

    const CODE: &str = r#"
fn serve(text: &str) {
    tracing::info!(
        address = %settings.listen(1, ","),
        "listening"
    );
    tracing::info!(target: "audit", user, "session requested");
    tracing::debug!("connection failed");
    let failed = |error| tracing::warn!(%error, "accept failed");
}

#[cfg(test)]
mod tests {
    fn logs() {
        tracing::info!("only a test {}", 1);
    }
}
"#;
    const EVENTS: &str = "
| message | level | component | meaning |
|---|---|---|---|
| `listening` | info | operator | ready |
| `accept failed` | warn | operator | no file descriptors |

| message | when |
|---|---|
| `session requested` | a client connects |

| metric | meaning |
|---|---|
| `connections` | a gauge |
";

    fn findings(code: &str, events: &str) -> Vec<String> {
        let sources = [
            source("crates/operator/src/server.rs", code),
            source(PAGE, events),
        ];
        shown(&check(&sources))
    }

    #[test]
    fn events_that_are_listed_are_accepted() {
        assert_eq!(findings(CODE, EVENTS), Vec::<String>::new());
    }

    #[test]
    fn events_that_are_not_listed_are_found() {
        for (from, to, expected) in [
            (
                "`listening`",
                "`starting`",
                [
                    "crates/operator/src/server.rs:3: the log event `listening` (info, operator) is not listed in docs/observability.md",
                    "docs/observability.md:4: the log event `starting` (info, operator) is not logged by the code",
                ],
            ),
            (
                "| warn |",
                "| error |",
                [
                    "crates/operator/src/server.rs:9: the log event `accept failed` (warn, operator) is not listed in docs/observability.md",
                    "docs/observability.md:5: the log event `accept failed` (error, operator) is not logged by the code",
                ],
            ),
            (
                "`session requested`",
                "`session ended`",
                [
                    "crates/operator/src/server.rs:7: the log event `session requested` (info, audit) is not listed in docs/observability.md",
                    "docs/observability.md:9: the log event `session ended` (info, audit) is not logged by the code",
                ],
            ),
        ] {
            assert_eq!(findings(CODE, &EVENTS.replace(from, to)), expected);
        }
    }

    #[test]
    fn events_of_the_audit_macro_are_listed() {
        let code = r#"
macro_rules! audit {
    ($session:ident, $($field:ident = $value:expr,)* $message:literal) => {
        tracing::info!(target: "audit", session = $session.name, $($field = $value,)* $message)
    };
}
fn ended(session: &Session) { audit!(session, "session requested"); }
"#;
        let events = EVENTS.split_once("| message | when").unwrap().1;
        let events = format!("| message | when{events}");
        assert_eq!(findings(code, &events), Vec::<String>::new());
        let other = code.replace("session requested", "session ended");
        assert_eq!(
            findings(&other, &events)[0],
            "crates/operator/src/server.rs:7: the log event `session ended` (info, audit) is not listed in docs/observability.md"
        );
    }

    #[test]
    fn a_cell_can_have_several_values() {
        let code = r#"
tracing::info!("port claimed"); tracing::warn!("port claimed");
tracing::info!("port released"); tracing::warn!("port released");
"#;
        let events = "
| message | level | component |
|---|---|---|
| `port claimed`, `port released` | info, warn | operator |
";
        assert_eq!(findings(code, events), Vec::<String>::new());
    }

    #[test]
    fn messages_with_values_are_found() {
        for call in [
            r#"tracing::debug!("connected to {peer}");"#,
            "tracing::info!(text);",
            "tracing::warn!(%error);",
            r#"tracing::error!("{} failed", name);"#,
            "tracing::info!();",
        ] {
            let found = findings(call, "");
            assert!(
                found[0].starts_with("crates/operator/src/server.rs:1: the message of a log event"),
                "{call}: {found:?}"
            );
        }
    }

    #[test]
    fn tests_and_other_components_are_not_listed() {
        let call = r#"tracing::info!("event");"#;
        for path in [
            "crates/operator/src/server/tests.rs",
            "crates/operator/tests/all.rs",
            "crates/lab/src/wire.rs",
            "xtask/src/tidy.rs",
        ] {
            assert_eq!(shown(&check(&[source(path, call)])), Vec::<String>::new());
        }
    }

    #[test]
    fn texts_may_contain_parentheses_and_escaped_quotes() {
        let calls = log_calls(r#"tracing::info!(a = f(")"), b = "\"(", "done"); more("x");"#);
        let texts: Vec<Vec<&str>> = calls.iter().map(LogCall::texts).collect();
        assert_eq!(texts, [[")", r#"\"("#, "done"]]);
        assert_eq!(calls[0].message(), Some("done"));
    }
}
