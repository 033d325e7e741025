//! Start and stop of additional labs, which must leave nothing behind.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{self, Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{LazyEnvironment, Needs, Scenario, scenario};
use lab::binaries::Binaries;
use lab::cleanup::HostResources;
use lab::{ClusterRequest, Lab, LabRequest, Lifetime, Paths, Progress, Shape};
use libtest_mimic::Trial;
use parking_lot::Mutex;

/// The argument with which this program only owns a lab until it is killed.
const OWNER_ROLE: &str = "own-a-lab";
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![
        scenario(
            environment,
            "a_second_up_uses_the_running_lab",
            Needs::Lab,
            a_second_up_uses_the_running_lab,
        ),
        scenario(
            environment,
            "concurrent_labs_do_not_collide",
            Needs::Lab,
            concurrent_labs_do_not_collide,
        ),
        scenario(
            environment,
            "cycles_of_up_and_down_leave_nothing",
            Needs::Lab,
            cycles_of_up_and_down_leave_nothing,
        ),
        scenario(
            environment,
            "a_killed_owner_leaves_nothing",
            Needs::Lab,
            a_killed_owner_leaves_nothing,
        ),
        scenario(
            environment,
            "a_killed_daemon_leaves_nothing_after_down",
            Needs::Lab,
            a_killed_daemon_leaves_nothing,
        ),
        scenario(
            environment,
            "a_failed_start_shows_the_right_log",
            Needs::Lab,
            a_failed_start_shows_the_right_log,
        ),
    ]
}

async fn a_second_up_uses_the_running_lab(scenario: &Scenario<'_>) -> Result<()> {
    let running = scenario.lab()?;
    let request = LabRequest {
        name: running.name().to_owned(),
        clusters: running
            .clusters()
            .iter()
            .map(|cluster| ClusterRequest {
                name: cluster.name().to_owned(),
                nodes: cluster.plan().nodes.len(),
                shape: Shape::Full,
            })
            .collect(),
    };
    let steps = Arc::new(Mutex::new(String::new()));
    let recorder = Arc::clone(&steps);
    let progress = Progress::new(move |_, text| {
        let mut steps = recorder.lock();
        steps.push_str(text);
        steps.push('\n');
    });
    let before = running.processes()?;
    Lab::up(
        &Paths::from_environment(),
        &request,
        Lifetime::Owned,
        &progress,
    )?;
    let steps = steps.lock().clone();
    ensure!(
        steps == "east: already running\nwest: already running\n",
        "{steps}"
    );
    let after = running.processes()?;
    ensure!(
        before
            .iter()
            .filter(|process| after.contains(process))
            .count()
            > 10,
        "the processes are not the same"
    );
    let mut other = request;
    other.clusters[0].nodes += 1;
    let refused = Lab::up(
        &Paths::from_environment(),
        &other,
        Lifetime::Owned,
        &Progress::silent(),
    );
    let text = refused
        .err()
        .context("another shape was accepted")?
        .to_string();
    ensure!(text.contains("lab down --name"), "{text}");
    Ok(())
}

async fn concurrent_labs_do_not_collide(scenario: &Scenario<'_>) -> Result<()> {
    let before = HostResources::snapshot();
    let names = [name("one"), name("two")];
    let networks = thread::scope(|scope| {
        let starting = names
            .each_ref()
            .map(|name| scope.spawn(|| control_plane(name).map(|lab| lab.network())));
        starting.map(|thread| {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread ended"))
                .flatten()
        })
    });
    for name in &names {
        Lab::down(&Paths::from_environment(), name)?;
    }
    let [one, two] = networks;
    let (one, two) = (one?, two?);
    ensure!(
        one != two && one != scenario.lab()?.network() && two != scenario.lab()?.network(),
        "{one:?} {two:?}"
    );
    check_nothing_left(scenario, &before)
}

/// The short version of `cargo xtask soak lab`.
async fn cycles_of_up_and_down_leave_nothing(scenario: &Scenario<'_>) -> Result<()> {
    let before = HostResources::snapshot();
    let name = name("cycle");
    for _ in 0..2 {
        let request = LabRequest::new(&name, 1, 1, Shape::Full)?;
        let lab = Lab::up(
            &Paths::from_environment(),
            &request,
            Lifetime::Detached,
            &Progress::silent(),
        )?;
        lab.set_link("east", lab::HOST, &"delay 1ms".parse()?)?;
        ensure!(
            Lab::down(&Paths::from_environment(), &name)?,
            "there was no lab to stop"
        );
        check_nothing_left(scenario, &before)?;
    }
    Ok(())
}

async fn a_killed_owner_leaves_nothing(scenario: &Scenario<'_>) -> Result<()> {
    let before = HostResources::snapshot();
    // Killed as soon as its nodes start, while the API server starts, and when everything runs.
    for last_step in ["network", "east: API server", "owned"] {
        let name = name("owned");
        let mut owner = Owner::start(&name)?;
        owner.wait_for(last_step)?;
        owner.process.kill()?;
        owner.process.wait()?;
        check_nothing_left(scenario, &before)?;
        ensure!(
            !Lab::list(&Paths::from_environment()).contains(&name),
            "its folder is left"
        );
    }
    Ok(())
}

