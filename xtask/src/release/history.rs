//! The release commit of a version: the one commit of the main branch that adds the version's section to the changelog.
//!
//! A section is added together with the version in all files, because `cargo xtask tidy` compares them. Only the first
//! release may leave the version as it was.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::changelog;
use crate::git::output as git;

/// A commit of the main branch that has changed the changelog.
struct Revision {
    commit: String,
    /// The version of the newest section.
    newest: Option<String>,
}

/// Fails unless the commit that is checked out is the release commit of the tag's version.
pub(super) fn check(root: &Path, tag: &str, main: &str) -> Result<()> {
    let is_shallow = git(root, &["rev-parse", "--is-shallow-repository"])?;
    ensure!(
        is_shallow == "false",
        "this clone has only a part of the history; `git fetch --unshallow` fetches the rest (`fetch-depth: 0` in a workflow)"
    );
    let revisions = revisions(root, main)?;
    let released = release_commit(&revisions, tag).with_context(|| {
        format!(
            "no commit of {main} releases {tag}; merge the release commit first, and then tag it"
        )
    })?;
    let head = git(root, &["rev-parse", "HEAD"])?;
    ensure!(
        head == released,
        "this is commit {head}, and the release commit of {tag} on {main} is {released}; `git tag {tag} {released}` tags it"
    );
    let tagged = format!("refs/tags/{tag}^{{commit}}");
    if let Ok(tagged) = git(root, &["rev-parse", "--verify", "--quiet", &tagged]) {
        ensure!(
            tagged == head,
            "the tag {tag} is on {tagged}, and this is the release commit {head}; move the tag"
        );
    }
    Ok(())
}

/// The commits that have changed the changelog, newest first. Of a merged branch, this is the merge.
fn revisions(root: &Path, main: &str) -> Result<Vec<Revision>> {
    let list = ["rev-list", "--first-parent", main, "--", changelog::PATH];
    let commits = git(root, &list).with_context(|| {
        format!("there is no branch {main} here; fetch it, or name another one with --main")
    })?;
    let revisions = commits.lines().map(|commit| {
        // A commit may also have removed the file.
        let text = git(root, &["show", &format!("{commit}:{}", changelog::PATH)]);
        let newest = text
            .ok()
            .and_then(|text| changelog::newest(&text).map(str::to_owned));
        Revision {
            commit: commit.to_owned(),
            newest,
        }
    });
    Ok(revisions.collect())
}

/// The first commit with the section. Later ones may have corrected the text.
fn release_commit<'a>(revisions: &'a [Revision], version: &str) -> Option<&'a str> {
    let has_section = |revision: &&Revision| revision.newest.as_deref() == Some(version);
    let later = revisions
        .iter()
        .skip_while(|revision| !has_section(revision));
    let first = later.take_while(has_section).last()?;
    Some(&first.commit)
}

#[cfg(test)]
mod tests;
