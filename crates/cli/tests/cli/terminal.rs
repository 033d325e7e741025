//! A terminal for a program, as a user has one.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use nix::pty::openpty;

use crate::world::Standin;

pub(crate) struct Terminal {
    screen: File,
    pub(crate) child: Child,
    /// Everything that was shown.
    pub(crate) shown: String,
}

impl Terminal {
    /// Runs a shell script on a terminal of its own; `$STANDIN` is the program.
    pub(crate) fn start(standin: &Standin, script: &str, variables: &[(&str, &str)]) -> Self {
        let pair = openpty(None, None).unwrap();
        let side = |side: &OwnedFd| Stdio::from(side.try_clone().unwrap());
        // Reading a screen waits, so whatever hangs is ended from outside.
        let mut command = Command::new("timeout");
        command.args(["120", "setsid", "--ctty", "--wait", "bash", "-c", script]);
        standin.complete(&mut command);
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

    /// Reads on until something is shown.
    #[track_caller]
    pub(crate) fn until_shown(&mut self, expected: &str) {
        while !self.shown.contains(expected) {
            assert!(
                self.read(),
                "{expected:?} was never shown: {:?}",
                self.shown
            );
        }
    }

    /// Everything that was shown, and the exit code.
    pub(crate) fn wait(&mut self) -> (String, Option<i32>) {
        while self.read() {}
        (self.shown.clone(), self.child.wait().unwrap().code())
    }

    /// A terminal that nobody uses any more ends with an error.
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
