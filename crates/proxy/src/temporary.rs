//! Folders of a session on this machine, which are gone when it is.
//!
//! If we are killed, there is still somebody to remove them: a shell that waits for the end of its input, which is us.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// An empty folder that only this user can enter.
#[derive(Debug)]
pub struct TemporaryFolder {
    folder: TempDir,
    /// Ends with the session.
    _remover: Remover,
}

impl TemporaryFolder {
    pub fn new() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("standin-").tempdir()?;
        Ok(Self {
            _remover: Remover::start(folder.path())?,
            folder,
        })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes a folder when we end, however we end.
#[derive(Debug)]
struct Remover(Child);

impl Remover {
    fn start(folder: &Path) -> io::Result<Self> {
        let script = r#"trap "" HUP INT QUIT TERM; read -r _; rm -rf -- "$1""#;
        let shell = Command::new("/bin/sh")
            .args(["-c", script, "sh"])
            .arg(folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What the terminal sends to us is not for it.
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
    fn a_folder_is_removed_also_when_nobody_drops_it() {
        let folder = tempfile::tempdir().unwrap().keep();
        fs::write(folder.join("x"), "").unwrap();
        let mut remover = Remover::start(&folder).unwrap();
        // As when the process that holds the other end is killed.
        drop(remover.0.stdin.take());
        remover.0.wait().unwrap();
        assert!(!folder.exists());
    }
}
