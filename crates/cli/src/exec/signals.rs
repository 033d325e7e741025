//! Signals that reach us and are meant for the program.
//!
//! Program and supervisor are in one process group, so what the terminal sends (Ctrl-C, Ctrl-Z, Ctrl-\, a hang-up)
//! reaches both, and the program needs no help. What somebody sends to us alone is passed on. Neither ends us: we live
//! on to see how the program ends.

use std::fs;
use std::io::{PipeReader, Read as _};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, raise};
use proxy::Signaller;

use crate::sys;

const PASSED_ON: &[Signal] = &[
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

/// How often and how long to look whether the program has stopped after the terminal asked it to. One that restores
/// the terminal first takes a moment; one that ignores the wish never does.
const LOOK_EVERY: Duration = Duration::from_millis(10);
const LOOKS: u32 = 200;

/// Signals that have come since they are caught.
#[derive(Debug)]
pub(super) struct Caught(PipeReader);

impl Caught {
    /// Catches signals from now on. Before, they end us, and the program is not there yet.
    pub(super) fn start() -> Result<Self> {
        sys::catch(PASSED_ON)
            .map(Caught)
            .context("signals cannot be caught")
    }

    /// Passes signals on to the program as long as we live.
    pub(super) fn pass_on(mut self, program: Signaller, process: i32) {
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
    tracing::debug!(number, by_terminal, "a signal has come");
    if !by_terminal {
        // When the program has ended, so shall we in a moment.
        let _ = program.signal(number);
    }
    if number == libc::SIGTSTP {
        stop_with(process);
    }
}

/// Stops us when the program has stopped, so that the shell gets its terminal back. What continues us continues it.
fn stop_with(process: i32) {
    for _ in 0..LOOKS {
        match state_of(process) {
            Some('T') => {
                // As the terminal would have stopped us.
                sys::release(Signal::SIGTSTP);
                let _ = raise(Signal::SIGTSTP);
                sys::catch_again(Signal::SIGTSTP);
                return;
            }
            Some(_) => thread::sleep(LOOK_EVERY),
            None => return,
        }
    }
}

fn state_of(process: i32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    state_in(&text)
}

/// "pid (name) state …", and the name may contain anything.
fn state_in(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_comes_after_a_name_that_may_contain_anything() {
        assert_eq!(state_in("12 (sleep) S 1 12"), Some('S'));
        assert_eq!(state_in("12 (a) T (b) T 1 12"), Some('T'));
        assert_eq!(state_in("nonsense"), None);
    }
}
