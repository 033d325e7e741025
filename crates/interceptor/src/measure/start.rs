//! How long a program takes from start to exit.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use super::{Comparison, PrefixHost, Samples, failed};
use crate::notification::errno_of;
use crate::{Error, Host, Launch};

/// Runs a program that exits by itself, `times` times bare and as often supervised. Its output is not redirected; its
/// input is empty when bare, and ours when supervised. The supervised program is prepared in advance, as in a running
/// session. Without `host`, a host with a few remote paths is used.
///
/// # Errors
/// When the program cannot be started, or this machine does not allow supervision.
pub fn start(
    program: &Path,
    arguments: &[&str],
    times: usize,
    host: Option<Arc<dyn Host>>,
) -> Result<Comparison, Error> {
    let host = host.unwrap_or_else(|| Arc::new(PrefixHost));
    let environment: Vec<_> = std::env::vars_os().collect();
    let (mut bare, mut supervised) = (Vec::new(), Vec::new());
    for _ in 0..times {
        let before = Instant::now();
        Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .status()
            .map_err(|error| failed("run the program bare")(errno_of(&error)))?;
        bare.push(before.elapsed());
        let prepared = Launch::new(program)
            .arguments(arguments.iter().copied())
            .prepare()?;
        let environment = environment.iter().cloned();
        let before = Instant::now();
        let mut running = prepared.start(environment, Arc::clone(&host))?;
        running.wait()?;
        supervised.push(before.elapsed());
    }
    Ok(Comparison {
        bare: Samples::of(bare),
        supervised: Samples::of(supervised),
    })
}
