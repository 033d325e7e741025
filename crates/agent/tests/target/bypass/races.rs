//! Symbolic links and directories that are replaced while an operation resolves them.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bytes::Bytes;
use protocol::grant::{FilesGrant, Grant};
use protocol::rpc::{
    AccessMode, FileRef, LinkRequest, OpenRequest, RenameRequest, SetModeRequest, UnlinkRequest,
};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::files::{create_tree, path_request};
use super::{Report, session, texts};
use crate::client::Client;
use crate::environment::target;

/// How often each operation is tried while something changes.
const ROUNDS: usize = 200;
const KEPT: &str = "/srv/data/kept/file";
const BY_LINK: &str = "/srv/data/link/file";

/// What changes at the path of [`BY_LINK`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// A link leads to one directory and to the other.
    Link,
    /// A directory is exchanged with a link to the other.
    Directory,
}

pub(super) async fn run(report: &mut Report) {
    for change in [Change::Link, Change::Directory] {
        race(report, change).await;
    }
}

async fn race(report: &mut Report, change: Change) {
    let target = target();
    let (name, free) = match change {
        Change::Link => ("a link changes", "/srv/data/free/"),
        Change::Directory => ("a directory becomes a link", "/srv/data/link/"),
    };
    create_tree(&target, &["/srv/data/kept/", KEPT, free]);
    let grant = Grant {
        files: FilesGrant {
            read_only: texts(&["^/srv/data/kept/"]),
            ..FilesGrant::default()
        },
        ..Grant::default()
    };
    let (_agent, client) = session(&target, &grant).await;
    // The directory is reached also while it has another path.
    let directory = fs::File::open(target.path(free)).unwrap();
    let free = format!("/proc/self/fd/{}/file", directory.as_raw_fd());
    let inode = fs::metadata(target.path(KEPT)).unwrap().ino();
    let second = target.path("/srv/data/second");
    let swapping = Swapping::start(&target.path("/srv/data"), change);
    let mut was_linked = false;
    for _ in 0..ROUNDS {
        fs::write(&free, "free").unwrap();
        chown(&free, Some(1234), Some(1235)).unwrap();
        change_by_link(&client).await;
        was_linked |= fs::metadata(&second).is_ok_and(|second| second.ino() == inode);
        let _ = fs::remove_file(&second);
    }
    let swaps = swapping.end();
    let kept = fs::metadata(target.path(KEPT));
    let kept = |is_as_it_was: fn(&fs::Metadata) -> bool| kept.as_ref().is_ok_and(is_as_it_was);
    report.control(format!("{name} meanwhile"), swaps > ROUNDS);
    report.attempt(
        format!("changing the mode while {name}"),
        !kept(|kept| kept.permissions().mode() & 0o777 != 0o777),
    );
    report.attempt(format!("a hard link while {name}"), was_linked);
    report.attempt(
        format!("renaming or unlinking while {name}"),
        !kept(fs::Metadata::is_file),
    );
    report.attempt(
        format!("writing while {name}"),
        !kept(|kept| kept.len() > 0),
    );
}

/// Tries to change the read-only file through the link.
async fn change_by_link(client: &Client) {
    let mut files = client.files();
    let by_link = || Some(FileRef::path(BY_LINK));
    let path = || Bytes::from_static(BY_LINK.as_bytes());
    let mode = SetModeRequest {
        file: by_link(),
        mode: 0o777,
    };
    let _ = files.set_mode(mode).await;
    let second = LinkRequest {
        from: by_link(),
        to: "/srv/data/second".into(),
    };
    let _ = files.link(second).await;
    let truncate = OpenRequest {
        truncate: true,
        ..path_request(BY_LINK, AccessMode::Write)
    };
    let _ = client.open(truncate).await;
    let away = RenameRequest {
        from: path(),
        to: "/srv/data/away".into(),
        ..RenameRequest::default()
    };
    let _ = files.rename(away).await;
    let _ = files.unlink(UnlinkRequest { path: path() }).await;
}

/// A thread that changes where the path leads.
struct Swapping {
    is_done: Arc<AtomicBool>,
    thread: thread::JoinHandle<usize>,
}

impl Swapping {
    fn start(directory: &Path, change: Change) -> Self {
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let (new, link) = (directory.join("new"), directory.join("link"));
        let flags = match change {
            Change::Link => RenameFlags::empty(),
            Change::Directory => {
                symlink("kept", &new).unwrap();
                RenameFlags::EXCHANGE
            }
        };
        let thread = thread::spawn(move || {
            let mut swaps = 0;
            while !done.load(Ordering::Relaxed) {
                if change == Change::Link {
                    let to = if swaps % 2 == 0 { "free" } else { "kept" };
                    symlink(to, &new).unwrap();
                }
                renameat_with(CWD, &new, CWD, &link, flags).unwrap();
                swaps += 1;
            }
            swaps
        });
        Self { is_done, thread }
    }

    /// Returns how often it has changed.
    fn end(self) -> usize {
        self.is_done.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}
