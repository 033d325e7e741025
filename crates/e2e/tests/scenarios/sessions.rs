//! Sessions on this machine: a program as the stand-in for a process in its own namespaces.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::machine::{ProgramOutput, Target};
use e2e::{LazyEnvironment, Needs, Scenario, scenario, until};
use libtest_mimic::Trial;

use super::support::programs;

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![
        scenario(
            environment,
            "sessions_return_the_exit_code_of_their_program",
            Needs::Machine,
            a_session_returns_the_exit_code_of_its_program,
        ),
        scenario(
            environment,
            "sessions_that_are_killed_end_program_and_agent",
            Needs::Machine,
            a_killed_session_ends_everything,
        ),
        scenario(
            environment,
            "sessions_that_cannot_start_report_why",
            Needs::Machine,
            a_session_that_cannot_start_reports_why,
        ),
        scenario(
            environment,
            "targets_leave_nothing",
            Needs::Machine,
            targets_leave_nothing,
        ),
    ]
}

async fn a_session_returns_the_exit_code_of_its_program(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let output = ProgramOutput::of(&mut programs()?.exec(&target, &["sh", "-c", "exit 7"]))?;
    ensure!(output.code == Some(7), "{output}");
    let output = ProgramOutput::of(&mut programs()?.exec(&target, &["sh", "-c", "kill -TERM $$"]))?;
    ensure!(output.code == Some(128 + 15), "{output}");
    Ok(())
}

async fn a_killed_session_ends_everything(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    // An argument that no other process on the machine has.
    let unique = format!("1{}", target.pid());
    let mut session = programs()?
        .exec(&target, &["sleep", &unique])
        .stderr(Stdio::null())
        .spawn()?;
    let (program, agent) = (
        format!("^sleep {unique}"),
        format!("[-]-process {}( |$)", target.pid()),
    );
    until("the program to run", async || {
        Ok(is_running(&program).then_some(()))
    })
    .await?;
    ensure!(is_running(&agent), "there is no agent");
    session.kill()?;
    session.wait()?;
    until("the program to end", async || {
        Ok((!is_running(&program)).then_some(()))
    })
    .await?;
    until("the agent to end", async || {
        Ok((!is_running(&agent)).then_some(()))
    })
    .await
}

fn is_running(pattern: &str) -> bool {
    let found = Command::new("pgrep")
        .args(["-f", pattern])
        .stdout(Stdio::null())
        .status();
    found.is_ok_and(|status| status.success())
}

async fn a_session_that_cannot_start_reports_why(_: &Scenario<'_>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let wrong = folder.path().join("standin.yaml");
    fs::write(&wrong, "feature:\n  env:\n    inclde: A\n")?;
    let wrong = wrong.to_str().context("the path is not UTF-8")?;
    for (arguments, expected) in [
        (
            vec!["exec", "-t", "process/4194303", "--", "true"],
            "there is no process 4194303",
        ),
        (
            vec!["exec", "-t", "nonsense", "--", "true"],
            "process/<pid>",
        ),
        (vec!["exec", "--", "true"], "name a target"),
        (
            vec!["exec", "-f", wrong, "-t", "process/1", "--", "true"],
            "include",
        ),
        (vec!["verify-config", wrong], "include"),
    ] {
        let output = ProgramOutput::of(programs()?.standin().args(&arguments))?;
        ensure!(output.code != Some(0), "{arguments:?} succeeded: {output}");
        ensure!(
            output.stdout.contains(expected) || output.stderr.contains(expected),
            "{arguments:?} does not print {expected:?}: {output}"
        );
    }
    Ok(())
}

/// A target that is dropped ends together with its peer network.
async fn targets_leave_nothing(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let pid = target.pid();
    let process = format!("/proc/{pid}");
    ensure!(fs::exists(&process)?, "the target does not run");
    drop(target);
    until("the target to end", async || {
        Ok((!fs::exists(&process)?).then_some(()))
    })
    .await
}
