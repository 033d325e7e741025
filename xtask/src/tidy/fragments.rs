//! Changelog fragments: one file for each change that a user would notice.

use std::path::Path;

use super::Finding;
use crate::workspace::Source;

const FOLDER: &str = "changelog.d";
/// In the order in which a changelog lists them.
pub(crate) const KINDS: &[&str] = &[
    "security", "added", "changed", "removed", "fixed", "internal",
];

/// The kind of change that a fragment is about; nothing for other files.
pub(crate) fn kind_of(path: &Path) -> Option<&str> {
    let name = path.strip_prefix(FOLDER).ok()?.to_str()?;
    let (_, kind) = name.strip_suffix(".md")?.rsplit_once('.')?;
    KINDS.contains(&kind).then_some(kind)
}

pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    sources
        .iter()
        .filter_map(|source| {
            let name = source.path.strip_prefix(FOLDER).ok()?;
            let problem = problem(name, &source.text)?;
            Some(Finding::new(&source.path, 1, problem))
        })
        .collect()
}

fn problem(name: &Path, text: &str) -> Option<String> {
    let name = name.to_str()?;
    if name == "README.md" {
        return None;
    }
    let parts: Vec<&str> = name.split('.').collect();
    let [slug, kind, "md"] = parts[..] else {
        return Some(format!(
            "the name must be <slug>.<kind>.md, with a kind of {}",
            KINDS.join(", ")
        ));
    };
    if !is_slug(slug) {
        return Some(
            "the first part of the name must be lower-case words joined with hyphens".to_owned(),
        );
    }
    if !KINDS.contains(&kind) {
        return Some(format!(
            "`{kind}` is not a kind of change; the kinds are {}",
            KINDS.join(", ")
        ));
    }
    if !text.trim_end().ends_with('.') {
        return Some("must be one or more sentences that end with a period".to_owned());
    }
    None
}

fn is_slug(text: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty()
            && word
                .chars()
                .all(|character| character.is_ascii_lowercase() || character.is_ascii_digit())
    };
    text.split('-').all(is_word)
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{shown, source};
    use super::*;

    #[test]
    fn names_and_sentences_are_checked() {
        let sentence = "The lab starts two clusters.\n";
        for (name, text, problem) in [
            ("lab-2.added.md", sentence, ""),
            ("README.md", "# What this is", ""),
            ("lab.md", sentence, "the name must be <slug>.<kind>.md"),
            (
                "lab.added.txt",
                sentence,
                "the name must be <slug>.<kind>.md",
            ),
            ("old/lab.added.md", sentence, "the first part of the name"),
            ("The_Lab.added.md", sentence, "the first part of the name"),
            ("lab.new.md", sentence, "`new` is not a kind of change"),
            ("lab.fixed.md", "a lab\n", "must be one or more sentences"),
            ("lab.fixed.md", "", "must be one or more sentences"),
        ] {
            let found = shown(&check(&[source(&format!("changelog.d/{name}"), text)]));
            match problem {
                "" => assert!(found.is_empty(), "{name}: {found:?}"),
                _ => assert!(
                    found[0].starts_with(&format!("changelog.d/{name}:1: {problem}")),
                    "{name}: {found:?}"
                ),
            }
        }
    }

    #[test]
    fn other_folders_are_ignored() {
        assert!(check(&[source("docs/anything.md", "")]).is_empty());
    }
}
