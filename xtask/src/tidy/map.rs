//! README.md and ARCHITECTURE.md have a maximum length, and every path and name in ARCHITECTURE.md exists.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::Finding;
use crate::workspace::Source;

const MAP: &str = "ARCHITECTURE.md";
const MAX_MAP_WORDS: usize = 4_500;
const README: &str = "README.md";
const MAX_README_LINES: usize = 120;

pub(crate) fn check(sources: &[Source], paths: &[PathBuf]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(readme) = find(sources, README) {
        let lines = readme.text.lines().count();
        if lines > MAX_README_LINES {
            findings.push(Finding::new(
                README,
                MAX_README_LINES + 1,
                format!("{lines} lines; {MAX_README_LINES} are two screens. Move details to docs/"),
            ));
        }
    }
    if let Some(map) = find(sources, MAP) {
        let words = map.text.split_whitespace().count();
        if words > MAX_MAP_WORDS {
            findings.push(Finding::new(
                MAP,
                1,
                format!("{words} words; a map has at most {MAX_MAP_WORDS}. Move details to the crate's lib.rs"),
            ));
        }
        let names = RepositoryNames::new(sources, paths);
        findings.extend(unknown_names(map, &names));
    }
    findings
}

fn find<'a>(sources: &'a [Source], path: &str) -> Option<&'a Source> {
    sources.iter().find(|source| source.path == Path::new(path))
}

/// The paths and names of the repository.
struct RepositoryNames<'a> {
    /// Files and directories.
    paths: HashSet<&'a Path>,
    /// Every word of the code.
    words: HashSet<&'a str>,
}

impl<'a> RepositoryNames<'a> {
    fn new(sources: &'a [Source], paths: &'a [PathBuf]) -> Self {
        let is_code = |source: &&Source| {
            ["rs", "proto", "toml", "yaml", "ts", "tsx"]
                .iter()
                .any(|extension| source.has_extension(extension))
        };
        Self {
            paths: paths.iter().flat_map(|path| path.ancestors()).collect(),
            words: sources
                .iter()
                .filter(is_code)
                .flat_map(|source| source.text.split(|character| !is_word(character)))
                .collect(),
        }
    }

    /// `crates/agent/src/files.rs`, `agent/src/files.rs`, `agent/files` or `files.rs` of a crate.
    fn has_path(&self, text: &str) -> bool {
        let text = text.trim_end_matches('/');
        let (first, rest) = text.split_once('/').unwrap_or((text, ""));
        [
            text.to_owned(),
            format!("crates/{text}"),
            format!("crates/{first}/src/{rest}"),
            format!("xtask/src/{rest}"),
        ]
        .iter()
        .flat_map(|path| [path.clone(), format!("{path}.rs")])
        .any(|path| self.paths.contains(Path::new(&path)))
    }

    /// `Type`, `module::function` or `crate-name`.
    fn has_name(&self, text: &str) -> bool {
        text.split("::").all(|part| self.words.contains(part)) || self.has_path(text)
    }
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn unknown_names(map: &Source, names: &RepositoryNames<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_in_block = false;
    for (index, line) in map.text.lines().enumerate() {
        if line.starts_with("```") {
            is_in_block = !is_in_block;
        }
        if is_in_block {
            continue;
        }
        for span in line.split('`').skip(1).step_by(2) {
            let is_missing = if is_path(span) {
                !names.has_path(span)
            } else {
                is_name(span) && !names.has_name(span)
            };
            if is_missing {
                findings.push(Finding::new(
                    MAP,
                    index + 1,
                    format!("`{span}` is neither a path nor a name of this repository"),
                ));
            }
        }
    }
    findings
}

fn is_path(span: &str) -> bool {
    let is_plain = span
        .chars()
        .all(|character| is_word(character) || "-./".contains(character));
    let is_absolute_or_hidden = span.starts_with('/');
    is_plain && !is_absolute_or_hidden && (span.contains('/') || span.ends_with(".rs"))
}

fn is_name(span: &str) -> bool {
    !span.is_empty()
        && span
            .chars()
            .all(|character| is_word(character) || character == ':')
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{shown, source};
    use super::*;

    fn findings(map: &str) -> Vec<String> {
        let sources = [
            source(MAP, map),
            source("crates/agent/src/files/open.rs", "struct OpenFile;"),
        ];
        let paths: Vec<PathBuf> = sources.iter().map(|source| source.path.clone()).collect();
        shown(&check(&sources, &paths))
    }

    #[test]
    fn paths_and_names_exist() {
        let map = "`crates/agent`, `agent/src/files/open.rs`, `agent/files`, `OpenFile`, `--flag`, `a b`, `/dev/fuse`";
        assert_eq!(findings(map), Vec::<String>::new());
        assert_eq!(findings("```\n`lost`\n```"), Vec::<String>::new());
    }

    #[test]
    fn unknown_paths_and_names_are_found() {
        for span in [
            "crates/lost",
            "agent/files/lost.rs",
            "LostType",
            "open::lost",
        ] {
            let found = findings(&format!("first\nsee `{span}`"));
            assert_eq!(
                found,
                [format!(
                    "{MAP}:2: `{span}` is neither a path nor a name of this repository"
                )]
            );
        }
    }

    #[test]
    fn a_map_that_is_too_long_is_found() {
        let found = findings(&"word ".repeat(MAX_MAP_WORDS + 1));
        assert!(found[0].contains("4501 words"), "{found:?}");
    }

    #[test]
    fn a_readme_that_is_too_long_is_found() {
        let readme = [source(README, &"line\n".repeat(MAX_README_LINES + 1))];
        let found = shown(&check(&readme, &[]));
        assert!(
            found[0].starts_with("README.md:121: 121 lines"),
            "{found:?}"
        );
    }
}
