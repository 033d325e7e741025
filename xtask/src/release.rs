//! `cargo xtask release`: one version for the programs and the charts, from the commit to the release artifacts.
//!
//! A release is a commit that sets the version everywhere and joins the changelog's fragments, and a tag with the
//! version's name. The tag triggers `.github/workflows/release.yml`. Each of its steps is a command here, so that it can
//! be tried on any machine. CONTRIBUTING.md lists the steps in order.

pub(crate) mod changelog;
mod charts_repository;
mod history;
mod package;
mod prepare;
pub(crate) mod versions;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use semver::Version;
use serde::Deserialize;

use crate::tidy::{self, Repository};
use crate::workspace::{self, Source};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ReleaseArguments {
    #[command(subcommand)]
    step: Option<Step>,
    #[command(flatten)]
    prepare: prepare::PrepareArguments,
}

#[derive(Debug, Subcommand)]
enum Step {
    /// Fail unless every version and the changelog agree
    Check(CheckArguments),
    /// Print the release notes: the version's section of the changelog without internal changes
    Notes,
    /// Print the name of an image of the version
    ImageName {
        /// Which image: that of agents and the operator, or that of the hub and its tunnel agents
        #[arg(value_enum, default_value_t = ReleasedImage::Standind)]
        image: ReleasedImage,
    },
    /// Print the address from which Helm gets the charts
    ChartsIndex,
    /// Build the release artifacts: programs, image, charts and their checksums
    Package {
        /// The output folder; by default one with the version's name in cargo's target directory
        #[arg(long, value_name = "FOLDER")]
        output: Option<PathBuf>,
        /// Only the charts
        #[arg(long)]
        without_programs: bool,
    },
    /// Push the charts, as they are in a tagged commit, to the public repository of charts
    PushCharts(charts_repository::PushArguments),
}

/// The images of a release.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ReleasedImage {
    Standind,
    StandindHub,
}

#[derive(Debug, Args)]
struct CheckArguments {
    /// The tag of the release: the version. This commit must be the release commit on the main branch
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// The branch with the release commit
    #[arg(
        long,
        value_name = "BRANCH",
        default_value = "origin/main",
        requires = "tag"
    )]
    main: String,
    /// Check the content of a release commit before it is merged: a section of the changelog, and no fragment left
    #[arg(long, conflicts_with = "tag")]
    release_commit: bool,
}

/// Where a release is published, from the workspace's manifest.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Destinations {
    /// The image's name, without a tag.
    pub(crate) image: String,
    /// The git repository of the charts.
    pub(crate) charts: String,
}

impl Destinations {
    /// The name of an image, without a tag.
    pub(crate) fn image(&self, image: ReleasedImage) -> String {
        match image {
            ReleasedImage::Standind => self.image.clone(),
            ReleasedImage::StandindHub => format!("{}-hub", self.image),
        }
    }

    pub(crate) fn read(sources: &[Source]) -> Result<Self> {
        let manifest = sources
            .iter()
            .find(|source| source.path == Path::new("Cargo.toml"))
            .context("there is no Cargo.toml at the top")?;
        let mut manifest: toml::Value =
            toml::from_str(&manifest.text).context("reading Cargo.toml")?;
        let mut part = &mut manifest;
        for key in ["workspace", "metadata", "release"] {
            part = part
                .get_mut(key)
                .context("Cargo.toml has no [workspace.metadata.release]")?;
        }
        part.clone()
            .try_into()
            .context("reading [workspace.metadata.release] of Cargo.toml")
    }
}

