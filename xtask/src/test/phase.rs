//! The phases, in the order in which they run: what is quick to fail comes first.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use lab::binaries::Binaries;
use lab::shop::Programs;
use lab::standind;
use lab::surroundings::{self, Demand};
use lab::{Paths, Progress};

use super::counts::{Outcome, Runner};
use crate::process::Finished;
use crate::{aws, demo, environment, node, packages, privilege, process, tidy, web, workspace};

/// Crates with tests that only root can run. Otherwise these are ignored.
const NEED_ROOT: &[&str] = &["agent", "cli", "interceptor", "lab", "proxy", "server"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Phase {
    Packages,
    Page,
    Format,
    Lint,
    Tidy,
    Unit,
    Shop,
    Browser,
    Demo,
    #[value(name = "e2e")]
    E2e,
}

/// What the phases need to know of the command line.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) root: PathBuf,
    /// Contexts of the kubeconfig to use instead of the lab.
    pub(crate) contexts: Vec<String>,
}

impl Settings {
    pub(crate) fn uses_lab(&self) -> bool {
        self.contexts.is_empty()
    }
}

impl Phase {
    pub(crate) fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(|| format!("{self:?}"), |value| value.get_name().to_owned())
    }

    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Packages => "install the Debian packages that are missing",
            Self::Page => "check and build the page of `standin ui`",
            Self::Format => "cargo fmt --check",
            Self::Lint => "cargo clippy, warnings are errors",
            Self::Tidy => "the rules of this repository that no compiler knows",
            Self::Unit => "tests of all crates that need no cluster",
            Self::Shop => "tests of the sample services in Go, Python and Node",
            Self::Browser => "tests of the page in a browser, with real sessions",
            Self::Demo => "the demo on this machine",
            Self::E2e => "stories on real clusters",
        }
    }

    /// When it fails, the phases after it are not run.
    pub(crate) fn is_required(self) -> bool {
        self == Self::Packages
    }

    pub(crate) fn run(self, settings: &Settings) -> Result<Outcome> {
        let root = &settings.root;
        match self {
            Self::Packages => install_packages(settings),
            Self::Page => web::build(root).map(|()| Outcome::success()),
            Self::Format => check(lab::cargo(root).args(["fmt", "--all", "--check"])),
            Self::Lint => check(
                lab::cargo(root)
                    .args(["clippy", "--locked", "--workspace", "--all-targets"])
                    .args(["--", "-D", "warnings"]),
            ),
            Self::Tidy => run_tidy(),
            Self::Unit => run_unit_tests(root),
            Self::Shop => run_shop_tests(settings),
            Self::Browser => run_browser_tests(root),
            Self::Demo => run_demo(),
            Self::E2e => run_stories(settings),
        }
    }
}

fn install_packages(settings: &Settings) -> Result<Outcome> {
    let mut wanted = packages::SHOP.to_vec();
    wanted.extend(packages::SESSION);
    wanted.extend(packages::PAGE);
    wanted.extend(packages::BROWSER);
    if settings.uses_lab() {
        // Two clusters and three nodes, as the stories ask for.
        let demand = Demand {
            clusters: 2,
            nodes: 3,
        };
        surroundings::check_before_preparing(&Paths::from_environment(), demand)?;
        wanted.extend(surroundings::REQUIREMENTS);
    }
    let installed = packages::install_missing(&wanted)?;
    node::install_if_missing()?;
    aws::install_if_missing()?;
    Ok(Outcome::note(if installed.is_empty() {
        "nothing to install".to_owned()
    } else {
        format!("installed {}", installed.join(" "))
    }))
}

fn run_tidy() -> Result<Outcome> {
    ensure!(tidy::run()? == ExitCode::SUCCESS, "see the list above");
    Ok(Outcome::success())
}

fn run_demo() -> Result<Outcome> {
    ensure!(demo::on_this_machine()? == ExitCode::SUCCESS, "see above");
    Ok(Outcome::success())
}

fn run_shop_tests(settings: &Settings) -> Result<Outcome> {
    let mut go = Command::new("go");
    go.args(["test", "-v", "./..."]);
    let mut python = Command::new("python3");
    python.args(["-m", "unittest", "discover"]);
    let mut storefront = Command::new(node::program()?);
    storefront.arg("--test");

    let mut total = Outcome::default();
    for (runner, folder, mut command) in [
        (Runner::Go, "shop/inventory", go),
        (Runner::Unittest, "shop/pricing", python),
        (Runner::Node, "shop/storefront", storefront),
    ] {
        command.current_dir(settings.root.join(folder));
        // One service that cannot be tested does not hide the others.
        total.add(
            count(runner, folder, command)
                .unwrap_or_else(|error| Outcome::failure(format!("{error:#}"))),
        );
    }
    Ok(total)
}

fn run_browser_tests(root: &Path) -> Result<Outcome> {
    privilege::check("the tests of the page make networks")?;
    let command = web::tests(root, &build_standin(root)?)?;
    count(Runner::Playwright, "web/monitor", command)
}

