//! Messages to the user on standard error. While a session starts, one line shows each step with its duration; a final
//! line replaces it. Other messages are printed above that line.

use std::borrow::Cow;
use std::collections::HashSet;
use std::env;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::notices::{NoticeKind, Notices, Verdict};
use crate::environment::{NO_COLOR, TERM};

/// How often the duration of the current step is redrawn.
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);
/// Shorter steps are not shown.
const MIN_SHOWN: Duration = Duration::from_millis(1);
const CLEAR_LINE: &str = "\r\x1b[2K";

/// Clones share state.
#[derive(Debug, Clone)]
pub(crate) struct Progress(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    started: Instant,
    quiet: bool,
    /// Whether there is a progress line, which must be cleared before other output.
    line: bool,
    color: bool,
    steps: Vec<(Cow<'static, str>, Duration)>,
    current: Option<(Cow<'static, str>, Instant)>,
    /// The warnings that were printed, each once.
    warned: HashSet<String>,
    notices: Notices,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Self {
        let dumb = env::var_os(TERM).is_none_or(|term| term == "dumb");
        let line = !quiet && !dumb && io::stderr().is_terminal();
        let progress = Progress(Arc::new(Mutex::new(State {
            started: Instant::now(),
            quiet,
            line,
            color: colors(),
            steps: Vec::new(),
            current: None,
            warned: HashSet::new(),
            notices: Notices::default(),
        })));
        if line {
            refresh(Arc::downgrade(&progress.0));
        }
        progress
    }

    /// Starts a step and ends the previous one.
    pub(crate) fn step(&self, name: impl Into<Cow<'static, str>>) {
        let name = name.into();
        let mut state = self.state();
        state.end_step();
        tracing::info!(step = &*name, "startup step");
        state.current = Some((name, Instant::now()));
        state.draw();
    }

    /// Starts a step if the session is still starting, and does nothing later, as when an agent is replaced.
    pub(crate) fn startup_step(&self, name: impl Into<Cow<'static, str>>) {
        let starting = self.state().current.is_some();
        if starting {
            self.step(name);
        }
    }

    /// Renames the current step.
    pub(crate) fn rename(&self, name: impl Into<Cow<'static, str>>) {
        let mut state = self.state();
        if let Some((current, _)) = &mut state.current {
            *current = name.into();
            state.draw();
        }
    }

    /// Replaces the progress line by the final line, before the program's output starts.
    pub(crate) fn finish(&self, target: &str) {
        let mut state = self.state();
        state.end();
        let text = format!(
            "standing in for {target} ({})",
            milliseconds(state.started.elapsed())
        );
        tracing::info!(session = target, steps = ?state.steps, "session started");
        if !state.quiet {
            state.print(&text);
        }
    }

    /// Clears the progress line before an error is printed.
    pub(crate) fn clear(&self) {
        self.state().end();
    }

    /// Prints a warning, once for each text.
    pub(crate) fn warn(&self, text: &str) {
        let mut state = self.state();
        tracing::warn!(%text, "notice");
        if state.warned.insert(text.to_owned()) {
            state.print(text);
        }
    }

    /// Prints a warning about a file or a program, once for each text, and up to a limit for each kind.
    pub(super) fn warn_limited(&self, kind: NoticeKind, text: &str) {
        let mut state = self.state();
        tracing::warn!(%text, "notice");
        match state.notices.check(kind, text) {
            Verdict::Print => state.print(text),
            Verdict::AnnounceMore => {
                state.print("there are more messages of this kind; with -v, all are in the log");
            }
            Verdict::Suppress => {}
        }
    }

    /// Prints how many warnings were suppressed.
    pub(crate) fn report_suppressed(&self) {
        let state = self.state();
        let suppressed = state.notices.suppressed();
        if suppressed > 0 {
            state.print(&format!(
                "{suppressed} more messages of these kinds were suppressed; with -v, all are in the log"
            ));
        }
    }

    /// Prints an event, also if it is repeated.
    pub(crate) fn report(&self, text: &str) {
        tracing::warn!(%text, "notice");
        self.state().print(text);
    }

    /// Prints information, unless the user wants warnings only.
    pub(crate) fn note(&self, text: &str) {
        tracing::info!(%text, "notice");
        let state = self.state();
        if !state.quiet {
            state.print(text);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    fn end_step(&mut self) {
        if let Some((name, since)) = self.current.take() {
            self.steps.push((name, since.elapsed()));
        }
    }

    fn end(&mut self) {
        self.end_step();
        if self.line {
            write_all(CLEAR_LINE);
            self.line = false;
        }
    }

    fn print(&self, text: &str) {
        let clear = if self.line { CLEAR_LINE } else { "" };
        // In one write, so that the program's output cannot interleave.
        write_all(&format!("{clear}standin: {text}\n"));
        self.draw();
    }

    fn draw(&self) {
        if !self.line {
            return;
        }
        if let Some((name, since)) = &self.current {
            let width = terminal_width();
            let text = line(&self.steps, name, since.elapsed(), width, self.color);
            write_all(&format!("{CLEAR_LINE}{text}"));
        }
    }
}

/// The text of the progress line. It is cut at the front if the terminal is too narrow, because the current step is at the
/// end.
fn line<Name: AsRef<str>>(
    steps: &[(Name, Duration)],
    current: &str,
    elapsed: Duration,
    width: usize,
    color: bool,
) -> String {
    let mut done = String::new();
    for (name, time) in steps.iter().filter(|(_, time)| *time >= MIN_SHOWN) {
        let _ = write!(done, "{} {}, ", name.as_ref(), milliseconds(*time));
    }
    let mut now = current.to_owned();
    if elapsed >= REFRESH_INTERVAL {
        let _ = write!(now, " {}", milliseconds(elapsed));
    }
    now.push('…');
    let prefix = "standin: ";
    let used = prefix.len() + now.chars().count() + 1;
    let room = width.saturating_sub(used);
    let length = done.chars().count();
    if length > room {
        done = if room == 0 {
            String::new()
        } else {
            let rest = done.chars().skip(length - (room - 1));
            std::iter::once('…').chain(rest).collect()
        };
    }
    if color && !done.is_empty() {
        format!("{prefix}\x1b[2m{done}\x1b[0m{now}")
    } else {
        format!("{prefix}{done}{now}")
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

/// Redraws the progress line periodically, until it is gone.
fn refresh(state: Weak<Mutex<State>>) {
    thread::spawn(move || {
        loop {
            thread::sleep(REFRESH_INTERVAL);
            let Some(state) = state.upgrade() else { return };
            let state = state.lock();
            if !state.line {
                return;
            }
            state.draw();
        }
    });
}

pub(crate) fn colors() -> bool {
    env::var_os(NO_COLOR).is_none_or(|value| value.is_empty())
}

fn terminal_width() -> usize {
    rustix::termios::tcgetwinsize(io::stderr())
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0)
        .unwrap_or(80)
}

/// Ignores errors: a closed terminal must not end the session.
fn write_all(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_shows_the_steps_with_their_durations_and_fits() {
        let steps = [
            ("reading the configuration", Duration::from_micros(300)),
            ("finding the target", Duration::from_millis(12)),
            ("starting the agent", Duration::from_millis(8)),
        ];
        let check = |elapsed: u64, width, color, expected: &str| {
            let elapsed = Duration::from_millis(elapsed);
            let text = line(&steps, "connecting", elapsed, width, color);
            assert_eq!(text, expected);
            if !color {
                assert!(text.chars().count() < width.max(21), "{text}");
            }
        };
        check(
            3,
            100,
            false,
            "standin: finding the target 12 ms, starting the agent 8 ms, connecting…",
        );
        check(
            1200,
            100,
            true,
            "standin: \x1b[2mfinding the target 12 ms, starting the agent 8 ms, \x1b[0mconnecting 1200 ms…",
        );
        check(3, 40, false, "standin: …g the agent 8 ms, connecting…");
        check(3, 10, false, "standin: connecting…");
    }
}
