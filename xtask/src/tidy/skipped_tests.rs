//! Tests that pass without running their body: a test whose requirements are missing must be ignored, or fail.
//!
//! This file is not checked: its own tests show the pattern.

use std::sync::LazyLock;

use regex::Regex;

use super::Finding;
use crate::workspace::Source;

pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    static EARLY_RETURN: LazyLock<Option<Regex>> = LazyLock::new(|| {
        // `let Some(x) = … else { return; };` and `if !is_root() { eprintln!(…); return; }`
        Regex::new(r"(?:\belse|\bif [^{};]*(?:root|euid|privilege|available|supported)[^{};]*) \{\s*(?:eprintln!\([^;]*;\s*)?return;?\s*\}").ok()
    });
    let Some(early_return) = &*EARLY_RETURN else {
        return Vec::new();
    };
    sources
        .iter()
        .filter(|source| source.has_extension("rs") && !source.path.ends_with(file!()))
        .flat_map(|source| {
            test_functions(&source.text)
                .filter_map(|(start, body)| {
                    let found = early_return.find(body)?;
                    let line = source.text[..start + found.start()].matches('\n').count() + 1;
                    Some(Finding::new(
                        &source.path,
                        line,
                        "a test that returns early passes without running; mark it #[ignore = \"needs …\"] or let it fail",
                    ))
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The functions with an attribute `#[test]` or `#[tokio::test…]`, each with where it starts.
fn test_functions(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let starts = text
        .match_indices("#[test]")
        .chain(text.match_indices("#[tokio::test"));
    starts.map(|(start, _)| {
        let rest = &text[start..];
        let indent = text[..start]
            .chars()
            .rev()
            .take_while(|c| *c == ' ')
            .count();
        let end = format!("\n{}}}\n", " ".repeat(indent));
        let length = rest.find(&end).map_or(rest.len(), |at| at + end.len());
        (start, &rest[..length])
    })
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{shown, source};
    use super::*;

    #[test]
    fn tests_that_return_early_are_found() {
        let text = "
    #[test]
    fn without_root() {
        let Some(environment) = environment() else {
            return;
        };
    }

    #[tokio::test]
    async fn also_without() {
        if !geteuid().is_root() {
            eprintln!(\"needs root\");
            return;
        }
    }
";
        let found = shown(&check(&[source("a.rs", text)]));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("a.rs:4: a test that returns early"));
    }

    #[test]
    fn other_functions_and_loops_may_return() {
        let text = "
fn serve() {
    let Some(connection) = accept() else { return };
}

#[test]
fn counts() {
    let Some(first) = list.first() else {
        panic!(\"the list is empty\");
    };
}
";
        assert!(check(&[source("a.rs", text)]).is_empty());
    }
}
