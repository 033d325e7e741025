//! The release commit: the version everywhere, and the changelog's fragments as one section.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use semver::Version;

use super::{changelog, check, package, parse_version, versions};
use crate::git::output as git;
use crate::process;
use crate::workspace::{self, Source};

#[derive(Debug, Args)]
pub(crate) struct PrepareArguments {
    /// The version to release
    #[arg(value_name = "VERSION", required = true, value_parser = parse_version)]
    version: Option<Version>,
    /// Do it all in a copy, and leave the repository as it is
    #[arg(long)]
    dry_run: bool,
    /// Package the charts only; the programs and the image must be compiled, which takes long
    #[arg(long)]
    without_programs: bool,
    /// The day of the release, as 2026-01-31; today by default
    #[arg(long, value_name = "DATE")]
    date: Option<String>,
}

/// A change of one file: its new text, or `None` if the file is deleted.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    path: PathBuf,
    text: Option<String>,
}

pub(crate) fn run(arguments: &PrepareArguments, root: &Path, sources: &[Source]) -> Result<()> {
    let version = arguments.version.as_ref().context("name the version")?;
    check(sources, None)?;
    let date = match &arguments.date {
        Some(date) => date.clone(),
        None => today()?,
    };
    let changes = changes(sources, version, &date)?;
    for Change { path, text } in &changes {
        let what = text.as_ref().map_or("removed", |_| "changed");
        println!("{what}: {}", path.display());
    }
    if arguments.dry_run {
        let copy = tempfile::tempdir().context("making a folder for the copy")?;
        copy_files(root, copy.path())?;
        write(copy.path(), &changes)?;
        finish(copy.path(), root, version, arguments)?;
        eprintln!("this was a dry run: nothing in the repository has changed");
        return Ok(());
    }
    ensure_clean(root, version)?;
    write(root, &changes)?;
    finish(root, root, version, arguments)
        .and_then(|()| commit(root, version, &changes))
        .context(
            "nothing was committed; `git restore --staged --worktree .` reverts the changes",
        )?;
    eprintln!(
        "the release commit is made. Have it reviewed and merged as it is; then tag the commit of main that has it, and push the tag {version}"
    );
    Ok(())
}

/// All changes of the release commit. Writes no file.
fn changes(sources: &[Source], version: &Version, date: &str) -> Result<Vec<Change>> {
    let current = versions::current(sources)?;
    let text = changelog::read(sources)?;
    let is_first = changelog::newest(text).is_none();
    ensure!(
        *version > current || (is_first && *version == current),
        "{version} does not come after {current}, which the repository has now"
    );
    let mut changes = Vec::new();
    for source in sources {
        if let Some(text) = versions::with_version(source, version)?
            && text != source.text
        {
            changes.push(Change {
                path: source.path.clone(),
                text: Some(text),
            });
        }
    }
    let fragments = changelog::fragments(sources);
    let section = changelog::section(version, date, &fragments)?;
    changes.push(Change {
        path: changelog::PATH.into(),
        text: Some(changelog::with_section(text, &section)),
    });
    changes.extend(fragments.iter().map(|fragment| Change {
        path: fragment.path.clone(),
        text: None,
    }));
    Ok(changes)
}

/// Checks what was written, and builds the release artifacts from it.
fn finish(
    folder: &Path,
    root: &Path,
    version: &Version,
    arguments: &PrepareArguments,
) -> Result<()> {
    // Cargo itself checks whether the lock file matches the manifest.
    let mut metadata = lab::cargo(folder);
    metadata.args(["metadata", "--locked", "--format-version=1"]);
    process::output(&mut metadata).context("Cargo.lock does not agree with Cargo.toml")?;
    let paths = workspace::files(root)?;
    let paths: Vec<PathBuf> = paths
        .into_iter()
        .filter(|path| folder.join(path).is_file())
        .collect();
    let sources = workspace::sources(folder, &paths)?;
    check(&sources, Some(&version.to_string()))?;
    let output = package::folder(version)?;
    package::make(folder, &sources, &output, !arguments.without_programs)
}