async fn a_killed_daemon_leaves_nothing(scenario: &Scenario<'_>) -> Result<()> {
    let before = HostResources::snapshot();
    let name = name("kept");
    // A paused node cannot notice that its daemon is gone.
    control_plane(&name)?
        .cluster("east")?
        .pause_node("east-1")?;
    let pattern = format!("daemon .*/{name}$");
    lab::output_of(Command::new("pkill").args(["-KILL", "-f", &pattern]))?;
    ensure!(
        Lab::down(&Paths::from_environment(), &name)?,
        "there was no lab to clean up"
    );
    check_nothing_left(scenario, &before)
}

async fn a_failed_start_shows_the_right_log(scenario: &Scenario<'_>) -> Result<()> {
    let before = HostResources::snapshot();
    let real = Paths::from_environment();
    let programs = Binaries::find(&real).context("the programs are not built")?;
    let folder = tempfile::tempdir()?;
    let paths = Paths::at(folder.path());
    let broken = paths
        .binaries()
        .join(programs.directory().file_name().context("no name")?);
    fs::create_dir_all(&broken)?;
    for entry in fs::read_dir(programs.directory())?.flatten() {
        let copy = broken.join(entry.file_name());
        if entry.file_name() == "kube-apiserver" {
            fs::write(
                &copy,
                "#!/bin/sh\necho 'something terrible happened'\nexit 3\n",
            )?;
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
        } else if entry.file_type()?.is_symlink() {
            symlink("hyper", &copy)?;
        } else {
            fs::hard_link(entry.path(), &copy)
                .or_else(|_| fs::copy(entry.path(), &copy).map(drop))?;
        }
    }
    let request = LabRequest::new("broken", 1, 1, Shape::ControlPlaneOnly)?;
    let result = Lab::up(&paths, &request, Lifetime::Detached, &Progress::silent());
    let error = result
        .err()
        .context("a lab without an API server started")?;
    let text = error.to_string();
    for part in [
        "the API server is not ready",
        "exit code 3",
        "something terrible happened",
        "kube-apiserver.log",
    ] {
        ensure!(text.contains(part), "{part:?} is missing: {text}");
    }
    let hint = error.hint().context("there is no next step")?;
    let log_path = hint
        .split_whitespace()
        .find_map(|word| word.strip_suffix(".log;"))
        .context("the hint names no log")?;
    let log = fs::read_to_string(format!("{log_path}.log"))
        .context("the log in the hint does not exist")?;
    ensure!(log.contains("something terrible happened"), "{log}");
    check_nothing_left(scenario, &before)
}

/// The `main` of a process that owns a lab until it is killed.
pub(crate) fn run_owner_if_requested() {
    let mut arguments = env::args().skip(1);
    if arguments.next().as_deref() != Some(OWNER_ROLE) {
        return;
    }
    let name = arguments.next().unwrap_or_default();
    let progress = Progress::new(|_, text| println!("{text}"));
    let up = LabRequest::new(&name, 1, 1, Shape::ControlPlaneOnly).and_then(|request| {
        Lab::up(
            &Paths::from_environment(),
            &request,
            Lifetime::Owned,
            &progress,
        )
    });
    match up {
        Ok(_lab) => {
            println!("owned");
            loop {
                thread::park();
            }
        }
        Err(error) => {
            println!("failed: {error}");
            loop {
                thread::park();
            }
        }
    }
}

struct Owner {
    process: Child,
    output: BufReader<process::ChildStdout>,
}

impl Owner {
    fn start(name: &str) -> Result<Self> {
        let mut process = Command::new(env::current_exe()?)
            .args([OWNER_ROLE, name])
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(process.stdout.take().context("no output")?);
        Ok(Owner { process, output })
    }

    fn wait_for(&mut self, text: &str) -> Result<()> {
        let mut line = String::new();
        while self.output.read_line(&mut line)? > 0 {
            ensure!(!line.starts_with("failed"), "{line}");
            if line.starts_with(text) {
                return Ok(());
            }
            line.clear();
        }
        anyhow::bail!("the owner exited before it printed {text}")
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn control_plane(name: &str) -> Result<Lab> {
    let request = LabRequest::new(name, 1, 1, Shape::ControlPlaneOnly)?;
    Ok(Lab::up(
        &Paths::from_environment(),
        &request,
        Lifetime::Detached,
        &Progress::silent(),
    )?)
}

fn name(what: &str) -> String {
    format!("{what}-{}", process::id())
}

fn check_nothing_left(scenario: &Scenario<'_>, before: &HostResources) -> Result<()> {
    let left = HostResources::wait_for_cleanup(before, &[scenario.lab()?], CLEANUP_TIMEOUT);
    ensure!(left.is_empty(), "left behind: {left:#?}");
    Ok(())
}
