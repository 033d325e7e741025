//! The folder of sockets: `~/.standin/sessions/<id>.sock`.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::{env, fmt};

use anyhow::{Context, Result, ensure};

use crate::environment::{HOME, SESSIONS_DIR};

const EXTENSION: &str = "sock";

/// The folder with the sockets of this user's sessions.
#[derive(Debug, Clone)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// The given folder, or the default one.
    pub(crate) fn new(given: Option<&Path>) -> Result<Self> {
        if let Some(folder) = given {
            return Ok(Self(folder.to_path_buf()));
        }
        if let Some(folder) = env::var_os(SESSIONS_DIR) {
            return Ok(Self(folder.into()));
        }
        let home = env::var_os(HOME).with_context(|| {
            format!("{HOME} is not set, so there is no folder for sessions; set {SESSIONS_DIR}")
        })?;
        Ok(Self(Path::new(&home).join(".standin/sessions")))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn socket(&self, id: &str) -> PathBuf {
        self.0.join(format!("{id}.{EXTENSION}"))
    }

    /// Creates the folder if it does not exist, and makes sure that only the user can access it.
    pub(crate) fn create(&self) -> Result<()> {
        let named = || self.0.display().to_string();
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&self.0).with_context(named)?;
        let metadata = fs::metadata(&self.0).with_context(named)?;
        let own = rustix::process::getuid().as_raw();
        ensure!(
            metadata.uid() == own,
            "{} belongs to another user",
            self.0.display()
        );
        if metadata.mode() & 0o077 != 0 {
            fs::set_permissions(&self.0, Permissions::from_mode(0o700)).with_context(named)?;
        }
        Ok(())
    }

    /// The ids of all running sessions. Removes stale sockets.
    pub(crate) fn sessions(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.0) else {
            return Vec::new();
        };
        let mut ids: Vec<String> = entries
            .flatten()
            .filter_map(|entry| {
                let path = entry.path();
                let id = id_of(&path)?;
                (!is_stale(&path)).then_some(id)
            })
            .collect();
        ids.sort();
        ids
    }
}

impl fmt::Display for Folder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(formatter)
    }
}

/// The id of the session with this socket.
fn id_of(path: &Path) -> Option<String> {
    let is_socket = path.extension().is_some_and(|name| name == EXTENSION);
    let id = path.file_stem()?.to_str()?;
    (is_socket && is_id(id)).then(|| id.to_owned())
}

/// Whether the text is safe as a part of paths and URLs.
pub(crate) fn is_id(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !text.is_empty() && text.len() <= 64 && text.bytes().all(plain)
}

/// Whether the socket has no listener. It is then removed.
fn is_stale(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => false,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let _ = fs::remove_file(path);
            true
        }
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_the_user_can_access_the_folder_and_stale_sockets_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder::new(Some(&parent.path().join("a/sessions"))).unwrap();
        folder.create().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        folder.create().unwrap();
        let mode = fs::metadata(folder.path()).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
        let _live = UnixListener::bind(folder.socket("live")).unwrap();
        drop(UnixListener::bind(folder.socket("stale")).unwrap());
        fs::write(folder.path().join("note.txt"), "").unwrap();
        assert_eq!(folder.sessions(), ["live"]);
        assert!(!folder.socket("stale").exists());
        assert!(folder.path().join("note.txt").exists());
    }

    #[test]
    fn ids_cannot_leave_the_folder() {
        for (text, expected) in [
            ("a1-B_2", true),
            ("", false),
            ("../x", false),
            ("a.b", false),
            ("a/b", false),
        ] {
            assert_eq!(is_id(text), expected, "{text}");
        }
    }
}
