//! What the programs of the control path have in common: the log, the runtime, and the end on a signal.

use std::future::Future;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

#[derive(Debug, Args)]
pub(crate) struct LogArguments {
    /// The log level on standard error: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: LevelFilter,
    /// Write each line of the log as a JSON object
    #[arg(long)]
    log_json: bool,
}

impl LogArguments {
    /// The log level applies to our crates. Logs of dependencies may contain headers, and headers may contain secrets.
    pub(crate) fn start(&self, crates: &[&'static str], rows: Option<&'static str>) {
        start_log(self.log, self.log_json, crates, rows);
    }
}

/// The log is on standard error. Events with the target `rows` are on standard output instead, one JSON object per line, whatever
/// the level of the log is.
pub(crate) fn start_log(
    level: LevelFilter,
    as_json: bool,
    crates: &[&'static str],
    rows: Option<&'static str>,
) {
    let mut filter = Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_targets(crates.iter().map(|name| (*name, level)));
    let rows = rows.map(|target| {
        filter = std::mem::take(&mut filter).with_target(target, LevelFilter::OFF);
        let layer = fmt::layer().json().flatten_event(true);
        let layer = layer.with_writer(std::io::stdout);
        layer.with_filter(Targets::new().with_target(target, LevelFilter::INFO))
    });
    let log = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    let registry = tracing_subscriber::registry().with(rows);
    if as_json {
        let log = log.json().flatten_event(true);
        registry.with(log.with_filter(filter)).init();
    } else {
        registry.with(log.with_filter(filter)).init();
    }
}

/// Runs until the work ends by itself or a signal cancels the token that it gets. `threads`: default one per processor.
pub(crate) fn run<W>(
    threads: Option<usize>,
    work: impl FnOnce(CancellationToken) -> W,
) -> Result<()>
where
    W: Future<Output = Result<()>>,
{
    admission::raise_descriptor_limit().context("the limit of open files cannot be raised")?;
    let mut builder = Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    let runtime = builder
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    runtime.block_on(async {
        let shutdown = CancellationToken::new();
        shutdown_on_signals(shutdown.clone())?;
        work(shutdown).await
    })
}

/// The exit status of a program, whose error is printed.
pub(crate) fn exit(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("standind: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Shuts down on signals. The first process of a container ignores signals without a handler.
fn shutdown_on_signals(shutdown: CancellationToken) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        shutdown.cancel();
    });
    Ok(())
}