pub(crate) fn run(arguments: &ReleaseArguments) -> Result<ExitCode> {
    let root = workspace::root()?;
    let repository = Repository::read(&root)?;
    let sources = repository.sources();
    match &arguments.step {
        None => prepare::run(&arguments.prepare, &root, sources)?,
        Some(Step::Check(arguments)) => run_check(arguments, &root, sources)?,
        Some(Step::Notes) => {
            let version = versions::current(sources)?;
            print!("{}", changelog::notes(changelog::read(sources)?, &version)?);
        }
        Some(Step::ImageName { image }) => println!("{}", image_name(sources, *image)?),
        Some(Step::ChartsIndex) => {
            println!("{}", charts_index(&Destinations::read(sources)?.charts)?);
        }
        Some(Step::Package {
            output,
            without_programs,
        }) => {
            let folder = match output {
                Some(folder) => folder.clone(),
                None => package::folder(&versions::current(sources)?)?,
            };
            package::make(&root, sources, &folder, !without_programs)?;
        }
        Some(Step::PushCharts(arguments)) => {
            let remote = Destinations::read(sources)?.charts;
            charts_repository::run(arguments, &root, &remote)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run_check(arguments: &CheckArguments, root: &Path, sources: &[Source]) -> Result<()> {
    let version = versions::current(sources)?;
    let tag = match arguments.release_commit {
        true => Some(version.to_string()),
        false => arguments.tag.clone(),
    };
    check(sources, tag.as_deref())?;
    if let Some(tag) = &arguments.tag {
        history::check(root, tag, &arguments.main)?;
    }
    eprintln!("every version is {version}");
    Ok(())
}

/// The name of an image of the repository's version.
fn image_name(sources: &[Source], image: ReleasedImage) -> Result<String> {
    let image = Destinations::read(sources)?.image(image);
    Ok(format!("{image}:{}", versions::current(sources)?))
}

/// The page of the repository of charts, which has its index.
fn charts_index(repository: &str) -> Result<String> {
    let path = repository.strip_prefix("git@github.com:");
    let path = path.and_then(|path| path.strip_suffix(".git"));
    let (owner, name) = path
        .and_then(|path| path.split_once('/'))
        .with_context(|| format!("{repository} is not like git@github.com:OWNER/NAME.git"))?;
    Ok(format!("https://{owner}.github.io/{name}"))
}

/// Whether everything agrees, and with a tag whether this is the content of that release's commit.
fn check(sources: &[Source], tag: Option<&str>) -> Result<()> {
    let findings = tidy::version_findings(sources);
    for finding in &findings {
        println!("{finding}");
    }
    ensure!(findings.is_empty(), "the versions above do not agree");
    let Some(tag) = tag else {
        return Ok(());
    };
    let version = versions::current(sources)?;
    ensure!(
        tag == version.to_string(),
        "the tag is {tag}, and the version of the tagged commit is {version}; tag the commit that `cargo xtask release {tag}` made"
    );
    changelog::notes(changelog::read(sources)?, &version)?;
    let left = changelog::fragments(sources);
    ensure!(
        left.is_empty(),
        "{} was added after the release commit; tag the release commit itself",
        left.first()
            .map(|fragment| fragment.path.display().to_string())
            .unwrap_or_default()
    );
    Ok(())
}

/// A version as people type it.
fn parse_version(text: &str) -> Result<Version, String> {
    let version =
        Version::parse(text).map_err(|error| format!("{error}; a version is like 1.2.3"))?;
    if !version.build.is_empty() {
        // Neither a tag of an image nor a label of Kubernetes can have a plus sign.
        return Err("a release has no build metadata (what follows a `+`)".to_owned());
    }
    Ok(version)
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

    fn released() -> Vec<Source> {
        vec![
            source(
                "Cargo.toml",
                "[workspace.package]\nversion = \"0.2.0\"\n[workspace.metadata.release]\nimage = \"a.b/c\"\ncharts = \"d\"\n",
            ),
            source(
                "CHANGELOG.md",
                "# Changelog\n\n## 0.2.0 (2026-01-01)\n\n- One.\n",
            ),
            source("charts/a/Chart.yaml", "version: 0.2.0\nappVersion: 0.2.0\n"),
        ]
    }

    #[test]
    fn a_tag_belongs_to_its_release_commit() {
        check(&released(), Some("0.2.0")).unwrap();
        let error = check(&released(), Some("0.3.0")).unwrap_err();
        assert!(error.to_string().starts_with("the tag is 0.3.0"), "{error}");

        let mut later = released();
        later.push(source("changelog.d/more.added.md", "More.\n"));
        check(&later, None).unwrap();
        let error = check(&later, Some("0.2.0")).unwrap_err();
        assert!(
            error.to_string().contains("more.added.md was added after"),
            "{error}"
        );

        let mut silent = released();
        silent[1].text = "# Changelog\n".to_owned();
        let error = check(&silent, Some("0.2.0")).unwrap_err();
        assert!(
            error.to_string().contains("no section for 0.2.0"),
            "{error}"
        );

        let mut disagreeing = released();
        disagreeing[2].text = "version: 0.2.0\nappVersion: 0.1.0\n".to_owned();
        assert!(check(&disagreeing, None).is_err());
    }

    #[test]
    fn images_have_the_version() {
        let name = |image| image_name(&released(), image).unwrap();
        assert_eq!(name(ReleasedImage::Standind), "a.b/c:0.2.0");
        assert_eq!(name(ReleasedImage::StandindHub), "a.b/c-hub:0.2.0");
    }

    #[test]
    fn the_index_of_the_charts_is_on_the_page_of_their_repository() {
        let index = charts_index("git@github.com:standin/charts.git");
        assert_eq!(index.unwrap(), "https://standin.github.io/charts");
        assert!(charts_index("https://example.com/charts").is_err());
    }

    #[test]
    fn versions_are_checked_when_they_are_typed() {
        assert_eq!(parse_version("1.2.3").unwrap(), Version::new(1, 2, 3));
        assert!(parse_version("1.2.3-rc.1").is_ok());
        for wrong in ["1.2", "v1.2.3", "1.2.3+x", ""] {
            assert!(parse_version(wrong).is_err(), "{wrong}");
        }
    }
}
