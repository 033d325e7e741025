//! Every field of the repository's files that has the version. There is one version, for the programs and for the charts.
//!
//! Reading and writing are both here, so that each field that is written is also checked.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use semver::Version;

use crate::workspace::Source;

const MANIFEST: &str = "Cargo.toml";
const LOCK: &str = "Cargo.lock";

/// A line of a file with the version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionField {
    pub(crate) path: PathBuf,
    /// Counted from 1.
    pub(crate) line: usize,
    /// What it is the version of.
    pub(crate) of: String,
    pub(crate) version: String,
}

/// The version of the repository, which is that of its workspace.
pub(crate) fn current(sources: &[Source]) -> Result<Version> {
    let manifest = sources
        .iter()
        .find(|source| source.path == Path::new(MANIFEST))
        .context("there is no Cargo.toml at the top")?;
    let field = in_manifest(&manifest.text)
        .into_iter()
        .next()
        .context("Cargo.toml has no version under [workspace.package]")?;
    Version::parse(&field.version)
        .with_context(|| format!("the version of Cargo.toml, {:?}", field.version))
}

/// All version fields, in the order of the files.
pub(crate) fn fields(sources: &[Source]) -> Vec<VersionField> {
    sources
        .iter()
        .flat_map(|source| {
            fields_in(&source.path, &source.text)
                .into_iter()
                .map(|field| VersionField {
                    path: source.path.clone(),
                    ..field
                })
        })
        .collect()
}

/// A file's text with another version in all of its version fields; `None` for a file without any.
pub(crate) fn with_version(source: &Source, version: &Version) -> Result<Option<String>> {
    let fields = fields_in(&source.path, &source.text);
    if fields.is_empty() {
        return Ok(None);
    }
    let mut lines: Vec<String> = source.text.split('\n').map(str::to_owned).collect();
    for field in &fields {
        let line = &mut lines[field.line - 1];
        *line = line.replacen(&field.version, &version.to_string(), 1);
    }
    let text = lines.join("\n");
    let written = fields_in(&source.path, &text);
    ensure!(
        written
            .iter()
            .all(|field| field.version == version.to_string()),
        "{}: the new version is not read back",
        source.path.display()
    );
    Ok(Some(text))
}

/// Whether a path is that of a chart of ours.
pub(crate) fn is_chart(path: &Path) -> bool {
    path.starts_with("charts")
        && path.file_name().is_some_and(|name| name == "Chart.yaml")
        && path.components().count() == 3
}

fn fields_in(path: &Path, text: &str) -> Vec<VersionField> {
    if path == Path::new(MANIFEST) {
        in_manifest(text)
    } else if path == Path::new(LOCK) {
        in_lock(text)
    } else if is_chart(path) {
        in_chart(text)
    } else {
        Vec::new()
    }
}

fn field(index: usize, of: impl Into<String>, version: &str) -> VersionField {
    VersionField {
        path: PathBuf::new(),
        line: index + 1,
        of: of.into(),
        version: version.trim().trim_matches('"').to_owned(),
    }
}

/// The version that all crates take with `version.workspace = true`.
fn in_manifest(text: &str) -> Vec<VersionField> {
    let mut section = "";
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            section = line.trim();
        } else if section == "[workspace.package]"
            && let Some(version) = line.strip_prefix("version = ")
        {
            found.push(field(index, "the workspace", version));
        }
    }
    found
}

/// Packages of the lock file without a source are ours.
fn in_lock(text: &str) -> Vec<VersionField> {
    let mut found = Vec::new();
    let mut package: Option<(String, Option<VersionField>, bool)> = None;
    let mut finish = |package: &mut Option<(String, Option<VersionField>, bool)>| {
        if let Some((name, Some(version), false)) = package.take() {
            let of = format!("the crate {name}");
            found.push(VersionField { of, ..version });
        }
    };
    for (index, line) in text.lines().enumerate() {
        if line == "[[package]]" {
            finish(&mut package);
            package = Some((String::new(), None, false));
        } else if let Some((name, version, is_foreign)) = &mut package {
            if let Some(value) = line.strip_prefix("name = ") {
                *name = value.trim_matches('"').to_owned();
            } else if let Some(value) = line.strip_prefix("version = ") {
                *version = Some(field(index, "", value));
            } else if line.starts_with("source = ") {
                *is_foreign = true;
            }
        }
    }
    finish(&mut package);
    found
}

/// A chart has the version of the program that it installs.
fn in_chart(text: &str) -> Vec<VersionField> {
    let kinds = [("version: ", "the chart"), ("appVersion: ", "its program")];
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for (key, of) in kinds {
            if let Some(version) = line.strip_prefix(key) {
                found.push(field(index, of, version));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST_TEXT: &str = "[workspace]\n[workspace.package]\nversion = \"0.1.0\"\n[workspace.dependencies]\nversion = \"9\"\n";
    const LOCK_TEXT: &str = "version = 4\n\n[[package]]\nname = \"agent\"\nversion = \"0.1.0\"\ndependencies = [\n \"anyhow\",\n]\n\n\
        [[package]]\nname = \"anyhow\"\nversion = \"0.1.0\"\nsource = \"registry\"\n\n[[package]]\nname = \"xtask\"\nversion = \"0.1.0\"\n";
    const CHART_TEXT: &str =
        "apiVersion: v2\nname: one\n# version: 7\nversion: 0.1.0\nappVersion: \"0.1.0\"\n";

    fn source(path: &str, text: &str) -> Source {
        Source {
            path: path.into(),
            text: text.to_owned(),
        }
    }

    fn repository() -> Vec<Source> {
        vec![
            source("Cargo.lock", LOCK_TEXT),
            source("Cargo.toml", MANIFEST_TEXT),
            source("charts/one/Chart.yaml", CHART_TEXT),
            source("charts/one/files/Chart.yaml", CHART_TEXT),
            source("crates/agent/Cargo.toml", "version = \"5\"\n"),
        ]
    }

    #[test]
    fn every_version_field_is_found_and_no_other() {
        let found: Vec<String> = fields(&repository())
            .iter()
            .map(|field| format!("{}:{} {}", field.path.display(), field.line, field.of))
            .collect();
        assert_eq!(
            found,
            [
                "Cargo.lock:5 the crate agent",
                "Cargo.lock:17 the crate xtask",
                "Cargo.toml:3 the workspace",
                "charts/one/Chart.yaml:4 the chart",
                "charts/one/Chart.yaml:5 its program",
            ]
        );
        assert!(
            fields(&repository())
                .iter()
                .all(|field| field.version == "0.1.0")
        );
        assert_eq!(current(&repository()).unwrap(), Version::new(0, 1, 0));
    }

    #[test]
    fn a_new_version_changes_version_fields_and_nothing_else() {
        let version = Version::parse("1.2.3-rc.1").unwrap();
        let mut changed = Vec::new();
        for source in repository() {
            let Some(text) = with_version(&source, &version).unwrap() else {
                continue;
            };
            let differing = source
                .text
                .lines()
                .zip(text.lines())
                .filter(|(before, after)| before != after)
                .count();
            assert_eq!(source.text.lines().count(), text.lines().count());
            changed.push((source.path.display().to_string(), differing));
        }
        let expected = [
            ("Cargo.lock", 2),
            ("Cargo.toml", 1),
            ("charts/one/Chart.yaml", 2),
        ];
        assert_eq!(
            changed,
            expected.map(|(path, count)| (path.to_owned(), count))
        );
    }
}
