//! The changes of a branch since it left its base.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::git::output as git;
use crate::release::changelog;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Diff {
    /// Files that were added or changed.
    pub(super) written: Vec<PathBuf>,
    pub(super) removed: Vec<PathBuf>,
    /// Whether the changelog has a section for another version, which only a release commit adds.
    pub(super) is_release: bool,
}

impl Diff {
    pub(super) fn read(root: &Path, base: &str) -> Result<Self> {
        let base = git(root, &["merge-base", base, "HEAD"])
            .with_context(|| format!("comparing with {base}; a workflow needs `fetch-depth: 0`"))?;
        // A renamed file is one that is removed and one that is added.
        let options = ["diff", "--name-status", "--no-renames", "-z", &base, "HEAD"];
        let mut diff = Self::parse(&git(root, &options)?);
        let newest = |commit: &str| {
            // There may be no changelog.
            let text = git(root, &["show", &format!("{commit}:{}", changelog::PATH)]).ok()?;
            changelog::newest(&text).map(str::to_owned)
        };
        let head = newest("HEAD");
        diff.is_release = head.is_some() && head != newest(&base);
        Ok(diff)
    }

    /// Status and path alternate, each with a zero byte at its end.
    fn parse(text: &str) -> Self {
        let mut diff = Self::default();
        let mut parts = text.split_terminator('\0');
        while let (Some(status), Some(path)) = (parts.next(), parts.next()) {
            match status {
                "D" => diff.removed.push(path.into()),
                _ => diff.written.push(path.into()),
            }
        }
        diff
    }

    /// All files, also those that were removed.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.written
            .iter()
            .chain(&self.removed)
            .map(PathBuf::as_path)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_changes_of_a_branch_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let run = |arguments: &str| {
            let identity = "-c user.name=Anna -c user.email=anna@example.com";
            let all: Vec<&str> = identity.split(' ').chain(arguments.split(' ')).collect();
            git(root, &all).unwrap()
        };
        let commit = |files: &[(&str, &str)]| {
            for (path, text) in files {
                fs::write(root.join(path), text).unwrap();
            }
            run("add --all");
            run("commit --quiet -m Change");
        };
        run("init --quiet -b main");
        commit(&[
            ("kept", "1"),
            ("removed", "1"),
            (changelog::PATH, "# Changelog\n"),
        ]);
        run("checkout --quiet -b change");
        fs::remove_file(root.join("removed")).unwrap();
        commit(&[("with a space", "1"), ("kept", "2")]);
        run("checkout --quiet main");
        commit(&[("on-main", "1")]);
        run("checkout --quiet change");

        let expected = Diff {
            written: vec!["kept".into(), "with a space".into()],
            removed: vec!["removed".into()],
            is_release: false,
        };
        assert_eq!(Diff::read(root, "main").unwrap(), expected);
        commit(&[(changelog::PATH, "# Changelog\n\n## 0.2.0 (2026-01-01)\n")]);
        assert!(Diff::read(root, "main").unwrap().is_release);
        assert!(Diff::read(root, "other").is_err());
    }
}
