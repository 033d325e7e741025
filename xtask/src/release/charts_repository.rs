//! The public repository of charts: a copy of the folder `charts` from the commits of releases.
//!
//! Nothing else is ever committed there. The content comes from the tagged commit, never from the working copy, so that
//! it has no changes from after the release.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use semver::Version;

use super::versions;
use crate::git::output as git;
use crate::workspace::Source;

/// The trailer of each commit message, with the source commit.
const TRAILER: &str = "Source-Commit: ";

#[derive(Debug, Args)]
pub(crate) struct PushArguments {
    /// The tag of the release
    #[arg(long, value_name = "TAG")]
    tag: String,
    /// The repository to push to, instead of the one that Cargo.toml names
    #[arg(long, value_name = "URL")]
    remote: Option<String>,
    /// Replace the content even if it was not pushed from here
    #[arg(long)]
    adopt: bool,
}

pub(crate) fn run(arguments: &PushArguments, root: &Path, remote: &str) -> Result<()> {
    let remote = arguments.remote.as_deref().unwrap_or(remote);
    push(root, remote, &arguments.tag, arguments.adopt)
}

fn push(root: &Path, remote: &str, tag: &str, adopt: bool) -> Result<()> {
    let commit = git(
        root,
        &[
            "rev-parse",
            "--verify",
            &format!("refs/tags/{tag}^{{commit}}"),
        ],
    )
    .with_context(|| format!("there is no tag {tag} here"))?;
    let version = Version::parse(tag).with_context(|| format!("{tag} is not a version"))?;
    let clone = tempfile::tempdir().context("making a folder for the clone")?;
    let clone = clone.path();
    git(
        root,
        &["clone", "--quiet", remote, &clone.to_string_lossy()],
    )
    .with_context(|| format!("cloning {remote}"))?;
    let is_empty = git(clone, &["rev-parse", "--verify", "--quiet", "HEAD"]).is_err();
    if !is_empty {
        if !adopt {
            ensure_ours(clone)?;
        }
        ensure_not_older(clone, &version)?;
    }
    git(clone, &["checkout", "--quiet", "-B", "main"])?;
    replace_content(root, clone, &commit)?;
    let chart_versions = chart_versions(clone)?;
    ensure!(
        !chart_versions.is_empty() && chart_versions.iter().all(|found| *found == version),
        "the charts of the tagged commit have the versions {chart_versions:?}, not {version}"
    );
    commit_as_author(root, clone, &commit, &version)?;
    tag_and_push(clone, tag)?;
    eprintln!("{remote} has the charts of {tag}, as they are in {commit}");
    Ok(())
}

/// Fails if the newest commit was made by hand: its change would be lost silently.
fn ensure_ours(clone: &Path) -> Result<()> {
    let message = git(clone, &["log", "-1", "--format=%B"])?;
    if message.lines().any(|line| line.starts_with(TRAILER)) {
        return Ok(());
    }
    let newest = git(clone, &["log", "-1", "--format=%h %s (%an)"])?;
    bail!(
        "the newest commit of the repository of charts was not pushed from here: {newest}. Bring its change into \
         `charts/` of this repository, and then push with --adopt"
    );
}

/// Fails if a newer version is published: users who follow the main branch would be downgraded.
fn ensure_not_older(clone: &Path, version: &Version) -> Result<()> {
    for found in chart_versions(clone)? {
        ensure!(
            found <= *version,
            "the repository of charts has {found} already, which is newer than {version}"
        );
    }
    Ok(())
}

/// Replaces the content with the folder `charts` of the commit. Files that it does not have are deleted.
fn replace_content(root: &Path, clone: &Path, commit: &str) -> Result<()> {
    git(
        clone,
        &["rm", "-r", "--quiet", "--force", "--ignore-unmatch", "."],
    )?;
    let mut archive = Command::new("git")
        .current_dir(root)
        .args(["archive", "--format=tar", &format!("{commit}:charts")])
        .stdout(Stdio::piped())
        .spawn()
        .context("starting git archive")?;
    let stdout = archive.stdout.take().context("no output of git archive")?;
    let mut unpack = Command::new("tar");
    unpack
        .args(["--extract", "--file=-", "--directory"])
        .arg(clone)
        .stdin(stdout);
    let status = unpack.status().context("starting tar")?;
    ensure!(
        archive.wait()?.success() && status.success(),
        "the folder `charts` of {commit} cannot be read"
    );
    git(clone, &["add", "--all", "."]).map(drop)
}

/// Commits with the author of the release commit.
fn commit_as_author(root: &Path, clone: &Path, commit: &str, version: &Version) -> Result<()> {
    if git(clone, &["status", "--porcelain"])?.is_empty() {
        return Ok(());
    }
    let of_release =
        |format: &str| git(root, &["log", "-1", &format!("--format={format}"), commit]);
    let name = format!("user.name={}", of_release("%an")?);
    let email = format!("user.email={}", of_release("%ae")?);
    let message = format!("Release {version}\n\n{TRAILER}{commit}");
    let arguments = [
        "-c",
        &name,
        "-c",
        &email,
        "commit",
        "--quiet",
        "--message",
        &message,
    ];
    git(clone, &arguments).map(drop)
}

/// Pushes branch and tag atomically, so that a release never starts from one of them. It can be repeated.
fn tag_and_push(clone: &Path, tag: &str) -> Result<()> {
    let reference = format!("refs/tags/{tag}");
    match git(
        clone,
        &[
            "rev-parse",
            "--verify",
            "--quiet",
            &format!("{reference}^{{commit}}"),
        ],
    ) {
        Ok(tagged) => {
            let head = git(clone, &["rev-parse", "HEAD"])?;
            ensure!(
                tagged == head,
                "the repository of charts has a tag {tag} with other content; a published version must not change"
            );
        }
        Err(_) => {
            git(clone, &["tag", tag])?;
        }
    }
    let push = [
        "push",
        "--quiet",
        "--atomic",
        "origin",
        "HEAD:refs/heads/main",
        &reference,
    ];
    git(clone, &push).map(drop)
}

fn chart_versions(clone: &Path) -> Result<Vec<Version>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(clone)? {
        let chart = entry?.path().join("Chart.yaml");
        let Ok(text) = fs::read_to_string(&chart) else {
            continue;
        };
        let name = chart.parent().and_then(Path::file_name).unwrap_or_default();
        let source = Source {
            path: Path::new("charts").join(name).join("Chart.yaml"),
            text,
        };
        for field in versions::fields(&[source]) {
            let version = Version::parse(&field.version);
            found.push(version.with_context(|| format!("the version of {}", chart.display()))?);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
