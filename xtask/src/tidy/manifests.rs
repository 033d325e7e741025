//! Every crate takes the workspace's lints. A crate without them would silently not be checked.

use super::Finding;
use crate::workspace::Source;

pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    sources
        .iter()
        .filter(|source| {
            source
                .path
                .file_name()
                .is_some_and(|name| name == "Cargo.toml")
        })
        .filter(|source| source.text.lines().any(|line| line.trim() == "[package]"))
        .filter(|source| !takes_workspace_lints(&source.text))
        .map(|source| Finding::new(&source.path, 1, "add `[lints]` with `workspace = true`"))
        .collect()
}

fn takes_workspace_lints(manifest: &str) -> bool {
    manifest
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "[lints]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .any(|line| line == "workspace = true")
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{shown, source};
    use super::*;

    #[test]
    fn packages_without_the_lints_are_found() {
        let sources = [
            source("Cargo.toml", "[workspace]\n"),
            source(
                "crates/good/Cargo.toml",
                "[package]\n\n[lints]\nworkspace = true\n\n[dependencies]\n",
            ),
            source("crates/none/Cargo.toml", "[package]\nname = \"none\"\n"),
            source(
                "crates/other/Cargo.toml",
                "[package]\n[lints]\n[dependencies]\nworkspace = true\n",
            ),
        ];
        assert_eq!(
            shown(&check(&sources)),
            [
                "crates/none/Cargo.toml:1: add `[lints]` with `workspace = true`",
                "crates/other/Cargo.toml:1: add `[lints]` with `workspace = true`",
            ]
        );
    }
}
