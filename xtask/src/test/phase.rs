//! The phases, in the order in which they run: what is quick to fail comes first.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::ValueEnum;
use lab::binaries::Binaries;
use lab::host_checks::{self, ResourceDemand};
use lab::shop::Programs;
use lab::{Paths, Progress};

use super::build::{self, Built, TestExecutable};
use super::counts::{Outcome, Runner};
use super::executables::{self, TestRun};
use crate::{
    aws, delve, demo, environment, node, packages, privilege, process, tidy, web, workspace,
};

/// Crates with tests that need root or tools that this command installs. `cargo test` ignores these tests.
const NEED_ROOT: &[&str] = &[
    "agent",
    "cli",
    "interceptor",
    "lab",
    "operator",
    "proxy",
    "server",
];

/// The crate with the tests on clusters.
const CLUSTER_TESTS: &str = "e2e";

/// Groups of tests on clusters. Those in one row run at the same time, each in a process of its own: most of their time they
/// wait, and they do not use the same clusters. The last group counts what labs leave behind, so it runs alone.
const CLUSTER_TEST_GROUPS: &[&[&str]] = &[&["shared-clusters", "own-clusters"], &["labs"]];

/// After this the tests on clusters have hung.
const CLUSTER_TIMEOUT: Duration = Duration::from_mins(60);

/// Test executables beside one another. Many of their tests wait, so two cores are not idle while one of them does.
const EXECUTABLES_AT_ONCE: usize = 2;

/// Test executables most of whose tests wait for timers, connections or other programs: so many of these run at once.
const WAITING_TESTS: &[(&str, usize)] = &[];

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Phase {
    Packages,
    Page,
    Format,
    Tidy,
    Build,
    Lint,
    Unit,
    Shop,
    Browser,
    Demo,
    #[value(name = "e2e")]
    E2e,
}

/// What the phases need to know of the command line, and what they share.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) root: PathBuf,
    /// Contexts of the kubeconfig to use instead of the lab.
    pub(crate) contexts: Vec<String>,
    built: OnceLock<Result<Built, String>>,
}

impl Settings {
    pub(crate) fn new(root: PathBuf, contexts: Vec<String>) -> Self {
        Self {
            root,
            contexts,
            built: OnceLock::new(),
        }
    }

    pub(crate) fn uses_lab(&self) -> bool {
        self.contexts.is_empty()
    }

    /// Everything compiled, by the first phase that needs it.
    fn built(&self) -> Result<&Built> {
        self.built
            .get_or_init(|| build::build(&self.root).map_err(|error| format!("{error:#}")))
            .as_ref()
            .map_err(|error| anyhow!("the tests could not be compiled: {error}"))
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
            Self::Tidy => "the rules of this repository that no compiler knows",
            Self::Build => "compile the workspace and all tests, and Kubernetes for the lab",
            Self::Lint => "cargo clippy, warnings are errors",
            Self::Unit => "tests of all crates that need no cluster",
            Self::Shop => "tests of the sample services in Go, Python and Node",
            Self::Browser => "tests of the page in a browser, with real sessions",
            Self::Demo => "the demo on this machine",
            Self::E2e => "tests on real clusters",
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
            Self::Tidy => run_tidy(),
            Self::Build => compile(settings),
            Self::Lint => check(
                lab::cargo(root)
                    .args(["clippy", "--locked", "--workspace", "--all-targets"])
                    .args(["--", "-D", "warnings"]),
            ),
            Self::Unit => run_unit_tests(settings),
            Self::Shop => run_shop_tests(settings),
            Self::Browser => run_browser_tests(settings),
            Self::Demo => run_demo(settings.built()?),
            Self::E2e => run_cluster_tests(settings),
        }
    }
}

