//! What goes wrong in a session: bad input, things that run out, and parts that are lost.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::{Program, Recipe};
use e2e::machine::{Ended, RunningAgent, Target, Transport};
use e2e::{LaterWorld, Needs, Story, tell};
use libtest_mimic::Trial;

use super::surroundings::{cache, programs};

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![
        tell(
            world,
            "paths_that_are_too_long_are_named_so",
            Needs::Machine,
            paths_that_are_too_long,
        ),
        tell(
            world,
            "names_need_not_be_text",
            Needs::Machine,
            names_need_not_be_text,
        ),
        tell(
            world,
            "a_variable_that_no_program_can_have_is_left_out_and_named",
            Needs::Machine,
            a_variable_that_is_too_large,
        ),
        tell(
            world,
            "a_program_without_descriptors_learns_it",
            Needs::Machine,
            a_program_without_descriptors,
        ),
        tell(
            world,
            "an_agent_without_descriptors_recovers",
            Needs::Machine,
            an_agent_without_descriptors,
        ),
        tell(
            world,
            "a_supervisor_without_descriptors_recovers",
            Needs::Machine,
            a_supervisor_without_descriptors,
        ),
        tell(
            world,
            "a_full_disk_at_the_target_reaches_the_program",
            Needs::Machine,
            a_full_disk,
        ),
        tell(
            world,
            "a_connection_that_is_reset_does_not_look_ended",
            Needs::Machine,
            a_reset_connection,
        ),
        tell(
            world,
            "a_target_that_is_killed_is_noticed",
            Needs::Machine,
            a_killed_target,
        ),
        tell(
            world,
            "an_agent_that_is_killed_is_noticed",
            Needs::Machine,
            a_killed_agent,
        ),
        tell(
            world,
            "a_wrong_token_is_refused",
            Needs::Machine,
            a_wrong_token,
        ),
    ]
}

/// One function of the fixture, in a session in which files are written at the target.
fn faults(target: &Target, function: &str) -> Result<Command> {
    let program = Program::script("python3", "programs/faults/faults.py").argument(function);
    let mut command = programs()?.exec(target, &program.command);
    program
        .prepare(&mut command)
        .env("STANDIN_FS_MODE", "write");
    Ok(command)
}

fn check(ended: &Ended, expected: &[(&str, &str)]) -> Result<()> {
    let problems: Vec<String> = expected
        .iter()
        .filter(|(key, value)| ended.value(key) != Some(value))
        .map(|(key, value)| format!("{key} should be {value:?}, not {:?}", ended.value(key)))
        .collect();
    ensure!(
        problems.is_empty() && ended.code == Some(0),
        "{}\n{ended}",
        problems.join("\n")
    );
    Ok(())
}

async fn paths_that_are_too_long(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    target.write("/etc/shop/settings", "")?;
    let ended = Ended::of(&mut faults(&target, "paths")?)?;
    check(
        &ended,
        &[
            ("longest", "ENOENT"),
            ("too long", "ENAMETOOLONG"),
            ("far too long", "ENAMETOOLONG"),
            ("long name", "ENAMETOOLONG"),
            ("longest name", "ENOENT"),
            ("create long name", "ENAMETOOLONG"),
            ("empty", "ENOENT"),
            ("below a file", "ENOTDIR"),
        ],
    )
}

async fn names_need_not_be_text(_: &Story<'_>) -> Result<()> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    let target = Target::start()?;
    let folder = target.path("/etc/shop");
    fs::create_dir(&folder)?;
    fs::write(folder.join(OsStr::from_bytes(b"\xff\xfe")), "no text")?;
    let ended = Ended::of(&mut faults(&target, "names")?)?;
    check(
        &ended,
        &[
            ("read", "no text"),
            ("list", r"[b'\xff\xfe']"),
            ("missing", "ENOENT"),
            ("reread", "written"),
            ("renamed", r"[b'\xc3( \n\x80\xf0']"),
        ],
    )?;
    let written = target
        .path("/srv/orders")
        .join(OsStr::from_bytes(b"\xc3\x28 \n\x80\xf0"));
    ensure!(fs::read_to_string(written)? == "written");
    Ok(())
}

async fn a_variable_that_is_too_large(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("variables");
    let run = |length: usize| -> Result<Ended> {
        fs::write(&file, format!("HUGE_VARIABLE={}\n", "x".repeat(length)))?;
        let command = ["sh", "-c", "echo length=${#HUGE_VARIABLE}"];
        Ended::of(
            programs()?
                .exec(&target, &command)
                .env("STANDIN_ENV_FILE", &file),
        )
    };
    // A megabyte is more than the kernel gives to any program.
    let ended = run(1 << 20)?;
    ensure!(ended.stderr.contains("HUGE_VARIABLE"), "{ended}");
    ensure!(ended.stderr.len() < 4096, "the value is printed");
    check(&ended, &[("length", "0")])?;
    // The largest that it gives, with the name, the sign between them and the byte at the end.
    let largest = (128 << 10) - "HUGE_VARIABLE=".len() - 1;
    let ended = run(largest)?;
    ensure!(!ended.stderr.contains("HUGE_VARIABLE"), "{ended}");
    check(&ended, &[("length", &largest.to_string())])
}

