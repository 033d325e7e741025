//! Signals that reach us and are meant for the program.
//!
//! Program and supervisor are in one process group, so what the terminal sends (Ctrl-C, Ctrl-Z, Ctrl-\, a hang-up)
//! reaches both, and the program needs no help. What somebody sends to us alone is passed on. Neither ends us: we live
//! on to see how the program ends.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SignalFd, siginfo};
use proxy::Signaller;

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

/// Signals that are kept for [`pass_on`]. Must be made before any other thread, since threads inherit it.
#[derive(Debug)]
pub(super) struct Held(SigSet);

impl Held {
    pub(super) fn new() -> Result<Self> {
        let signals: SigSet = PASSED_ON.iter().copied().collect();
        signals.thread_block().context("signals cannot be held")?;
        Ok(Held(signals))
    }

    /// Lets signals through as long as `start` takes: the program must start with none of them blocked. One that comes
    /// now ends us, and whatever has been started with us.
    pub(super) fn let_through<T>(&self, start: impl FnOnce() -> T) -> Result<T> {
        self.0
            .thread_unblock()
            .context("signals cannot be let through")?;
        let result = start();
        self.0.thread_block().context("signals cannot be held")?;
        Ok(result)
    }

    /// Passes signals on to the program as long as we live.
    pub(super) fn pass_on(self, program: Signaller, process: i32) -> Result<()> {
        let signals = SignalFd::new(&self.0).context("signals cannot be read")?;
        thread::spawn(move || {
            loop {
                match signals.read_signal() {
                    Ok(Some(signal)) => handle(&signal, &program, process),
                    Ok(None) | Err(nix::errno::Errno::EINTR) => {}
                    Err(_) => return,
                }
            }
        });
        Ok(())
    }
}

fn handle(information: &siginfo, program: &Signaller, process: i32) {
    let Ok(signal) = i32::try_from(information.ssi_signo) else {
        return;
    };
    let by_terminal = information.ssi_code == libc::SI_KERNEL;
    tracing::debug!(signal, by_terminal, "a signal has come");
    if signal == libc::SIGTSTP && by_terminal {
        stop_with(process);
    } else if !by_terminal {
        // When the program has ended, so shall we in a moment.
        let _ = program.signal(signal);
        if signal == libc::SIGTSTP {
            stop_with(process);
        }
    }
}

/// Stops us when the program has stopped, so that the shell gets its terminal back. What continues us continues it.
fn stop_with(process: i32) {
    for _ in 0..LOOKS {
        match state_of(process) {
            Some('T') => {
                let _ = raise(Signal::SIGSTOP);
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