fn install_packages(settings: &Settings) -> Result<Outcome> {
    let mut requirements = packages::SHOP.to_vec();
    requirements.extend(packages::SESSION);
    requirements.extend(packages::PAGE);
    requirements.extend(packages::BROWSER);
    if settings.uses_lab() {
        // Two clusters with three nodes, as the tests on clusters start them.
        let demand = ResourceDemand {
            clusters: 2,
            nodes: 3,
        };
        host_checks::check_before_preparing(&Paths::from_environment(), demand)?;
        requirements.extend(host_checks::REQUIREMENTS);
    }
    let installed = packages::install_missing(&requirements)?;
    node::install_if_missing()?;
    aws::install_if_missing()?;
    delve::install_if_missing()?;
    Ok(Outcome::note(if installed.is_empty() {
        "nothing to install".to_owned()
    } else {
        format!("installed {}", installed.join(" "))
    }))
}

/// Kubernetes is built from Go sources while cargo compiles: each has steps that use one core only.
fn compile(settings: &Settings) -> Result<Outcome> {
    let binaries = settings.uses_lab().then(|| {
        thread::spawn(|| Binaries::ensure(&Paths::from_environment(), &Progress::to_stderr()))
    });
    let built = settings.built();
    if let Some(binaries) = binaries {
        let binaries = binaries.join();
        binaries.map_err(|_| anyhow!("the build of Kubernetes has panicked"))??;
    }
    let built = built?;
    Ok(Outcome::note(format!(
        "{} test executables",
        built.tests.len()
    )))
}

fn run_tidy() -> Result<Outcome> {
    ensure!(tidy::run()? == ExitCode::SUCCESS, "see the list above");
    Ok(Outcome::success())
}

