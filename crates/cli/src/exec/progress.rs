//! What the user sees of a session that starts: one line that names each step with its time, and disappears into one
//! final line. Whatever else is said goes around it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::env;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::notices::{Kind, Notices, Verdict};
use crate::environment::{NO_COLOR, TERM};

/// How often the time of a step that takes long is shown anew.
const REFRESH: Duration = Duration::from_millis(100);
/// Steps as short as this are not worth a time.
const WORTH_A_TIME: Duration = Duration::from_millis(1);
const CLEAR_LINE: &str = "\r\x1b[2K";

/// Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Progress(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    started: Instant,
    quiet: bool,
    /// Whether there is a line that can be drawn over.
    line: bool,
    color: bool,
    steps: Vec<(Cow<'static, str>, Duration)>,
    current: Option<(Cow<'static, str>, Instant)>,
    /// What was said of the settings, which is not said twice.
    said: HashSet<String>,
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
            said: HashSet::new(),
            notices: Notices::default(),
        })));
        if line {
            refresh(Arc::downgrade(&progress.0));
        }
        progress
    }

    /// The step that begins now ends the one before.
    pub(crate) fn step(&self, name: impl Into<Cow<'static, str>>) {
        let name = name.into();
        let mut state = self.state();
        state.end_step();
        tracing::info!(step = &*name, "starting");
        state.current = Some((name, Instant::now()));
        state.draw();
    }

    /// The same, when it is part of the start and not something that happens to the session later.
    pub(crate) fn begin(&self, name: impl Into<Cow<'static, str>>) {
        let starting = self.state().current.is_some();
        if starting {
            self.step(name);
        }
    }

    /// The step that goes on is known better.
    pub(crate) fn rename(&self, name: impl Into<Cow<'static, str>>) {
        let mut state = self.state();
        if let Some((current, _)) = &mut state.current {
            *current = name.into();
            state.draw();
        }
    }

    /// The line is gone, and the program's output may come.
    pub(crate) fn finish(&self, target: &str) {
        let mut state = self.state();
        state.end();
        let text = format!(
            "standing in for {target} ({})",
            milliseconds(state.started.elapsed())
        );
        tracing::info!(steps = ?state.steps, "{text}");
        if !state.quiet {
            state.print(&text);
        }
    }

    /// Takes the line away, before an error is shown.
    pub(crate) fn clear(&self) {
        self.state().end();
    }

    /// Tells the user something, once.
    pub(crate) fn say(&self, text: &str) {
        let mut state = self.state();
        tracing::warn!("{text}");
        if state.said.insert(text.to_owned()) {
            state.print(text);
        }
    }

    /// Tells the user something about a file or a program, once, and not of any number of them.
    pub(super) fn say_some(&self, kind: Kind, text: &str) {
        let mut state = self.state();
        tracing::warn!("{text}");
        match state.notices.judge(kind, text) {
            Verdict::Say => state.print(text),
            Verdict::SayThatThereAreMore => {
                state.print("there are more messages of this kind; with -v, all are in the log");
            }
            Verdict::Silence => {}
        }
    }

    pub(crate) fn say_what_was_left_out(&self) {
        let state = self.state();
        let left_out = state.notices.left_out();
        if left_out > 0 {
            state.print(&format!(
                "{left_out} more such messages were left out; with -v, all are in the log"
            ));
        }
    }

    /// Tells the user of something that happens, as often as it does.
    pub(crate) fn report(&self, text: &str) {
        tracing::warn!("{text}");
        self.state().print(text);
    }

    /// Tells the user something that is no warning.
    pub(crate) fn note(&self, text: &str) {
        tracing::info!("{text}");
        let state = self.state();
        if !state.quiet {
            state.print(text);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        // In one piece, so that nothing of the program comes between.
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

/// The line as it is now, cut at the front where the terminal is too narrow: what happens now is at the end.
fn line<Name: AsRef<str>>(
    steps: &[(Name, Duration)],
    current: &str,
    elapsed: Duration,
    width: usize,
    color: bool,
) -> String {
    let mut done = String::new();
    for (name, time) in steps.iter().filter(|(_, time)| *time >= WORTH_A_TIME) {
        let _ = write!(done, "{} {}, ", name.as_ref(), milliseconds(*time));
    }
    let mut now = current.to_owned();
    if elapsed >= REFRESH {
        let _ = write!(now, " {}", milliseconds(elapsed));
    }
    now.push('…');
    let beginning = "standin: ";
    let used = beginning.len() + now.chars().count() + 1;
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
        format!("{beginning}\x1b[2m{done}\x1b[0m{now}")
    } else {
        format!("{beginning}{done}{now}")
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

/// Draws again while a step takes long, until the line is gone.
fn refresh(state: Weak<Mutex<State>>) {
    thread::spawn(move || {
        loop {
            thread::sleep(REFRESH);
            let Some(state) = state.upgrade() else { return };
            let state = state.lock().unwrap_or_else(PoisonError::into_inner);
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

/// A terminal that is gone is no reason to end.
fn write_all(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_steps_with_their_times_and_fits() {
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