fn write(folder: &Path, changes: &[Change]) -> Result<()> {
    for Change { path, text } in changes {
        let path = folder.join(path);
        match text {
            Some(text) => fs::write(&path, text),
            None => fs::remove_file(&path),
        }
        .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn copy_files(root: &Path, copy: &Path) -> Result<()> {
    for path in workspace::files(root)? {
        let to = copy.join(&path);
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::copy(root.join(&path), &to).with_context(|| format!("copying {}", path.display()))?;
    }
    Ok(())
}

/// Fails if there are uncommitted changes, which would become part of the release or be lost.
fn ensure_clean(root: &Path, version: &Version) -> Result<()> {
    let status = git(root, &["status", "--porcelain"])?;
    ensure!(
        status.is_empty(),
        "there are changes that are not committed; commit or stash them first:\n{status}"
    );
    let tags = git(root, &["tag", "--list", &version.to_string()])?;
    ensure!(tags.is_empty(), "there is a tag {version} already");
    Ok(())
}

fn commit(root: &Path, version: &Version, changes: &[Change]) -> Result<()> {
    let mut command = Command::new("git");
    command.current_dir(root).args(["add", "--all", "--"]);
    command.args(changes.iter().map(|change| &change.path));
    process::run(&mut command)?;
    let message = format!("Release {version}");
    process::run(Command::new("git").current_dir(root).args([
        "commit",
        "--quiet",
        "--message",
        &message,
    ]))
}

fn today() -> Result<String> {
    let date = process::output(Command::new("date").args(["--utc", "+%F"]))?;
    Ok(date.trim().to_owned())
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

    fn repository(changelog: &str) -> Vec<Source> {
        vec![
            source("CHANGELOG.md", changelog),
            source("Cargo.toml", "[workspace.package]\nversion = \"0.1.0\"\n"),
            source("changelog.d/README.md", "What this is.\n"),
            source("changelog.d/lab.added.md", "A lab.\n"),
            source("charts/a/Chart.yaml", "version: 0.1.0\nappVersion: 0.1.0\n"),
            source("charts/a/values.yaml", "version: 0.1.0\n"),
        ]
    }

    #[test]
    fn a_release_changes_versions_and_changelog_and_removes_fragments() {
        let sources = repository("# Changelog\n");
        let changes = changes(&sources, &Version::new(0, 2, 0), "2026-01-31").unwrap();
        let shown: Vec<(String, Option<&str>)> = changes
            .iter()
            .map(|change| (change.path.display().to_string(), change.text.as_deref()))
            .collect();
        let expected = [
            (
                "Cargo.toml",
                Some("[workspace.package]\nversion = \"0.2.0\"\n"),
            ),
            (
                "charts/a/Chart.yaml",
                Some("version: 0.2.0\nappVersion: 0.2.0\n"),
            ),
            (
                "CHANGELOG.md",
                Some("# Changelog\n\n## 0.2.0 (2026-01-31)\n\n### Added\n\n- A lab.\n"),
            ),
            ("changelog.d/lab.added.md", None),
        ];
        assert_eq!(shown, expected.map(|(path, text)| (path.to_owned(), text)));
    }

    #[test]
    fn versions_only_go_up() {
        let first = repository("# Changelog\n");
        let later = repository("# Changelog\n\n## 0.1.0 (2026-01-01)\n\n- One.\n");
        for (sources, version, is_fine) in [
            (&first, Version::new(0, 1, 0), true),
            (&first, Version::new(0, 0, 9), false),
            (&later, Version::new(0, 1, 0), false),
            (&later, Version::new(0, 1, 1), true),
            (&later, Version::parse("0.1.0-rc.1").unwrap(), false),
        ] {
            let made = changes(sources, &version, "2026-01-31");
            assert_eq!(made.is_ok(), is_fine, "{version}: {made:?}");
        }
    }
}