fn run_demo(built: &Built) -> Result<Outcome> {
    let code = demo::on_this_machine(Some(&built.programs))?;
    ensure!(code == ExitCode::SUCCESS, "see above");
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

fn run_browser_tests(settings: &Settings) -> Result<Outcome> {
    privilege::check("the tests of the page make networks")?;
    let command = web::tests(&settings.root, &settings.built()?.programs)?;
    count(Runner::Playwright, "web/monitor", command)
}

fn run_unit_tests(settings: &Settings) -> Result<Outcome> {
    let built = settings.built()?;
    let variables = [
        (environment::PROGRAMS, OsString::from(&built.programs)),
        (environment::AWS_TOOLS, aws::folder()?.into()),
        (environment::DELVE, delve::program()?.into()),
    ];
    let runs = built
        .tests
        .iter()
        .filter(|executable| executable.package != CLUSTER_TESTS)
        .flat_map(|executable| unit_runs(executable, privilege::is_root()))
        .map(|run| TestRun {
            variables: variables.to_vec(),
            threads: threads(&run.label),
            ..run
        })
        .collect();
    let mut outcome = executables::run_all(runs, EXECUTABLES_AT_ONCE);
    let mut examples = lab::cargo(&settings.root);
    examples
        .env("RUSTFLAGS", lab::standind::STATIC_FLAGS)
        .args(["test", "--locked", "--workspace", "--doc"])
        .args(["--target", &lab::standind::host_triple()]);
    outcome.add(count(Runner::Cargo, "examples in documentation", examples)?);
    Ok(outcome)
}

/// An executable is run once by root. Another caller runs what needs no root, and root the rest.
fn unit_runs(executable: &TestExecutable, caller_is_root: bool) -> Vec<TestRun> {
    let run = TestRun::new(executable);
    if !NEED_ROOT.contains(&executable.package.as_str()) {
        return vec![run];
    }
    if caller_is_root {
        return vec![TestRun {
            selection: Some("--include-ignored"),
            ..run
        }];
    }
    let as_root = TestRun {
        label: format!("{} (root)", run.label),
        as_root: true,
        selection: Some("--ignored"),
        ..run.clone()
    };
    let as_caller = TestRun {
        is_completed_by_another: true,
        ..run
    };
    vec![as_caller, as_root]
}

fn threads(label: &str) -> Option<usize> {
    WAITING_TESTS
        .iter()
        .find(|(waiting, _)| *waiting == label)
        .map(|(_, threads)| *threads)
}

/// Root is needed for the lab, and for images of Debian packages on clusters of any kind.
fn run_cluster_tests(settings: &Settings) -> Result<Outcome> {
    let built = settings.built()?;
    // Built as the caller, before anything runs as root.
    Binaries::ensure(&Paths::from_environment(), &Progress::to_stderr())?;
    let shop = Programs::with_checkout(
        &settings.root,
        &workspace::shop_target()?,
        &built.shop_checkout,
        node::for_image()?,
    )?;
    let fixtures = workspace::target()?.join("fixtures");
    let mut variables: Vec<(&'static str, OsString)> = vec![
        (environment::PROGRAMS, OsString::from(&built.programs)),
        (environment::FIXTURES, OsString::from(&fixtures)),
        (environment::AWS_TOOLS, aws::folder()?.into()),
        (
            lab::environment::STATIC_STANDIND,
            OsString::from(&built.image_program),
        ),
    ];
    if !settings.uses_lab() {
        variables.push((environment::CONTEXTS, settings.contexts.join(",").into()));
    }
    let shop_variables = shop.variables();
    variables.extend(
        shop_variables
            .iter()
            .map(|(name, value)| (*name, OsString::from(value))),
    );
    let mut total = Outcome::default();
    for executable in &built.tests {
        if executable.package != CLUSTER_TESTS {
            continue;
        }
        let is_library = executable.target == CLUSTER_TESTS;
        if !is_library {
            compile_fixtures(&executable.path, &fixtures)?;
        }
        let run = TestRun {
            as_root: true,
            is_libtest: is_library,
            timeout: CLUSTER_TIMEOUT,
            variables: variables.clone(),
            ..TestRun::new(executable)
        };
        if is_library {
            total.add(run.run()?);
            continue;
        }
        for groups in CLUSTER_TEST_GROUPS {
            let runs: Vec<TestRun> = groups.iter().map(|group| run.with_group(group)).collect();
            total.add(executables::run_together(&runs));
        }
    }
    ensure!(
        total.counts.passed + total.counts.failed > 0,
        "no test on clusters was run"
    );
    Ok(total)
}

/// The small programs that the tests run in sessions, compiled as the caller.
fn compile_fixtures(cluster_tests: &Path, fixtures: &Path) -> Result<()> {
    process::run(
        Command::new(cluster_tests)
            .args(["standin-e2e-role", "compile"])
            .arg(fixtures),
    )
    .context("compiling the programs that the tests run in sessions")
}

/// A check that only passes or fails counts as one test.
fn check(command: &mut Command) -> Result<Outcome> {
    process::run(command)?;
    Ok(Outcome::success())
}

fn count(runner: Runner, name: &str, command: Command) -> Result<Outcome> {
    Ok(runner.judge(name, &process::tee(command)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(package: &str, caller_is_root: bool) -> Vec<String> {
        let executable = TestExecutable {
            package: package.to_owned(),
            target: package.to_owned(),
            path: "/target/deps/tests-1".into(),
            directory: "/crates".into(),
        };
        unit_runs(&executable, caller_is_root)
            .into_iter()
            .map(|run| {
                let caller = if run.as_root { "root" } else { "caller" };
                format!("{} {caller} {}", run.label, run.selection.unwrap_or("all"))
            })
            .collect()
    }

    #[test]
    fn tests_that_need_root_are_run_by_root() {
        assert_eq!(runs("link", true), ["link caller all"]);
        assert_eq!(runs("link", false), ["link caller all"]);
        assert_eq!(runs("agent", true), ["agent caller --include-ignored"]);
        assert_eq!(
            runs("agent", false),
            ["agent caller all", "agent (root) root --ignored"]
        );
    }
}
