//! Whether a pull request needs a changelog fragment, and has one.

use std::fmt;
use std::path::{Path, PathBuf};

use super::diff::Diff;
use crate::tidy::{dependencies, fragments};

/// The label that says that users notice nothing.
const LABEL: &str = "no-changelog";

/// Folders outside of `crates` whose content is released. In `charts`, each chart has its own.
const RELEASED: &[&str] = &["proto", "schemas", "web/monitor/src"];

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Present(PathBuf),
    /// A release joins the fragments into the changelog.
    Release,
    Labelled,
    /// Nothing that is released has changed.
    NotNeeded,
    /// A released file that has changed.
    Missing(PathBuf),
}

pub(super) fn decide(diff: &Diff, labels: &[String]) -> Verdict {
    let mut written = diff.written.iter();
    if diff.is_release {
        return Verdict::Release;
    }
    if let Some(fragment) = written.find(|path| fragments::kind_of(path).is_some()) {
        return Verdict::Present(fragment.clone());
    }
    if labels.iter().any(|label| label == LABEL) {
        return Verdict::Labelled;
    }
    match diff.paths().find(|path| is_released(path)) {
        Some(path) => Verdict::Missing(path.to_owned()),
        None => Verdict::NotNeeded,
    }
}

/// Whether users get the file, or what is compiled from it.
fn is_released(path: &Path) -> bool {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    match parts[..] {
        ["crates", name, "src", ..] => {
            let is_test = |part: &&str| matches!(*part, "tests" | "tests.rs");
            dependencies::is_released(name) && !parts.iter().any(is_test)
        }
        ["charts", chart, _, ..] => !chart.starts_with('.'),
        _ => RELEASED.iter().any(|folder| path.starts_with(folder)),
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Present(path) => {
                write!(formatter, "the changelog fragment is {}", path.display())
            }
            Self::Release => formatter.write_str("a release commit needs no changelog fragment"),
            Self::Labelled => write!(
                formatter,
                "the label {LABEL} says that users notice nothing"
            ),
            Self::NotNeeded => formatter.write_str("nothing that is released has changed"),
            Self::Missing(path) => write!(
                formatter,
                "{} has changed, which users may notice, and there is no changelog fragment. Add a file as in \
                 changelog.d/README.md; if users notice nothing, set the label {LABEL}",
                path.display()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diff(paths: &[&str]) -> Diff {
        Diff {
            written: paths.iter().map(PathBuf::from).collect(),
            ..Diff::default()
        }
    }

    #[test]
    fn released_files_need_a_fragment() {
        for (path, is_needed) in [
            ("crates/agent/src/files.rs", true),
            ("crates/cli/src/main.rs", true),
            ("crates/agent/src/files/tests.rs", false),
            ("crates/agent/src/files/tests/large.rs", false),
            ("crates/agent/tests/target/files.rs", false),
            ("crates/agent/Cargo.toml", false),
            ("crates/lab/src/lib.rs", false),
            ("crates/e2e/src/lib.rs", false),
            ("charts/standin-operator/values.yaml", true),
            ("charts/standin-operator/templates/guard.yaml", true),
            ("charts/README.md", false),
            ("charts/.github/workflows/release.yml", false),
            ("proto/session.proto", true),
            ("web/monitor/src/app.tsx", true),
            ("web/monitor/tests/page.spec.ts", false),
            ("docs/operator.md", false),
            ("xtask/src/main.rs", false),
        ] {
            let expected = match is_needed {
                true => Verdict::Missing(path.into()),
                false => Verdict::NotNeeded,
            };
            assert_eq!(decide(&diff(&["README.md", path]), &[]), expected);
        }
    }

    #[test]
    fn a_fragment_a_label_or_a_release_suffices() {
        let code = "crates/agent/src/files.rs";
        let fragment = "changelog.d/large-files.fixed.md";
        let with_fragment = diff(&[fragment, code]);
        assert_eq!(
            decide(&with_fragment, &[]),
            Verdict::Present(fragment.into())
        );
        let page = diff(&["changelog.d/README.md", code]);
        assert_eq!(decide(&page, &[]), Verdict::Missing(code.into()));
        let labels = ["bug", "no-changelog"].map(str::to_owned);
        assert_eq!(decide(&diff(&[code]), &labels), Verdict::Labelled);
        assert_eq!(
            decide(&diff(&[code]), &labels[..1]),
            Verdict::Missing(code.into())
        );
        // A fragment of an earlier change that is removed is none of this change.
        let removes = Diff {
            removed: vec![fragment.into(), code.into()],
            ..Diff::default()
        };
        assert_eq!(decide(&removes, &[]), Verdict::Missing(code.into()));
        let release = Diff {
            is_release: true,
            ..removes
        };
        assert_eq!(decide(&release, &[]), Verdict::Release);
    }
}
