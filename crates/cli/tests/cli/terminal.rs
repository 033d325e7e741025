//! A pseudo terminal for a program.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use nix::pty::{Winsize, openpty};

use crate::support::Standin;

/// The size of terminals with a screen. No message of the tests is longer than a row.
const ROWS: u16 = 50;
const COLUMNS: u16 = 400;

pub(crate) struct Terminal {
    screen: File,
    pub(crate) child: Child,
    /// The output so far.
    pub(crate) shown: String,
}

impl Terminal {
    /// Runs a shell script on its own terminal, which has no size; `$STANDIN` is the program.
    pub(crate) fn start(standin: &Standin, script: &str, variables: &[(&str, &str)]) -> Self {
        Self::with_size(standin, script, variables, None)
    }

    /// Runs a shell script on a terminal whose [`rows`](Self::rows) can be read.
    pub(crate) fn with_screen(standin: &Standin, script: &str) -> Self {
        let size = Winsize {
            ws_row: ROWS,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        Self::with_size(standin, script, &[], Some(&size))
    }

    fn with_size(
        standin: &Standin,
        script: &str,
        variables: &[(&str, &str)],
        size: Option<&Winsize>,
    ) -> Self {
        let pair = openpty(size, None).unwrap();
        let side = |side: &OwnedFd| Stdio::from(side.try_clone().unwrap());
        // Reading the terminal blocks, so `timeout` ends a script that hangs.
        let mut command = Command::new("timeout");
        command.args(["120", "setsid", "--ctty", "--wait", "bash", "-c", script]);
        standin.configure(&mut command);
        command
            .env("STANDIN", env!("CARGO_BIN_EXE_standin"))
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .envs(variables.iter().copied())
            .stdin(side(&pair.slave))
            .stdout(side(&pair.slave))
            .stderr(side(&pair.slave));
        let child = command.spawn().unwrap();
        Terminal {
            screen: File::from(pair.master),
            child,
            shown: String::new(),
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.screen.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads until the output contains this text.
    #[track_caller]
    pub(crate) fn wait_for_output(&mut self, expected: &str) {
        while !self.shown.contains(expected) {
            assert!(self.read(), "{expected:?} was not shown: {:?}", self.shown);
        }
    }

    /// The whole output, and the exit code.
    pub(crate) fn wait(&mut self) -> (String, Option<i32>) {
        while self.read() {}
        (self.shown.clone(), self.child.wait().unwrap().code())
    }

    /// The rows of the screen, as a user sees them, without empty ones at the end.
    pub(crate) fn rows(&self) -> Vec<String> {
        let size = |number| NonZeroU16::new(number).unwrap();
        let mut screen = vt100::Parser::new(size(ROWS), size(COLUMNS), 0);
        screen.process(self.shown.as_bytes());
        let rows = screen.screen().rows(0, COLUMNS);
        let mut rows: Vec<String> = rows.map(|row| row.trim_end().to_owned()).collect();
        while rows.last().is_some_and(String::is_empty) {
            rows.pop();
        }
        rows
    }

    /// Returns false at the end. Reading a terminal without users is an error.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        match self.screen.read(&mut bytes) {
            Ok(count @ 1..) => {
                self.shown
                    .push_str(&String::from_utf8_lossy(&bytes[..count]));
                true
            }
            Ok(0) | Err(_) => false,
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
