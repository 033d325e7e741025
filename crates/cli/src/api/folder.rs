//! The folder of sockets: `~/.standin/sessions/<id>.sock`.
//!
//! Only this user may be able to put sockets into it. A folder that does not exist is created so; an existing one is never
//! changed, and refused if it is not safe.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::{env, fmt};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::environment::{HOME, SESSIONS_DIR};

const EXTENSION: &str = "sock";
const STICKY: u32 = 0o1000;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const OPEN_TO_OTHERS: u32 = 0o077;

/// The folder with the sockets of this user's sessions.
#[derive(Debug, Clone)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// The given folder, or the default one.
    pub(crate) fn new(given: Option<&Path>) -> Result<Self> {
        if let Some(folder) = given {
            return Self::at(folder);
        }
        if let Some(folder) = env::var_os(SESSIONS_DIR) {
            return Self::at(Path::new(&folder));
        }
        let home = env::var_os(HOME).with_context(|| {
            format!("{HOME} is not set, so there is no folder for sessions; set {SESSIONS_DIR}")
        })?;
        Self::at(&Path::new(&home).join(".standin/sessions"))
    }

    fn at(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path).with_context(|| path.display().to_string())?;
        // Without a slash at the end, after which the kernel would follow a symbolic link.
        Ok(Self(path.components().collect()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn socket(&self, id: &str) -> PathBuf {
        self.0.join(format!("{id}.{EXTENSION}"))
    }

    /// Creates the folder for this user alone if it does not exist, and otherwise checks it.
    pub(crate) fn create(&self) -> Result<()> {
        if !self.check()? {
            let mut builder = DirBuilder::new();
            let created = builder.recursive(true).mode(0o700).create(&self.0);
            created.with_context(|| self.0.display().to_string())?;
            self.check()?;
        }
        Ok(())
    }

    /// Fails if other users could put sockets into the folder. Returns whether it exists.
    pub(crate) fn check(&self) -> Result<bool> {
        let Some(found) = find(&self.0)? else {
            return Ok(false);
        };
        match found.problem(user()) {
            None => Ok(true),
            Some(problem) => bail!(
                "{self} cannot be the folder of sessions: {problem}. --sessions-dir or {SESSIONS_DIR} names another one"
            ),
        }
    }

    /// The ids of all sockets of this user, also of stale ones.
    pub(crate) fn ids(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.0) else {
            return Vec::new();
        };
        let mut ids: Vec<String> = entries
            .flatten()
            .filter(|entry| {
                let metadata = entry.metadata();
                metadata.is_ok_and(|found| found.file_type().is_socket() && found.uid() == user())
            })
            .filter_map(|entry| id_of(&entry.path()))
            .collect();
        ids.sort();
        ids
    }

    /// The ids of all running sessions. Removes stale sockets.
    pub(crate) fn sessions(&self) -> Vec<String> {
        let mut ids = self.ids();
        ids.retain(|id| !self.remove_if_stale(id));
        ids
    }

    /// Removes a socket without a listener. Returns whether there is none any more.
    pub(crate) fn remove_if_stale(&self, id: &str) -> bool {
        let path = self.socket(id);
        match connection_error(&path) {
            Some(Errno::CONNREFUSED) => {
                let _ = fs::remove_file(path);
                true
            }
            Some(Errno::NOENT) => true,
            // `EAGAIN` is a session that accepts nothing at the moment.
            _ => false,
        }
    }
}

impl fmt::Display for Folder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(formatter)
    }
}

/// What is at the path of a folder, without following a symbolic link.
pub(crate) fn find(path: &Path) -> Result<Option<Found>> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        metadata => metadata.with_context(|| path.display().to_string())?,
    };
    Ok(Some(Found {
        is_symlink: metadata.is_symlink(),
        is_folder: metadata.is_dir(),
        owner: metadata.uid(),
        mode: metadata.mode(),
    }))
}

/// An existing file at the path of a folder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    is_symlink: bool,
    is_folder: bool,
    owner: u32,
    mode: u32,
}