async fn a_program_without_descriptors(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    target.write("/etc/shop/settings", "open all day")?;
    let ended = Ended::of(&mut faults(&target, "descriptors")?)?;
    check(
        &ended,
        &[
            ("open", "EMFILE"),
            ("highest", "31"),
            ("stat", "12"),
            ("list", "EMFILE"),
            ("again", "b'open all day'"),
        ],
    )
}

async fn an_agent_without_descriptors(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let programs = programs()?;
    let mut command = Command::new("prlimit");
    command
        .args(["--nofile=96:96", "--"])
        .arg(programs.standind().get_program());
    let agent = RunningAgent::start_as(&mut command, &target, Transport::Tcp)?;
    let mut command = agent.exec(&programs, &agent.address);
    command
        .arg(Recipe::CROWD.make(&cache())?)
        .args(["when-told", "300"]);
    target.write("/etc/shop/now", "")?;
    let ended = Ended::of(&mut command)?;
    check_scarcity(&ended)
}

async fn a_supervisor_without_descriptors(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let program = Recipe::CROWD.make(&cache())?;
    let mut command = programs()?.exec(&target, &[program]);
    command.args(["when-told", "300"]);
    let mut running = Running::start(&mut command)?;
    running.wait_for("waiting=yes")?;
    // Its limit alone: the program has its own, and so has the agent.
    let pid = running.process.id().to_string();
    let used = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
    let limit = format!("--nofile={0}:{0}", used + 40);
    lab::output_of(Command::new("prlimit").args(["--pid", &pid, &limit]))?;
    target.write("/etc/shop/now", "")?;
    check_scarcity(&running.end()?)
}

/// Some connections were refused, with a reason; none hung; and afterwards there was room again.
fn check_scarcity(ended: &Ended) -> Result<()> {
    let answered: usize = ended
        .value("answered")
        .with_context(|| ended.to_string())?
        .parse()?;
    ensure!(
        answered < 300,
        "there were descriptors enough, so this shows nothing: {ended}"
    );
    ensure!(ended.value("afterwards") == Some("ok"), "{ended}");
    Ok(())
}

async fn a_full_disk(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let ended = Ended::of(&mut faults(&target, "disk")?)?;
    check(
        &ended,
        &[
            ("write", "ENOSPC"),
            ("within", "True"),
            ("again", "there is room again"),
        ],
    )?;
    ensure!(target.read("/srv/small/file")? == "there is room again");
    Ok(())
}

async fn a_reset_connection(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let ended = Ended::of(&mut faults(&target, "reset")?)?;
    check(&ended, &[("before", "b'some'"), ("after", "ECONNRESET")])
}

/// The program is told, and does not wait forever.
async fn a_killed_target(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    target.write("/etc/shop/settings", "open all day")?;
    let mut running = Running::start(&mut faults(&target, "lost")?)?;
    running.wait_for("reading=yes")?;
    target.kill()?;
    let ended = running.end()?;
    ensure!(ended.value("error").is_some(), "{ended}");
    Ok(())
}

/// Another one is started in its place, so the program sees the target again.
async fn a_killed_agent(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    target.write("/etc/shop/settings", "open all day")?;
    let mut running = Running::start(&mut faults(&target, "recover")?)?;
    running.wait_for("reading=yes")?;
    let pattern = format!("[-]-process {}( |$)", target.pid());
    lab::output_of(Command::new("pkill").args(["-KILL", "-f", &pattern]))?;
    target.write("/etc/shop/now", "")?;
    let ended = running.end()?;
    check(&ended, &[("now", "seen"), ("read", "open all day")])
}

async fn a_wrong_token(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let agent = RunningAgent::start(&programs()?, &target, Transport::Tcp)?;
    let mut command = agent.exec(&programs()?, &agent.address);
    command
        .args(["echo", "it ran"])
        .env("STANDIN_AGENT_TOKEN", "a wrong one");
    let ended = Ended::of(&mut command)?;
    ensure!(ended.code != Some(0) && ended.stdout.is_empty(), "{ended}");
    ensure!(ended.stderr.contains("token"), "{ended}");
    Ok(())
}

/// A session that is watched while it runs. Its program ends with this value.
struct Running {
    process: Child,
    output: BufReader<ChildStdout>,
    printed: String,
}

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        let mut process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(process.stdout.take().context("no output")?);
        Ok(Running {
            process,
            output,
            printed: String::new(),
        })
    }

    fn wait_for(&mut self, line: &str) -> Result<()> {
        while self.printed.lines().last() != Some(line) {
            let read = self.output.read_line(&mut self.printed)?;
            ensure!(read > 0, "it ended before it said {line}: {}", self.printed);
        }
        Ok(())
    }

    fn end(mut self) -> Result<Ended> {
        self.output.read_to_string(&mut self.printed)?;
        let mut stderr = String::new();
        let errors = self.process.stderr.take();
        errors.context("no errors")?.read_to_string(&mut stderr)?;
        let printed = std::mem::take(&mut self.printed);
        Ok(Ended::new(printed, stderr, self.process.wait()?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
