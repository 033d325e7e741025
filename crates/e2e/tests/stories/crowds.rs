//! Many connections and many bytes through one session.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::Recipe;
use e2e::machine::{Ended, RunningAgent, Target, Transport};
use e2e::{LaterWorld, Needs, Story, tell};
use libtest_mimic::Trial;

use super::surroundings::{cache, programs};

/// A reader that stands still may cost no more than this, on every hop. It has asked for 100 MiB.
const LARGEST_GROWTH_KIB: u64 = 32 * 1024;

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![
        tell(
            world,
            "two_thousand_connections_at_once",
            Needs::Machine,
            two_thousand_connections_at_once,
        ),
        tell(
            world,
            "a_hundred_megabytes_each_way",
            Needs::Machine,
            a_hundred_megabytes_each_way,
        ),
        tell(
            world,
            "a_slow_reader_costs_no_memory_and_delays_nobody",
            Needs::Machine,
            a_slow_reader_costs_no_memory,
        ),
    ]
}

fn crowd(target: &Target, arguments: &[&str]) -> Result<Command> {
    let program = Recipe::CROWD.make(&cache())?;
    let mut command = programs()?.exec(target, &[program]);
    command.args(arguments);
    Ok(command)
}

async fn two_thousand_connections_at_once(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let ended = Ended::of(&mut crowd(&target, &["connections", "2000"])?)?;
    ensure!(ended.value("answered") == Some("2000"), "{ended}");
    Ok(())
}

async fn a_hundred_megabytes_each_way(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let ended = Ended::of(&mut crowd(&target, &["send"])?)?;
    ensure!(ended.value("sent") == Some("true"), "{ended}");
    let ended = Ended::of(&mut crowd(&target, &["receive"])?)?;
    ensure!(ended.value("received") == Some("104857600"), "{ended}");
    ensure!(ended.value("opinion") == Some("right"), "{ended}");
    Ok(())
}

async fn a_slow_reader_costs_no_memory(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let agent = RunningAgent::start(&programs()?, &target, Transport::Tcp)?;
    let mut session = agent
        .exec(&programs()?, &agent.address)
        .arg(Recipe::CROWD.make(&cache())?)
        .arg("slow")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output = BufReader::new(session.stdout.take().context("no output")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    ensure!(
        line == "beside=ok\n",
        "the others did not get through: {line}"
    );
    for pid in [session.id(), agent.pid()] {
        let memory = own_kib(pid)?;
        ensure!(
            memory < LARGEST_GROWTH_KIB,
            "process {pid} has grown to {memory} KiB"
        );
    }
    drop(session.stdin.take());
    let mut rest = String::new();
    output.read_to_string(&mut rest)?;
    ensure!(session.wait()?.success(), "{rest}");
    ensure!(
        rest.contains("received=104857600") && rest.contains("opinion=right"),
        "{rest}"
    );
    Ok(())
}

/// What a process has made, without the pages of its program.
fn own_kib(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .context("no memory")?;
    let number = line.split_whitespace().next().context("no number")?;
    Ok(number.parse()?)
}
