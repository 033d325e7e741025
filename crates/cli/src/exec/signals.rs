//! Forwards signals to the program.
//!
//! Program and supervisor are in one process group, so signals of the terminal (Ctrl-C, Ctrl-Z, Ctrl-\, a hang-up) reach
//! both. Signals that are sent to the supervisor alone are forwarded. Neither kind ends the supervisor, which waits for the
//! exit of the program.

use std::io::{PipeReader, Read as _};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, raise};
use proxy::Signaller;

use crate::{process, sys};

const FORWARDED_SIGNALS: &[Signal] = &[
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// How often and how many times to check whether the program has stopped after SIGTSTP. A program that restores the terminal
/// first takes a moment; one that ignores the signal never stops.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const MAX_POLLS: u32 = 200;

/// Catches signals, and forwards them once the program runs.
#[derive(Debug)]
pub(super) struct SignalForwarder(PipeReader);

impl SignalForwarder {
    /// Catches signals from now on. Earlier signals end the process, since there is no program yet.
    pub(super) fn start() -> Result<Self> {
        sys::catch(FORWARDED_SIGNALS)
            .map(SignalForwarder)
            .context("cannot install signal handlers")
    }

    /// Forwards signals to the program for the rest of this process.
    pub(super) fn forward_to(mut self, program: Signaller, process: i32) {
        thread::spawn(move || {
            let mut message = sys::Message::default();
            while self.0.read_exact(&mut message).is_ok() {
                let [number, by_terminal] = message;
                handle(i32::from(number), by_terminal != 0, &program, process);
            }
        });
    }
}

fn handle(number: i32, by_terminal: bool, program: &Signaller, process: i32) {
    tracing::debug!(number, by_terminal, "signal received");
    if !by_terminal {
        // This fails if the program has ended, and then this process ends in a moment as well.
        let _ = program.signal(number);
    }
    if number == libc::SIGTSTP {
        stop_with(process);
    }
}

/// Stops this process when the program has stopped, so that the shell gets its terminal back. The SIGCONT that continues
/// this process is forwarded to the program.
fn stop_with(program: i32) {
    for _ in 0..MAX_POLLS {
        match process::state(program.cast_unsigned()) {
            Some('T') => {
                // Stops the process like an uncaught signal of the terminal.
                sys::release(Signal::SIGTSTP);
                let _ = raise(Signal::SIGTSTP);
                sys::catch_again(Signal::SIGTSTP);
                return;
            }
            Some(_) => thread::sleep(POLL_INTERVAL),
            None => return,
        }
    }
}
