//! What it costs a session to be watched: the same rounds with a monitor that is off, with one to which nobody listens, and with
//! one listener, in turn.

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

/// A listener keeps up with so many at a time: what it would miss costs nothing.
const ROUNDS_AT_ONCE: u32 = 100;
/// As long as the session's socket lets events gather.
const TOGETHER: Duration = Duration::from_millis(25);

#[derive(Debug, Args)]
pub(crate) struct MonitorArguments {
    /// How often each is measured
    #[arg(long, default_value_t = 25)]
    turns: u32,
    /// How many rounds make a measure
    #[arg(long, default_value_t = 2000)]
    rounds: u32,
}

/// Prints microseconds of CPU for each event, by turn.
pub(crate) fn run(arguments: &MonitorArguments) -> Result<()> {
    let (mut off, mut unheard, mut heard) = (Vec::new(), Vec::new(), Vec::new());
    // The first turn warms up.
    for turn in 0..=arguments.turns {
        let turns = [
            measure(&Monitor::off(), arguments.rounds, None)?,
            measure(&Monitor::on(), arguments.rounds, None)?,
            measure_heard(arguments.rounds)?,
        ];
        if turn > 0 {
            let [none, on, listened] = turns;
            off.push(none);
            unheard.push(on);
            heard.push(listened);
        }
    }
    println!(
        "{}",
        json!({"off": off, "unheard": unheard, "heard": heard})
    );
    Ok(())
}

fn measure_heard(rounds: u32) -> Result<f64> {
    let monitor = Monitor::on();
    let events = monitor.subscribe(None).context("the monitor is off")?;
    let (mut reader, input) = reader()?;
    let (has_read, read) = mpsc::channel();
    let listener = thread::spawn(move || listen(events, input, &has_read));
    let cost = measure(&monitor, rounds, Some(&read))?;
    drop(read);
    // It ends with the next event, which nobody waits for.
    monitor.simulate_traffic(0);
    let _ = listener.join();
    reader.wait()?;
    Ok(cost)
}

/// Somebody else reads, whose time is not ours.
fn reader() -> Result<(Child, ChildStdin)> {
    let mut reader = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let input = reader.stdin.take().context("no input")?;
    Ok((reader, input))
}

/// As the session's socket does it.
fn listen(
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
        thread::sleep(TOGETHER);
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
            let told = monitor.counters().events;
            while read.recv()? < told {}
        }
    }
    let events = f64::from(rounds * Monitor::EVENTS_PER_ROUND);
    Ok((microseconds()? - before) / events)
}

/// Of this process, with all its threads.
fn microseconds() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let used = usage.user_time() + usage.system_time();
    #[expect(clippy::cast_precision_loss, reason = "no process runs for so long")]
    Ok(used.num_microseconds() as f64)
}
