//! `cargo xtask tidy`: checks the rules of this repository that the compiler does not check.
//!
//! Each rule is a module with a pure function from the repository's content to findings. Sizes are
//! different: they are only reported and never fail.

pub(crate) mod dependencies;
pub(crate) mod fragments;
mod language;
mod links;
mod log_events;
mod machine_specific;
mod manifests;
mod map;
mod sizes;
mod skipped_tests;
mod versions;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::generate;
use crate::workspace::{self, Source};

/// A violation of a rule, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: PathBuf,
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: impl Into<PathBuf>, line: usize, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}:{}: {}",
            self.path.display(),
            self.line,
            self.message
        )
    }
}

pub(crate) fn run() -> Result<ExitCode> {
    let repository = Repository::read(&workspace::root()?)?;
    let findings = findings(&repository)?;
    for finding in &findings {
        println!("{finding}");
    }
    for line in sizes::report(&repository.sources) {
        eprintln!("long: {line}");
    }
    eprintln!("tidy: {} to change", findings.len());
    Ok(ExitCode::from(u8::from(!findings.is_empty())))
}

/// All violations, in the order of the files.
pub(crate) fn findings(repository: &Repository) -> Result<Vec<Finding>> {
    let Repository {
        root,
        paths,
        sources,
    } = repository;
    let mut findings = dependencies::check(&dependencies::read_graph(root)?);
    findings.extend(manifests::check(sources));
    findings.extend(fragments::check(sources));
    findings.extend(versions::check(sources));
    findings.extend(machine_specific::check(sources));
    findings.extend(language::check(sources));
    findings.extend(links::check(sources, paths));
    findings.extend(log_events::check(sources));
    findings.extend(map::check(sources, paths));
    findings.extend(skipped_tests::check(sources));
    let stale =
        generate::stale_files(root).context("making the generated files, to compare them")?;
    findings.extend(
        stale
            .into_iter()
            .map(|(path, _)| Finding::new(path, 1, "not up to date; run `cargo xtask generate`")),
    );
    findings.sort();
    Ok(findings)
}

/// Files that disagree about the version, for a release.
pub(crate) fn version_findings(sources: &[Source]) -> Vec<Finding> {
    versions::check(sources)
}

/// The content of the repository, which the rules check.
#[derive(Debug)]
pub(crate) struct Repository {
    root: PathBuf,
    /// Every file, relative to the top.
    paths: Vec<PathBuf>,
    /// Every text file.
    sources: Vec<Source>,
}

impl Repository {
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let paths = workspace::files(root)?;
        let sources = workspace::sources(root, &paths)?;
        Ok(Self {
            root: root.to_path_buf(),
            paths,
            sources,
        })
    }

    pub(crate) fn sources(&self) -> &[Source] {
        &self.sources
    }
}

#[cfg(test)]
mod test_support {
    use super::{Finding, Source};

    pub(crate) fn source(path: &str, text: &str) -> Source {
        Source {
            path: path.into(),
            text: text.to_owned(),
        }
    }

    pub(crate) fn shown(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }
}
