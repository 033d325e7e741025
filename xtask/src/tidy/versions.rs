//! Programs and charts have one version and one changelog, and the charts use the released image.

use std::path::Path;

use super::Finding;
use crate::release::{Destinations, ReleasedImage, changelog, versions};
use crate::workspace::Source;

pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let version = match versions::current(sources) {
        Ok(version) => version.to_string(),
        Err(error) => return vec![Finding::new("Cargo.toml", 1, format!("{error:#}"))],
    };
    let mut findings: Vec<Finding> = versions::fields(sources)
        .into_iter()
        .filter(|field| field.version != version)
        .map(|field| {
            let message = format!(
                "{} has version {}, and the workspace has {version}; `cargo xtask release` sets all of them",
                field.of, field.version
            );
            Finding::new(field.path, field.line, message)
        })
        .collect();
    findings.extend(own_versions(sources));
    findings.extend(changelog_of(sources, &version));
    findings.extend(other_images(sources));
    findings
}

/// Crates that do not inherit the workspace's version.
fn own_versions(sources: &[Source]) -> Vec<Finding> {
    sources
        .iter()
        .filter(|source| {
            let name = source.path.file_name();
            let is_manifest = name.is_some_and(|name| name == "Cargo.toml");
            is_manifest && source.path != Path::new("Cargo.toml") && !is_fuzzing(source)
        })
        .filter(|source| {
            let mut lines = source.text.lines().map(str::trim);
            lines.clone().any(|line| line == "[package]")
                && !lines.any(|line| line == "version.workspace = true")
        })
        .map(|source| Finding::new(&source.path, 1, "add `version.workspace = true`"))
        .collect()
}

/// Fuzzing needs its own workspace, and is never released.
fn is_fuzzing(source: &Source) -> bool {
    source
        .path
        .components()
        .any(|part| part.as_os_str() == "fuzz")
}

/// The newest section is that of the version that the repository has; before the first release there is none.
fn changelog_of(sources: &[Source], version: &str) -> Option<Finding> {
    let text = changelog::read(sources).ok()?;
    let newest = changelog::newest(text)?;
    (newest != version).then(|| {
        let message =
            format!("the newest section is for {newest}, and the workspace has {version}");
        Finding::new(changelog::PATH, 1, message)
    })
}

/// Charts whose image is not the one that is released with them.
fn other_images(sources: &[Source]) -> Vec<Finding> {
    let destinations = match Destinations::read(sources) {
        Ok(destinations) => destinations,
        Err(error) => return vec![Finding::new("Cargo.toml", 1, format!("{error:#}"))],
    };
    sources
        .iter()
        .filter(|source| source.path.starts_with("charts") && source.path.ends_with("values.yaml"))
        .flat_map(|source| {
            let expected = format!("repository: {}", destinations.image(image_of(&source.path)));
            let lines = source.text.lines().map(str::trim).enumerate();
            lines
                .filter(|(_, line)| line.starts_with("repository: ") && **line != expected)
                .map(|(index, _)| {
                    Finding::new(&source.path, index + 1, format!("must be `{expected}`"))
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The image of a chart's programs.
fn image_of(values: &Path) -> ReleasedImage {
    let chart = values.parent().and_then(Path::file_name);
    match chart.and_then(|name| name.to_str()) {
        Some("standin-hub" | "standin-tunnel-agent") => ReleasedImage::StandindHub,
        _ => ReleasedImage::Standind,
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{shown, source};
    use super::*;

    const MANIFEST: &str = "[workspace.package]\nversion = \"0.2.0\"\n[workspace.metadata.release]\nimage = \"a.b/c\"\ncharts = \"d\"\n";

    fn findings(path: &str, text: &str) -> Vec<String> {
        shown(&check(&[
            source("Cargo.toml", MANIFEST),
            source(path, text),
        ]))
    }

    #[test]
    fn different_versions_are_found() {
        for (path, text, expected) in [
            (
                "charts/a/Chart.yaml",
                "version: 0.2.0\nappVersion: 0.2.0\n",
                "",
            ),
            (
                "charts/a/Chart.yaml",
                "version: 0.1.0\nappVersion: 0.2.0\n",
                "charts/a/Chart.yaml:1: the chart has version 0.1.0, and the workspace has 0.2.0",
            ),
            (
                "charts/a/Chart.yaml",
                "version: 0.2.0\nappVersion: \"0.3.0\"\n",
                "charts/a/Chart.yaml:2: its program has version 0.3.0",
            ),
            (
                "Cargo.lock",
                "[[package]]\nname = \"agent\"\nversion = \"0.1.0\"\n",
                "Cargo.lock:3: the crate agent has version 0.1.0",
            ),
            (
                "Cargo.lock",
                "[[package]]\nname = \"h2\"\nversion = \"0.4.0\"\nsource = \"s\"\n",
                "",
            ),
            (
                "crates/a/Cargo.toml",
                "[package]\nversion = \"0.2.0\"\n",
                "crates/a/Cargo.toml:1: add `version.workspace = true`",
            ),
            (
                "crates/a/Cargo.toml",
                "[package]\nversion.workspace = true\n",
                "",
            ),
            (
                "crates/a/fuzz/Cargo.toml",
                "[package]\nversion = \"0.0.0\"\n",
                "",
            ),
            ("CHANGELOG.md", "# Changelog\n", ""),
            ("CHANGELOG.md", "# Changelog\n\n## 0.2.0 (2026-01-01)\n", ""),
            (
                "CHANGELOG.md",
                "# Changelog\n\n## 0.1.0 (2026-01-01)\n\n## 0.2.0 (2026-01-01)\n",
                "CHANGELOG.md:1: the newest section is for 0.1.0",
            ),
            ("charts/a/values.yaml", "image:\n  repository: a.b/c\n", ""),
            (
                "charts/a/values.yaml",
                "image:\n  repository: other\n",
                "charts/a/values.yaml:2: must be `repository: a.b/c`",
            ),
        ] {
            let found = findings(path, text);
            match expected {
                "" => assert!(found.is_empty(), "{path}: {text}: {found:?}"),
                _ => assert!(
                    found.len() == 1 && found[0].starts_with(expected),
                    "{path}: {text}: {found:?}"
                ),
            }
        }
    }

    #[test]
    fn a_repository_without_a_version_is_found() {
        let found = shown(&check(&[source("Cargo.toml", "[workspace]\n")]));
        assert!(found[0].contains("no version under [workspace.package]"));
    }
}
