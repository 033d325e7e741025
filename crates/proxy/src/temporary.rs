//! Temporary folders and other files on this machine, which are removed when the session ends.
//!
//! They are also removed if this process is killed: a shell reads from a pipe whose only writer is this process, and
//! removes them at the end of its input.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// A temporary folder that only this user can enter. It is removed on drop, or when the process ends.
#[derive(Debug)]
pub struct TemporaryFolder {
    folder: TempDir,
    /// Removes the folder if this process is killed.
    _remover: Remover,
}

impl TemporaryFolder {
    pub fn new() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("standin-").tempdir()?;
        Ok(Self {
            _remover: Remover::start([folder.path()])?,
            folder,
        })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A shell process that removes files and folders when this is dropped, or when this process ends for whatever reason.
#[derive(Debug)]
pub struct Remover(Child);

impl Remover {
    /// The paths need not exist yet.
    pub fn start<'path>(paths: impl IntoIterator<Item = &'path Path>) -> io::Result<Self> {
        let script = r#"trap "" HUP INT QUIT TERM; read -r _; rm -rf -- "$@""#;
        let shell = Command::new("/bin/sh")
            .args(["-c", script, "sh"])
            .args(paths)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Signals that the terminal sends to this process must not reach the shell.
            .process_group(0)
            .spawn()?;
        Ok(Self(shell))
    }
}

impl Drop for Remover {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_is_removed_when_the_process_is_killed() {
        let folder = tempfile::tempdir().unwrap().keep();
        fs::write(folder.join("x"), "").unwrap();
        let mut remover = Remover::start([folder.as_path()]).unwrap();
        // The kernel closes the pipe in the same way when the process is killed.
        drop(remover.0.stdin.take());
        remover.0.wait().unwrap();
        assert!(!folder.exists());
    }
}
