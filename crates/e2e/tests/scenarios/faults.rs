//! Faults in a session: invalid input, exhausted resources, and processes that are killed.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::{Program, Recipe};
use e2e::machine::{ProgramOutput, RunningAgent, Target, Transport};
use e2e::{LazyEnvironment, Needs, Scenario, scenario};
use libtest_mimic::Trial;

use super::support::{cache, programs};

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![
        scenario(
            environment,
            "paths_that_are_too_long_are_reported",
            Needs::Machine,
            paths_that_are_too_long,
        ),
        scenario(
            environment,
            "file_names_need_not_be_utf8",
            Needs::Machine,
            file_names_need_not_be_utf8,
        ),
        scenario(
            environment,
            "a_variable_that_is_too_large_is_left_out_and_reported",
            Needs::Machine,
            a_variable_that_is_too_large,
        ),
        scenario(
            environment,
            "a_program_without_descriptors_gets_an_error",
            Needs::Machine,
            a_program_without_descriptors,
        ),
        scenario(
            environment,
            "an_agent_without_descriptors_recovers",
            Needs::Machine,
            an_agent_without_descriptors,
        ),
        scenario(
            environment,
            "a_supervisor_without_descriptors_recovers",
            Needs::Machine,
            a_supervisor_without_descriptors,
        ),
        scenario(
            environment,
            "a_full_disk_at_the_target_reaches_the_program",
            Needs::Machine,
            a_full_disk,
        ),
        scenario(
            environment,
            "a_connection_that_is_reset_is_not_closed_cleanly",
            Needs::Machine,
            a_reset_connection,
        ),
        scenario(
            environment,
            "a_killed_target_is_detected",
            Needs::Machine,
            a_killed_target,
        ),
        scenario(
            environment,
            "a_killed_agent_is_replaced",
            Needs::Machine,
            a_killed_agent,
        ),
        scenario(
            environment,
            "a_wrong_token_is_refused",
            Needs::Machine,
            a_wrong_token,
        ),
    ]
}

/// Runs one function of the fixture, in a session that writes files at the target.
fn faults(target: &Target, function: &str) -> Result<Command> {
    let program = Program::script("python3", "programs/faults/faults.py").argument(function);
    let mut command = programs()?.exec(target, &program.command);
    program
        .prepare(&mut command)
        .env("STANDIN_FS_MODE", "write");
    Ok(command)
}

fn check(output: &ProgramOutput, expected: &[(&str, &str)]) -> Result<()> {
    let problems: Vec<String> = expected
        .iter()
        .filter(|(key, value)| output.value(key) != Some(value))
        .map(|(key, value)| format!("{key} should be {value:?}, not {:?}", output.value(key)))
        .collect();
    ensure!(
        problems.is_empty() && output.code == Some(0),
        "{}\n{output}",
        problems.join("\n")
    );
    Ok(())
}

