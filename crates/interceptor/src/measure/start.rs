//! How long a program takes from being started to its end.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use super::{Comparison, Prefixes, Samples, failed};
use crate::notification::errno_of;
use crate::{Error, Host, Launch};

/// Runs a program that ends by itself, this many times in each way. What it prints goes nowhere only if the program sees
/// to that; its input is empty when bare, and ours when supervised. A session that is up has prepared its program. Without `host` it is one that has a few remote paths.
///
/// # Errors
/// When the program cannot be started, or this machine does not allow supervision.
pub fn start(
    program: &Path,
    arguments: &[&str],
    times: usize,
    host: Option<Arc<dyn Host>>,
) -> Result<Comparison, Error> {
    let host = host.unwrap_or_else(|| Arc::new(Prefixes));
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
