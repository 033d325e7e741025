//! Many connections and much data through one session.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::Recipe;
use e2e::machine::{ProgramOutput, RunningAgent, Target, Transport};
use e2e::{LazyEnvironment, Needs, Scenario, scenario};
use libtest_mimic::Trial;

use super::support::{cache, programs};

/// The memory that a stalled reader of 100 MiB may use in each process.
const MAX_GROWTH_KIB: u64 = 32 * 1024;

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![
        scenario(
            environment,
            "two_thousand_concurrent_connections",
            Needs::Machine,
            two_thousand_concurrent_connections,
        ),
        scenario(
            environment,
            "a_hundred_megabytes_in_each_direction",
            Needs::Machine,
            a_hundred_megabytes_in_each_direction,
        ),
        scenario(
            environment,
            "a_slow_reader_uses_no_memory_and_delays_no_other_connection",
            Needs::Machine,
            a_slow_reader_uses_no_memory,
        ),
    ]
}

fn load_generator(target: &Target, arguments: &[&str]) -> Result<Command> {
    let program = Recipe::LOAD.compile(&cache())?;
    let mut command = programs()?.exec(target, &[program]);
    command.args(arguments);
    Ok(command)
}

async fn two_thousand_concurrent_connections(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let output = ProgramOutput::of(&mut load_generator(&target, &["connections", "2000"])?)?;
    ensure!(output.value("responded") == Some("2000"), "{output}");
    Ok(())
}

async fn a_hundred_megabytes_in_each_direction(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let output = ProgramOutput::of(&mut load_generator(&target, &["send"])?)?;
    ensure!(output.value("sent") == Some("true"), "{output}");
    let output = ProgramOutput::of(&mut load_generator(&target, &["receive"])?)?;
    ensure!(output.value("received") == Some("104857600"), "{output}");
    ensure!(output.value("verdict") == Some("right"), "{output}");
    Ok(())
}

async fn a_slow_reader_uses_no_memory(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let agent = RunningAgent::start(&programs()?, &target, Transport::Tcp)?;
    let mut session = agent
        .exec(&programs()?, &agent.address)
        .arg(Recipe::LOAD.compile(&cache())?)
        .arg("slow")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output = BufReader::new(session.stdout.take().context("no output")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    ensure!(
        line == "others=ok\n",
        "the other connections failed: {line}"
    );
    for pid in [session.id(), agent.pid()] {
        let memory = anonymous_kib(pid)?;
        ensure!(
            memory < MAX_GROWTH_KIB,
            "process {pid} has grown to {memory} KiB"
        );
    }
    drop(session.stdin.take());
    let mut rest = String::new();
    output.read_to_string(&mut rest)?;
    ensure!(session.wait()?.success(), "{rest}");
    ensure!(
        rest.contains("received=104857600") && rest.contains("verdict=right"),
        "{rest}"
    );
    Ok(())
}

/// The anonymous memory of a process, without the pages of its program.
fn anonymous_kib(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .context("no memory")?;
    let number = line.split_whitespace().next().context("no number")?;
    Ok(number.parse()?)
}
