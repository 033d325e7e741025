//! Messages to the user on standard error. While a session starts, one line shows each step with its duration; a final
//! line replaces it. Other messages are printed above that line. Similar events of the session are combined into one
//! message.

use std::borrow::Cow;
use std::collections::HashSet;
use std::env;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal as _, Write};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use proxy::{Event, EventKind};
use tokio::sync::Notify;
use tokio::time::sleep_until;

use super::notices::{Collected, Notices};
use super::terminal::{LINE_END, line_start};
use crate::environment::{NO_COLOR, TERM};

/// How often the duration of the current step is redrawn.
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);
/// Shorter steps are not shown.
const MIN_SHOWN: Duration = Duration::from_millis(1);
/// The width of a terminal that does not report it.
const DEFAULT_WIDTH: usize = 80;
const CLEAR_LINE: &str = "\r\x1b[2K";
/// Where all messages are listed, if not by the local API of a running session.
const IN_LOG: &str = "with -v, all are in the log";

/// Clones share state.
#[derive(Debug, Clone)]
pub(crate) struct Progress(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when a message is collected instead of printed.
    collected: Notify,
}

struct State {
    /// Standard error. Each call of `write_all` must be one message, so that the program's output cannot interleave.
    output: Box<dyn Write + Send>,
    started: Instant,
    quiet: bool,
    /// Whether there is a progress line, which must be cleared before other output.
    line: bool,
    /// Whether standard error is a terminal. The program inherits it, so it is the program's terminal, too.
    is_terminal: bool,
    /// Whether the terminal is one without escape sequences.
    is_dumb: bool,
    /// Whether the program may have begun a line on the terminal.
    has_program: bool,
    color: bool,
    steps: Vec<(Cow<'static, str>, Duration)>,
    current: Option<(Cow<'static, str>, Instant)>,
    /// The warnings that were printed, each once.
    warned: HashSet<String>,
    notices: Notices,
    /// The id of the session, if its local API can list all messages.
    session: Option<String>,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Self {
        let is_terminal = io::stderr().is_terminal();
        let progress = Self::with_output(Box::new(io::stderr()), is_terminal, quiet);
        if progress.state().line {
            refresh(Arc::downgrade(&progress.0));
        }
        progress
    }

    fn with_output(output: Box<dyn Write + Send>, is_terminal: bool, quiet: bool) -> Self {
        let is_dumb = env::var_os(TERM).is_none_or(|term| term == "dumb");
        let state = State {
            output,
            started: Instant::now(),
            quiet,
            line: is_terminal && !is_dumb && !quiet,
            is_terminal,
            is_dumb,
            has_program: false,
            color: colors(),
            steps: Vec::new(),
            current: None,
            warned: HashSet::new(),
            notices: Notices::default(),
            session: None,
        };
        Progress(Arc::new(Shared {
            state: Mutex::new(state),
            collected: Notify::new(),
        }))
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
        state.has_program = true;
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

    /// Prints an event of the session, or collects it if it is similar to earlier ones.
    pub(super) fn event(&self, event: &Event) {
        let text = event.to_string();
        let is_informational = event.is_informational();
        match is_informational {
            true => tracing::info!(%text, "notice"),
            false => tracing::warn!(%text, "notice"),
        }
        let mut state = self.state();
        if is_informational && state.quiet {
            return;
        }
        let Some(kind) = event.kind() else {
            return state.print(&text);
        };
        match state.notices.add(kind, &event.subject(), text, now()) {
            Some(text) => state.print(&text),
            None => self.0.collected.notify_one(),
        }
    }

    /// Sets the session whose local API lists the latest messages.
    pub(super) fn set_session(&self, id: &str) {
        self.state().session = Some(id.to_owned());
    }

    /// Prints collected messages when they are due. Never ends.
    pub(super) async fn print_collected(self) {
        loop {
            let due = self.state().notices.next_due();
            let is_due = async {
                match due {
                    Some(due) => sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = is_due => {}
                () = self.0.collected.notified() => {}
            }
            let mut state = self.state();
            for line in state.notices.take_due(now()) {
                let list = match (&state.session, &line) {
                    (None, _) => IN_LOG.to_owned(),
                    (Some(id), Collected::Many(EventKind::UnexpectedPort, _)) => {
                        format!("`standin session {id}` lists them")
                    }
                    (Some(id), _) => format!("`standin session {id} events` lists the latest"),
                };
                state.print_collected(line, &list);
            }
        }
    }

    /// Prints all collected messages. To be called when the session ends.
    pub(super) fn print_all_collected(&self) {
        let mut state = self.state();
        for line in state.notices.take_all(now()) {
            state.print_collected(line, IN_LOG);
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
        let mut state = self.state();
        if !state.quiet {
            state.print(text);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
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
            self.write(CLEAR_LINE);
            self.line = false;
        }
    }

    fn print(&mut self, text: &str) {
        let (start, end) = match () {
            () if self.line => (CLEAR_LINE.to_owned(), "\n"),
            () if self.is_terminal && self.has_program => {
                let columns = terminal_width().filter(|_| !self.is_dumb);
                (line_start(columns), LINE_END)
            }
            () => (String::new(), "\n"),
        };
        self.write(&format!("{start}standin: {text}{end}"));
        self.draw();
    }

    /// Prints collected messages. `list` says where all of them are listed.
    fn print_collected(&mut self, line: Collected, list: &str) {
        match line {
            Collected::One(text) => self.print(&text),
            Collected::Many(kind, count) => {
                self.print(&format!("{}; {list}", kind.summary(count)));
            }
        }
    }

    fn draw(&mut self) {
        if !self.line {
            return;
        }
        if let Some((name, since)) = &self.current {
            let width = terminal_width().unwrap_or(DEFAULT_WIDTH);
            let text = line(&self.steps, name, since.elapsed(), width, self.color);
            self.write(&format!("{CLEAR_LINE}{text}"));
        }
    }

    /// Ignores errors: a closed terminal must not end the session.
    fn write(&mut self, text: &str) {
        let _ = self.output.write_all(text.as_bytes());
        let _ = self.output.flush();
    }
}

impl fmt::Debug for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("State").finish_non_exhaustive()
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
fn refresh(shared: Weak<Shared>) {
    thread::spawn(move || {
        loop {
            thread::sleep(REFRESH_INTERVAL);
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let mut state = shared.state.lock();
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

fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stderr()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// The time of the runtime's clock, which tests control.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use proxy::Notice;
    use tokio::time::sleep;

    use super::*;

    /// Output that a test reads.
    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Captured {
        /// Takes the lines since the last call.
        fn lines(&self) -> Vec<String> {
            let bytes = std::mem::take(&mut *self.0.lock());
            let text = String::from_utf8(bytes).unwrap();
            text.lines().map(str::to_owned).collect()
        }
    }

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn similar_events_are_printed_as_one_line_when_no_more_of_them_follow() {
        let output = Captured::default();
        let progress = Progress::with_output(Box::new(output.clone()), false, true);
        progress.set_session("5eed");
        tokio::spawn(progress.clone().print_collected());
        let warn = |numbers: std::ops::Range<u32>| {
            for number in numbers {
                let path = format!("/etc/{number}").into();
                progress.event(&Event::Program(Notice::WatchRefused { path }));
            }
        };
        warn(0..13);
        let first = "standin: /etc/0 is the target's and cannot be watched for changes: let the program poll instead";
        assert_eq!(output.lines(), [first]);
        sleep(Duration::from_secs(3)).await;
        let others = "standin: 12 more paths cannot be watched for changes; `standin session 5eed events` lists the latest";
        assert_eq!(output.lines(), [others]);
        warn(0..15);
        // Events of the session itself are never combined.
        progress.event(&Event::TargetExited);
        progress.event(&Event::TargetExited);
        assert_eq!(output.lines().len(), 2);
        progress.print_all_collected();
        let rest =
            "standin: 2 more paths cannot be watched for changes; with -v, all are in the log";
        assert_eq!(output.lines(), [rest]);
        sleep(Duration::from_secs(3600)).await;
        assert!(output.lines().is_empty());
    }

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