impl Found {
    /// Why it is not safe for this user, and what to do.
    fn problem(self, user: u32) -> Option<String> {
        if self.is_symlink {
            return Some("it is a symbolic link; name the folder that it points to".to_owned());
        }
        if !self.is_folder {
            return Some("it is not a folder".to_owned());
        }
        if self.owner != user {
            let owner = self.owner;
            return Some(format!("it belongs to another user (uid {owner})"));
        }
        // In a folder with the sticky bit others can only add sockets of their own, which are ignored.
        if self.mode & WRITABLE_BY_OTHERS != 0 && self.mode & STICKY == 0 {
            let mode = self.mode & 0o7777;
            return Some(format!(
                "other users can write to it (its mode is {mode:o}); `chmod go-w` it"
            ));
        }
        None
    }

    /// As [`problem`](Self::problem), for a folder with secrets: others may not even list it.
    pub(crate) fn private_problem(self, user: u32) -> Option<String> {
        if !self.is_folder || self.owner != user {
            return self.problem(user);
        }
        let mode = self.mode & 0o7777;
        let is_open = mode & OPEN_TO_OTHERS != 0;
        is_open.then(|| format!("other users can access it (its mode is {mode:o}); `chmod 700` it"))
    }
}

pub(crate) fn user() -> u32 {
    rustix::process::getuid().as_raw()
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

/// The error of connecting to a socket. It does not wait: a session that was stopped accepts nothing.
fn connection_error(path: &Path) -> Option<Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connected = SocketAddrUnix::new(path).and_then(|address| {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &address)
    });
    connected.err()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn which_folders_are_safe() {
        let own = Found {
            is_symlink: false,
            is_folder: true,
            owner: 1000,
            mode: 0o40_700,
        };
        #[rustfmt::skip] // A table is read by its columns.
        let table = [
            ("our own",                    own,                                            None),
            ("readable by others",         Found { mode: 0o40_755, ..own },                None),
            ("writable by our group",      Found { mode: 0o40_775, ..own },                Some("chmod go-w")),
            ("writable by all",            Found { mode: 0o40_777, ..own },                Some("777")),
            ("writable by all, sticky",    Found { mode: 0o41_777, ..own },                None),
            ("root's",                     Found { owner: 0, mode: 0o41_777, ..own },      Some("uid 0")),
            ("a link",                     Found { is_symlink: true, is_folder: false, ..own }, Some("symbolic link")),
            ("a file",                     Found { is_folder: false, ..own },              Some("not a folder")),
        ];
        for (what, found, expected) in table {
            let problem = found.problem(1000);
            match expected {
                None => assert_eq!(problem, None, "{what}"),
                Some(text) => assert!(problem.unwrap().contains(text), "{what}"),
            }
        }
    }

    #[test]
    fn a_folder_is_created_for_the_user_alone_and_an_existing_one_never_changed() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| Folder::new(Some(&parent.path().join(name))).unwrap();
        let created = at("a/sessions");
        assert!(!created.check().unwrap());
        created.create().unwrap();
        assert_eq!(mode_of(created.path()), 0o700);

        for mode in [0o755, 0o1777, 0o777] {
            set_mode(created.path(), mode);
            assert_eq!(created.create().is_ok(), mode != 0o777);
            assert_eq!(mode_of(created.path()), mode);
        }
        symlink(created.path(), parent.path().join("link")).unwrap();
        for name in ["link", "link/"] {
            let error = at(name).create().unwrap_err().to_string();
            assert!(error.contains("symbolic link"), "{error}");
        }
    }

    #[test]
    fn stale_sockets_are_removed_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder::new(Some(parent.path())).unwrap();
        let _live = UnixListener::bind(folder.socket("live")).unwrap();
        drop(UnixListener::bind(folder.socket("stale")).unwrap());
        for name in ["note.txt", "file.sock"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(folder.ids(), ["live", "stale"]);
        assert_eq!(folder.sessions(), ["live"]);
        assert!(!folder.socket("stale").exists());
        assert!(folder.path().join("note.txt").exists() && folder.socket("file").exists());
    }

    #[test]
    fn a_session_that_accepts_nothing_delays_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder::new(Some(parent.path())).unwrap();
        let listener = UnixListener::bind(folder.socket("stopped")).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        // The queue has room for one connection more than its size.
        let _first = UnixStream::connect(folder.socket("stopped")).unwrap();
        let (sender, listed) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(folder.sessions()));
        let listed = listed.recv_timeout(std::time::Duration::from_secs(10));
        assert_eq!(listed.unwrap(), ["stopped"]);
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
