//! The changelog: fragments become a section, and a section becomes the notes of a release.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use semver::Version;

use crate::tidy::fragments;
use crate::workspace::Source;

pub(crate) const PATH: &str = "CHANGELOG.md";

/// The kind of changes that only developers of this repository notice. Release notes leave it out.
const INTERNAL: &str = "internal";

/// The changelog's text before the first section while there is no release.
const NOTHING_YET: &str = "There is no release yet; the changes of the next one are in [changelog.d](changelog.d/README.md).";
const WHAT_IS_NEXT: &str =
    "The changes of the next release are in [changelog.d](changelog.d/README.md).";

/// The fragments among the files of the repository.
pub(crate) fn fragments(sources: &[Source]) -> Vec<&Source> {
    sources
        .iter()
        .filter(|source| fragments::kind_of(&source.path).is_some())
        .collect()
}

/// The section of a release, made of its fragments: kind by kind, each in the order of their names.
pub(crate) fn section(version: &Version, date: &str, fragments: &[&Source]) -> Result<String> {
    ensure!(
        !fragments.is_empty(),
        "there is nothing to release: changelog.d has no fragment"
    );
    let mut text = format!("## {version} ({date})\n");
    for kind in fragments::KINDS {
        let of_kind: Vec<&&Source> = fragments
            .iter()
            .filter(|fragment| fragments::kind_of(&fragment.path) == Some(kind))
            .collect();
        if of_kind.is_empty() {
            continue;
        }
        text += &format!("\n### {}\n\n", title(kind));
        for fragment in of_kind {
            text += &format!("- {}\n", as_item(&fragment.text));
        }
    }
    Ok(text)
}

/// The changelog with one more section, above all others.
pub(crate) fn with_section(changelog: &str, section: &str) -> String {
    let changelog = changelog.replace(NOTHING_YET, WHAT_IS_NEXT);
    let (head, earlier) = match changelog.find("\n## ") {
        Some(index) => changelog.split_at(index + 1),
        None => (changelog.as_str(), ""),
    };
    let mut text = format!("{}\n\n{}", head.trim_end(), section.trim_end());
    text.push('\n');
    if !earlier.is_empty() {
        text.push('\n');
        text += earlier;
    }
    text
}

/// The version of the newest section, if there is one.
pub(crate) fn newest(changelog: &str) -> Option<&str> {
    let heading = changelog
        .lines()
        .find_map(|line| line.strip_prefix("## "))?;
    heading.split_whitespace().next()
}

/// The release notes: the version's section without the heading and without internal changes.
pub(crate) fn notes(changelog: &str, version: &Version) -> Result<String> {
    let heading = format!("## {version} (");
    let section = changelog
        .lines()
        .skip_while(|line| !line.starts_with(&heading))
        .skip(1)
        .take_while(|line| !line.starts_with("## "));
    let mut is_internal = false;
    let mut public_lines = Vec::new();
    for line in section {
        if let Some(kind) = line.strip_prefix("### ") {
            is_internal = kind == title(INTERNAL);
        }
        if !is_internal {
            public_lines.push(line);
        }
    }
    let text = public_lines.join("\n").trim().to_owned();
    ensure!(
        changelog.lines().any(|line| line.starts_with(&heading)),
        "{PATH} has no section for {version}"
    );
    Ok(text + "\n")
}

/// The changelog among the files of the repository.
pub(crate) fn read(sources: &[Source]) -> Result<&str> {
    sources
        .iter()
        .find(|source| source.path == Path::new(PATH))
        .map(|source| source.text.as_str())
        .with_context(|| format!("there is no {PATH}"))
}

/// The title of a kind's list: "Added".
fn title(kind: &str) -> String {
    let mut letters = kind.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}

/// A fragment as a list item; further lines are indented.
fn as_item(text: &str) -> String {
    let mut lines = text.trim().lines();
    let mut item = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        item.push('\n');
        if !line.is_empty() {
            item += "  ";
        }
        item += line;
    }
    // Links of a fragment are seen from its folder, those of the changelog from the top.
    item.replace("](../", "](")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source {
            path: path.into(),
            text: text.to_owned(),
        }
    }

    fn repository() -> Vec<Source> {
        vec![
            source("changelog.d/README.md", "# What this is\n"),
            source("changelog.d/b.fixed.md", "A thing works.\n"),
            source("changelog.d/lab.added.md", "A [lab](../docs/lab.md).\n"),
            source("changelog.d/more.added.md", "Two lines.\n\nAnd more.\n"),
            source("changelog.d/tests.internal.md", "Quicker tests.\n"),
            source("docs/lab.md", "no fragment\n"),
        ]
    }

    const SECTION: &str = "## 0.2.0 (2026-01-31)\n\n### Added\n\n- A [lab](docs/lab.md).\n- Two lines.\n\n  And more.\n\n\
        ### Fixed\n\n- A thing works.\n\n### Internal\n\n- Quicker tests.\n";

    #[test]
    fn fragments_become_a_section() {
        let sources = repository();
        let made = section(&Version::new(0, 2, 0), "2026-01-31", &fragments(&sources)).unwrap();
        assert_eq!(made, SECTION);
        let error = section(&Version::new(0, 2, 0), "2026-01-31", &[]).unwrap_err();
        assert!(error.to_string().contains("nothing to release"));
    }

    #[test]
    fn sections_are_newest_first() {
        let first = format!("# Changelog\n\nNewest first. {NOTHING_YET}\n");
        assert_eq!(newest(&first), None);
        let second = with_section(&first, "## 0.1.0 (2026-01-01)\n\n### Added\n\n- One.\n");
        let head = format!("# Changelog\n\nNewest first. {WHAT_IS_NEXT}\n\n");
        assert_eq!(
            second,
            format!("{head}## 0.1.0 (2026-01-01)\n\n### Added\n\n- One.\n")
        );
        let third = with_section(&second, SECTION);
        assert_eq!(
            third,
            format!("{head}{SECTION}\n## 0.1.0 (2026-01-01)\n\n### Added\n\n- One.\n")
        );
        assert_eq!(newest(&third), Some("0.2.0"));
        assert_eq!(
            notes(&third, &Version::new(0, 1, 0)).unwrap(),
            "### Added\n\n- One.\n"
        );
    }

    #[test]
    fn notes_leave_out_internal_changes() {
        let changelog = with_section("# Changelog\n", SECTION);
        let text = notes(&changelog, &Version::new(0, 2, 0)).unwrap();
        assert!(text.starts_with("### Added\n\n- A [lab]"), "{text}");
        assert!(text.ends_with("- A thing works.\n"), "{text}");
        let error = notes(&changelog, &Version::new(0, 3, 0)).unwrap_err();
        assert_eq!(error.to_string(), "CHANGELOG.md has no section for 0.3.0");
    }
}
