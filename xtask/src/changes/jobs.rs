//! Which jobs of CI the changed files need.
//!
//! The quick checks of all files always run. The tests of the code and of the charts take long, so they run only if
//! something that they test has changed.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use super::diff::Diff;
use crate::workspace::Source;

/// The program that the chart installs.
const PROGRAM_OF_THE_CHART: &str = "server";

/// What the job of the charts uses besides the charts and their program.
const TOOLS_OF_THE_CHART: &[&str] = &[
    "xtask",
    "proto",
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    ".ci/chart",
    ".github/workflows/charts.yml",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Jobs {
    /// Every test of the code.
    pub(super) code: bool,
    /// The installation of the charts, and the tests on clusters.
    pub(super) charts: bool,
    /// What a release commit needs before it is tagged.
    pub(super) release: bool,
}

impl Jobs {
    pub(super) const ALL: Self = Self {
        code: true,
        charts: true,
        release: false,
    };

    pub(super) fn needed(diff: &Diff, sources: &[Source]) -> Self {
        let inputs = chart_inputs(sources);
        let is_input = |path: &Path| inputs.iter().any(|input| path.starts_with(input));
        Self {
            code: diff.paths().any(is_code),
            charts: diff
                .paths()
                .any(|path| is_input(path) && !is_for_readers(path)),
            release: diff.is_release,
        }
    }
}

/// The form of `$GITHUB_OUTPUT`.
impl fmt::Display for Jobs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            code,
            charts,
            release,
        } = self;
        writeln!(formatter, "code={code}\ncharts={charts}\nrelease={release}")
    }
}

/// Whether the tests of the code could have another result. They compile no chart, and the quick checks compare pages with
/// the code.
fn is_code(path: &Path) -> bool {
    !is_for_readers(path) && !path.starts_with("charts")
}

/// Text for people, and workflows of other repositories, which neither a program nor a chart contains.
fn is_for_readers(path: &Path) -> bool {
    let is_page = path.extension().is_some_and(|extension| extension == "md");
    let name = path.file_name().and_then(|name| name.to_str());
    is_page
        || path.starts_with("charts/.github")
        || name.is_some_and(|name| name.starts_with("LICENSE-"))
}

/// The files and folders whose change may change what the job of the charts finds.
fn chart_inputs(sources: &[Source]) -> BTreeSet<PathBuf> {
    let mut inputs: BTreeSet<PathBuf> = TOOLS_OF_THE_CHART.iter().map(PathBuf::from).collect();
    inputs.insert("charts".into());
    add_crate(PROGRAM_OF_THE_CHART, sources, &mut inputs);
    inputs
}

/// Adds the folder of a crate, and of the crates of this workspace that it imports.
fn add_crate(name: &str, sources: &[Source], inputs: &mut BTreeSet<PathBuf>) {
    let folder = Path::new("crates").join(name);
    let manifest = folder.join("Cargo.toml");
    if !inputs.insert(folder) {
        return;
    }
    let source = sources.iter().find(|source| source.path == manifest);
    let manifest: toml::Table = source
        .and_then(|source| toml::from_str(&source.text).ok())
        .unwrap_or_default();
    // The build of a program also runs build scripts; its tests are not a part of it.
    for section in ["dependencies", "build-dependencies"] {
        let dependencies = manifest.get(section).and_then(toml::Value::as_table);
        for dependency in dependencies.into_iter().flat_map(toml::Table::values) {
            let path = dependency.get("path").and_then(toml::Value::as_str);
            if let Some(name) = path.and_then(|path| path.strip_prefix("../")) {
                add_crate(name, sources, inputs);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::Repository;
    use crate::workspace;

    #[test]
    fn jobs_run_only_for_what_they_test() {
        let repository = Repository::read(&workspace::root().unwrap()).unwrap();
        let needed = |path: &str| {
            let diff = Diff {
                written: vec!["docs/operator.md".into(), path.into()],
                ..Diff::default()
            };
            let jobs = Jobs::needed(&diff, repository.sources());
            (jobs.code, jobs.charts)
        };
        for (path, expected) in [
            ("README.md", (false, false)),
            ("changelog.d/x.fixed.md", (false, false)),
            ("LICENSE-MIT", (false, false)),
            ("charts/README.md", (false, false)),
            ("charts/.github/workflows/release.yml", (false, false)),
            ("charts/standin-operator/values.yaml", (false, true)),
            ("charts/standin-operator/Chart.yaml", (false, true)),
            ("crates/interceptor/src/lib.rs", (true, false)),
            ("crates/e2e/tests/scenarios.rs", (true, false)),
            ("web/monitor/src/app.tsx", (true, false)),
            (".github/workflows/ci.yml", (true, false)),
            (".github/workflows/charts.yml", (true, true)),
            ("crates/server/src/main.rs", (true, true)),
            ("crates/operator/src/lib.rs", (true, true)),
            // Imported by a crate that the server imports.
            ("crates/splitter/src/lib.rs", (true, true)),
            ("proto/session.proto", (true, true)),
            ("xtask/src/image.rs", (true, true)),
            ("Cargo.lock", (true, true)),
            (".ci/chart", (true, true)),
        ] {
            assert_eq!(needed(path), expected, "{path}");
        }
    }

    #[test]
    fn a_removed_file_is_a_change() {
        let diff = Diff {
            removed: vec!["charts/standin-operator/templates/guard.yaml".into()],
            is_release: true,
            ..Diff::default()
        };
        let jobs = Jobs::needed(&diff, &[]);
        assert_eq!(jobs.to_string(), "code=false\ncharts=true\nrelease=true\n");
    }
}
