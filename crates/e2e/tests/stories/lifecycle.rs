//! Labs that come and go beside the one that the other stories use, and what they leave: nothing.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{self, Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{LaterWorld, Needs, Story, tell};
use lab::binaries::Binaries;
use lab::remains::Remains;
use lab::{ClusterRequest, Lab, LabRequest, Lifetime, Paths, Progress, Shape};
use libtest_mimic::Trial;

/// Turns this program into one that only owns a lab, to be killed.
const OWNER: &str = "own-a-lab";
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![
        tell(
            world,
            "a_second_up_uses_what_runs",
            Needs::Lab,
            a_second_up_uses_what_runs,
        ),
        tell(
            world,
            "labs_side_by_side_do_not_collide",
            Needs::Lab,
            labs_side_by_side_do_not_collide,
        ),
        tell(
            world,
            "cycles_of_up_and_down_leave_nothing",
            Needs::Lab,
            cycles_of_up_and_down_leave_nothing,
        ),
        tell(
            world,
            "a_killed_owner_leaves_nothing",
            Needs::Lab,
            a_killed_owner_leaves_nothing,
        ),
        tell(
            world,
            "a_killed_keeper_leaves_nothing_after_down",
            Needs::Lab,
            a_killed_keeper_leaves_nothing,
        ),
        tell(
            world,
            "a_failed_start_shows_the_right_log",
            Needs::Lab,
            a_failed_start_shows_the_right_log,
        ),
    ]
}

async fn a_second_up_uses_what_runs(story: &Story<'_>) -> Result<()> {
    let running = story.lab()?;
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
    let said = Arc::new(Mutex::new(String::new()));
    let hears = Arc::clone(&said);
    let progress = Progress::new(move |_, text| {
        if let Ok(mut said) = hears.lock() {
            said.push_str(text);
            said.push('\n');
        }
    });
    let before = running.processes()?;
    Lab::up(
        &Paths::from_environment(),
        &request,
        Lifetime::Owned,
        &progress,
    )?;
    let said = said
        .lock()
        .map_err(|_| anyhow::anyhow!("poisoned"))?
        .clone();
    ensure!(
        said == "east: already running\nwest: already running\n",
        "{said}"
    );
    let after = running.processes()?;
    ensure!(
        before
            .iter()
            .filter(|process| after.contains(process))
            .count()
            > 10,
        "the processes are others"
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

async fn labs_side_by_side_do_not_collide(story: &Story<'_>) -> Result<()> {
    let before = Remains::now();
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
        one != two && one != story.lab()?.network() && two != story.lab()?.network(),
        "{one:?} {two:?}"
    );
    nothing_left(story, &before)
}

/// The short version of `cargo xtask soak lab`.
async fn cycles_of_up_and_down_leave_nothing(story: &Story<'_>) -> Result<()> {
    let before = Remains::now();
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
            "there was nothing to take down"
        );
        nothing_left(story, &before)?;
    }
    Ok(())
}

async fn a_killed_owner_leaves_nothing(story: &Story<'_>) -> Result<()> {
    let before = Remains::now();
    // Killed as soon as its nodes start, while the API server starts, and when everything runs.
    for last_words in ["network", "east: API server", "owned"] {
        let name = name("owned");
        let mut owner = Owner::start(&name)?;
        owner.wait_for(last_words)?;
        owner.process.kill()?;
        owner.process.wait()?;
        nothing_left(story, &before)?;
        ensure!(
            !Lab::list(&Paths::from_environment()).contains(&name),
            "its folder is left"
        );
    }
    Ok(())
}

async fn a_killed_keeper_leaves_nothing(story: &Story<'_>) -> Result<()> {
    let before = Remains::now();
    let name = name("kept");
    // A paused node cannot notice that its keeper is gone.
    control_plane(&name)?
        .cluster("east")?
        .pause_node("east-1")?;
    let pattern = format!("keeper .*/{name}$");
    lab::output_of(Command::new("pkill").args(["-KILL", "-f", &pattern]))?;
    ensure!(
        Lab::down(&Paths::from_environment(), &name)?,
        "there was nothing to sweep"
    );
    nothing_left(story, &before)
}

async fn a_failed_start_shows_the_right_log(story: &Story<'_>) -> Result<()> {
    let before = Remains::now();
    let real = Paths::from_environment();
    let programs = Binaries::find(&real).context("the programs are not built")?;
    let folder = tempfile::tempdir()?;
    let paths = Paths::at(folder.path());
    let broken = paths
        .binaries()
        .join(programs.directory().file_name().context("no name")?);
    fs::create_dir_all(&broken)?;
    for entry in fs::read_dir(programs.directory())?.flatten() {
        let place = broken.join(entry.file_name());
        if entry.file_name() == "kube-apiserver" {
            fs::write(
                &place,
                "#!/bin/sh\necho 'something terrible happened'\nexit 3\n",
            )?;
            fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
        } else if entry.file_type()?.is_symlink() {
            symlink("hyper", &place)?;
        } else {
            fs::hard_link(entry.path(), &place)
                .or_else(|_| fs::copy(entry.path(), &place).map(drop))?;
        }
    }
    let request = LabRequest::new("broken", 1, 1, Shape::ControlPlaneOnly)?;
    let result = Lab::up(&paths, &request, Lifetime::Detached, &Progress::silent());
    let error = result
        .err()
        .context("a lab without an API server came up")?;
    let text = error.to_string();
    for part in [
        "the API server is not ready",
        "exit code 3",
        "something terrible happened",
        "kube-apiserver.log",
    ] {
        ensure!(text.contains(part), "the message lacks {part:?}: {text}");
    }
    let hint = error.hint().context("there is no next step")?;
    let kept = hint
        .split_whitespace()
        .find_map(|word| word.strip_suffix(".log;"))
        .context("no log is named")?;
    let log = fs::read_to_string(format!("{kept}.log")).context("the log that is named is gone")?;
    ensure!(log.contains("something terrible happened"), "{log}");
    nothing_left(story, &before)
}

/// The `main` of a process that owns a lab until it is killed.
pub(crate) fn own_a_lab_if_asked() {
    let mut arguments = env::args().skip(1);
    if arguments.next().as_deref() != Some(OWNER) {
        return;
    }
    let name = arguments.next().unwrap_or_default();
    let say = Progress::new(|_, text| println!("{text}"));
    let up = LabRequest::new(&name, 1, 1, Shape::ControlPlaneOnly)
        .and_then(|request| Lab::up(&Paths::from_environment(), &request, Lifetime::Owned, &say));
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
            .args([OWNER, name])
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(process.stdout.take().context("no output")?);
        Ok(Owner { process, output })
    }

    fn wait_for(&mut self, words: &str) -> Result<()> {
        let mut line = String::new();
        while self.output.read_line(&mut line)? > 0 {
            ensure!(!line.starts_with("failed"), "{line}");
            if line.starts_with(words) {
                return Ok(());
            }
            line.clear();
        }
        anyhow::bail!("the owner ended before it said {words}")
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

fn nothing_left(story: &Story<'_>, before: &Remains) -> Result<()> {
    let left = Remains::settle(before, &[story.lab()?], PATIENCE);
    ensure!(left.is_empty(), "left behind: {left:#?}");
    Ok(())
}
