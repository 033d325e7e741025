//! The cost of monitoring a session: the same rounds with a monitor that is off, with one that has no subscriber, and with one
//! subscriber, in turn.

use std::io::Write as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use monitor::stream::write_event;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use proxy::{EventSubscription, Monitor};
use serde_json::json;

/// A subscriber keeps up with so many rounds at a time. Events that it missed would cost nothing.
const ROUNDS_AT_ONCE: u32 = 100;
/// How long the session's socket collects events before it writes them.
const BATCH_INTERVAL: Duration = Duration::from_millis(25);

#[derive(Debug, Args)]
pub(crate) struct MonitorArguments {
    /// How many times each case is measured
    #[arg(long, default_value_t = 25)]
    turns: u32,
    /// How many rounds a measurement has
    #[arg(long, default_value_t = 2000)]
    rounds: u32,
}

/// Prints microseconds of CPU for each event, by turn.
pub(crate) fn run(arguments: &MonitorArguments) -> Result<()> {
    let (mut off, mut unsubscribed, mut subscribed) = (Vec::new(), Vec::new(), Vec::new());
    // The first turn warms up.
    for turn in 0..=arguments.turns {
        let turns = [
            measure(&Monitor::off(), arguments.rounds, None)?,
            measure(&Monitor::on(), arguments.rounds, None)?,
            measure_subscribed(arguments.rounds)?,
        ];
        if turn > 0 {
            let [none, on, with_subscriber] = turns;
            off.push(none);
            unsubscribed.push(on);
            subscribed.push(with_subscriber);
        }
    }
    println!(
        "{}",
        json!({"off": off, "unsubscribed": unsubscribed, "subscribed": subscribed})
    );
    Ok(())
}

fn measure_subscribed(rounds: u32) -> Result<f64> {
    let monitor = Monitor::on();
    let events = monitor.subscribe(None).context("the monitor is off")?;
    let (mut reader, input) = reader()?;
    let (has_read, read) = mpsc::channel();
    let subscriber = thread::spawn(move || subscribe(events, input, &has_read));
    let cost = measure(&monitor, rounds, Some(&read))?;
    drop(read);
    // The subscriber ends when it cannot report the next event.
    monitor.simulate_traffic(0);
    let _ = subscriber.join();
    reader.wait()?;
    Ok(cost)
}

/// Another process reads, so that its CPU time is not counted.
fn reader() -> Result<(Child, ChildStdin)> {
    let mut reader = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let input = reader.stdin.take().context("no input")?;
    Ok((reader, input))
}

/// Writes the events as the session's socket does.
fn subscribe(
    mut events: EventSubscription,
    mut input: ChildStdin,
    has_read: &mpsc::Sender<u64>,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    loop {
        let batch = runtime.block_on(events.next());
        let mut sent = Vec::new();
        let last = batch.entries.last().map_or(0, |entry| entry.seq);
        for entry in batch.entries {
            write_event(&entry, &mut sent);
        }
        input.write_all(&sent)?;
        has_read.send(last)?;
        thread::sleep(BATCH_INTERVAL);
    }
}

fn measure(monitor: &Monitor, rounds: u32, read: Option<&mpsc::Receiver<u64>>) -> Result<f64> {
    let before = microseconds()?;
    for round in 0..rounds {
        monitor.simulate_traffic(round);
        let is_last = round + 1 == rounds;
        if let Some(read) = read
            && (round % ROUNDS_AT_ONCE == ROUNDS_AT_ONCE - 1 || is_last)
        {
            let emitted = monitor.counters().events;
            while read.recv()? < emitted {}
        }
    }
    let events = f64::from(rounds * Monitor::EVENTS_PER_ROUND);
    Ok((microseconds()? - before) / events)
}

/// The CPU time of this process, with all its threads.
fn microseconds() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let used = usage.user_time() + usage.system_time();
    #[expect(clippy::cast_precision_loss, reason = "no process runs for so long")]
    Ok(used.num_microseconds() as f64)
}