fn run_unit_tests(root: &Path) -> Result<Outcome> {
    let standin = build_standin(root)?;
    let aws_tools = aws::folder()?;
    let mut command = lab::cargo(root);
    command
        .env(environment::PROGRAMS, &standin)
        .env(environment::AWS_TOOLS, &aws_tools)
        .args([
            "test",
            "--locked",
            "--workspace",
            "--exclude=e2e",
            "--no-fail-fast",
        ]);
    let mut outcome = count(Runner::Cargo, "cargo test", command)?;
    // What needs root is ignored above, so that `cargo test` works for everyone.
    for package in NEED_ROOT {
        let executables = build_tests(root, package)?;
        let folder = root.join("crates").join(package);
        let as_root = run_as_root(&executables, &folder, |command| {
            command
                .arg("--ignored")
                .env(environment::PROGRAMS, &standin)
                .env(environment::AWS_TOOLS, &aws_tools);
        })?;
        let name = format!("tests of {package} that need root");
        outcome.add(Runner::Cargo.judge(&name, &as_root));
    }
    Ok(outcome)
}

/// Builds `standin` and `standind` as the caller, and returns their folder.
fn build_standin(root: &Path) -> Result<PathBuf> {
    process::run(lab::cargo(root).args([
        "build",
        "--locked",
        "--package=cli",
        "--package=server",
    ]))?;
    Ok(workspace::target()?.join("debug"))
}

/// Root is needed for the lab, and for images of Debian packages wherever the clusters are.
fn run_stories(settings: &Settings) -> Result<Outcome> {
    let executables = build_tests(&settings.root, "e2e")?;
    // Built as the caller, before anything runs as root.
    let progress = Progress::to_stderr();
    Binaries::ensure(&Paths::from_environment(), &progress)?;
    let programs = Programs::build(
        &settings.root,
        &workspace::shop_target()?,
        node::for_image()?,
        &progress,
    )?;
    let agent = standind::build(
        &settings.root,
        &workspace::image_target()?,
        standind::Profile::Dev,
        &progress,
    )?;
    let standin = build_standin(&settings.root)?;
    let fixtures = workspace::target()?.join("fixtures");
    for executable in stories(&executables) {
        process::run(
            Command::new(executable)
                .args(["standin-e2e-role", "compile"])
                .arg(&fixtures),
        )?;
    }
    let told = run_as_root(&executables, &settings.root.join("crates/e2e"), |command| {
        command.env(environment::PROGRAMS, &standin);
        command.env(environment::FIXTURES, &fixtures);
        command.env(lab::environment::STATIC_STANDIND, &agent);
        if !settings.uses_lab() {
            command.env(environment::CONTEXTS, settings.contexts.join(","));
        }
        command.envs(programs.variables());
    })?;
    Ok(Runner::Cargo.judge("e2e", &told))
}

/// The program of all stories, which is not the one of the library's own tests.
fn stories(executables: &[PathBuf]) -> impl Iterator<Item = &PathBuf> {
    executables.iter().filter(|path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with("stories-")
    })
}

/// Builds the tests of a package as the caller: the compiler must never run as root for someone else.
fn build_tests(root: &Path, package: &str) -> Result<Vec<PathBuf>> {
    let messages = process::output(lab::cargo(root).args([
        "test",
        "--locked",
        "--package",
        package,
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]))?;
    Ok(test_executables(&messages))
}

/// Runs test executables where `cargo test` would, as root. They are judged as one: an executable without a test of its
/// own is no failure, a package without any is.
fn run_as_root(
    executables: &[PathBuf],
    folder: &Path,
    complete: impl Fn(&mut Command),
) -> Result<Finished> {
    let mut all: Option<Finished> = None;
    for executable in executables {
        let mut command = privilege::command(executable);
        command.current_dir(folder);
        complete(&mut command);
        let finished = process::tee(command)?;
        all = Some(match all {
            None => finished,
            Some(before) => before.and_then(&finished),
        });
    }
    all.context("cargo built no test executable")
}

/// A check that only passes or fails counts as one test.
fn check(command: &mut Command) -> Result<Outcome> {
    process::run(command)?;
    Ok(Outcome::success())
}

fn count(runner: Runner, name: &str, command: Command) -> Result<Outcome> {
    Ok(runner.judge(name, &process::tee(command)?))
}

/// The executables among the messages that cargo prints, one JSON object per line.
fn test_executables(build_messages: &str) -> Vec<PathBuf> {
    build_messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| {
            message["reason"] == "compiler-artifact" && message["profile"]["test"] == true
        })
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn only_test_executables_are_run() {
        let messages = r#"
{"reason":"compiler-artifact","target":{"name":"lab"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","target":{"name":"standin"},"profile":{"test":false},"executable":"/target/standin"}
{"reason":"compiler-artifact","target":{"name":"stories"},"profile":{"test":true},"executable":"/target/deps/stories-1"}
not json
{"reason":"build-finished","success":true}
"#;
        assert_eq!(
            test_executables(messages),
            [Path::new("/target/deps/stories-1")]
        );
    }
}