async fn paths_that_are_too_long(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    target.write("/etc/shop/settings", "")?;
    let output = ProgramOutput::of(&mut faults(&target, "paths")?)?;
    check(
        &output,
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

async fn file_names_need_not_be_utf8(_: &Scenario<'_>) -> Result<()> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    let target = Target::start()?;
    let folder = target.path("/etc/shop");
    fs::create_dir(&folder)?;
    fs::write(folder.join(OsStr::from_bytes(b"\xff\xfe")), "no text")?;
    let output = ProgramOutput::of(&mut faults(&target, "names")?)?;
    check(
        &output,
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

async fn a_variable_that_is_too_large(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("variables");
    let run = |length: usize| -> Result<ProgramOutput> {
        fs::write(&file, format!("HUGE_VARIABLE={}\n", "x".repeat(length)))?;
        let command = ["sh", "-c", "echo length=${#HUGE_VARIABLE}"];
        ProgramOutput::of(
            programs()?
                .exec(&target, &command)
                .env("STANDIN_ENV_FILE", &file),
        )
    };
    // A megabyte is more than the kernel allows for one variable.
    let output = run(1 << 20)?;
    ensure!(output.stderr.contains("HUGE_VARIABLE"), "{output}");
    ensure!(output.stderr.len() < 4096, "the value is printed");
    check(&output, &[("length", "0")])?;
    // The largest value that it allows. The limit includes the name, the `=` and the terminating zero.
    let largest = (128 << 10) - "HUGE_VARIABLE=".len() - 1;
    let output = run(largest)?;
    ensure!(!output.stderr.contains("HUGE_VARIABLE"), "{output}");
    check(&output, &[("length", &largest.to_string())])
}

async fn a_program_without_descriptors(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    target.write("/etc/shop/settings", "open all day")?;
    let output = ProgramOutput::of(&mut faults(&target, "descriptors")?)?;
    check(
        &output,
        &[
            ("open", "EMFILE"),
            ("highest", "31"),
            ("stat", "12"),
            ("list", "EMFILE"),
            ("again", "b'open all day'"),
        ],
    )
}

async fn an_agent_without_descriptors(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let programs = programs()?;
    let mut command = Command::new("prlimit");
    command
        .args(["--nofile=96:96", "--"])
        .arg(programs.standind().get_program());
    let agent = RunningAgent::start_as(&mut command, &target, Transport::Tcp)?;
    let mut command = agent.exec(&programs, &agent.address);
    command
        .arg(Recipe::LOAD.compile(&cache())?)
        .args(["when-triggered", "300"]);
    target.write("/etc/shop/now", "")?;
    let output = ProgramOutput::of(&mut command)?;
    check_exhaustion(&output)
}

async fn a_supervisor_without_descriptors(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let program = Recipe::LOAD.compile(&cache())?;
    let mut command = programs()?.exec(&target, &[program]);
    command.args(["when-triggered", "300"]);
    let mut running = RunningProgram::start(&mut command)?;
    running.wait_for("waiting=yes")?;
    // Limits only the supervisor. The program and the agent have their own limits.
    let pid = running.process.id().to_string();
    let used = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
    let limit = format!("--nofile={0}:{0}", used + 40);
    lab::output_of(Command::new("prlimit").args(["--pid", &pid, &limit]))?;
    target.write("/etc/shop/now", "")?;
    check_exhaustion(&running.end()?)
}

/// Some connections failed with an error, none hung, and new connections worked afterwards.
fn check_exhaustion(output: &ProgramOutput) -> Result<()> {
    let responded: usize = output
        .value("responded")
        .with_context(|| output.to_string())?
        .parse()?;
    ensure!(
        responded < 300,
        "there were enough descriptors, so the test is void: {output}"
    );
    ensure!(output.value("afterwards") == Some("ok"), "{output}");
    Ok(())
}

async fn a_full_disk(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let output = ProgramOutput::of(&mut faults(&target, "disk")?)?;
    check(
        &output,
        &[
            ("write", "ENOSPC"),
            ("below_limit", "True"),
            ("again", "there is space again"),
        ],
    )?;
    ensure!(target.read("/srv/small/file")? == "there is space again");
    Ok(())
}

async fn a_reset_connection(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let output = ProgramOutput::of(&mut faults(&target, "reset")?)?;
    check(&output, &[("before", "b'some'"), ("after", "ECONNRESET")])
}

/// The program gets an error, and does not hang.
async fn a_killed_target(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    target.write("/etc/shop/settings", "open all day")?;
    let mut running = RunningProgram::start(&mut faults(&target, "lost")?)?;
    running.wait_for("reading=yes")?;
    target.kill()?;
    let output = running.end()?;
    ensure!(output.value("error").is_some(), "{output}");
    Ok(())
}

/// Another agent is started, and the program reaches the target again.
async fn a_killed_agent(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    target.write("/etc/shop/settings", "open all day")?;
    let mut running = RunningProgram::start(&mut faults(&target, "recover")?)?;
    running.wait_for("reading=yes")?;
    let pattern = format!("[-]-process {}( |$)", target.pid());
    lab::output_of(Command::new("pkill").args(["-KILL", "-f", &pattern]))?;
    target.write("/etc/shop/now", "")?;
    let output = running.end()?;
    check(&output, &[("now", "seen"), ("read", "open all day")])
}

async fn a_wrong_token(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let agent = RunningAgent::start(&programs()?, &target, Transport::Tcp)?;
    let mut command = agent.exec(&programs()?, &agent.address);
    command
        .args(["echo", "it ran"])
        .env("STANDIN_AGENT_TOKEN", "a wrong one");
    let output = ProgramOutput::of(&mut command)?;
    ensure!(
        output.code != Some(0) && output.stdout.is_empty(),
        "{output}"
    );
    ensure!(output.stderr.contains("token"), "{output}");
    Ok(())
}

/// The process of a running session. It is killed when this value is dropped.
struct RunningProgram {
    process: Child,
    output: BufReader<ChildStdout>,
    printed: String,
}

impl RunningProgram {
    fn start(command: &mut Command) -> Result<Self> {
        let mut process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(process.stdout.take().context("no output")?);
        Ok(RunningProgram {
            process,
            output,
            printed: String::new(),
        })
    }

    fn wait_for(&mut self, line: &str) -> Result<()> {
        while self.printed.lines().last() != Some(line) {
            let read = self.output.read_line(&mut self.printed)?;
            ensure!(
                read > 0,
                "it exited before it printed {line}: {}",
                self.printed
            );
        }
        Ok(())
    }

    fn end(mut self) -> Result<ProgramOutput> {
        self.output.read_to_string(&mut self.printed)?;
        let mut stderr = String::new();
        let errors = self.process.stderr.take();
        errors.context("no errors")?.read_to_string(&mut stderr)?;
        let printed = std::mem::take(&mut self.printed);
        Ok(ProgramOutput::new(printed, stderr, self.process.wait()?))
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
