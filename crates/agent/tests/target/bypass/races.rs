//! Symbolic links and directories that are replaced while an operation resolves them.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bytes::Bytes;
use protocol::grant::{FilesGrant, Grant};
use protocol::rpc::{
    AccessMode, FileRef, LinkRequest, OpenRequest, RenameRequest, SetModeRequest, UnlinkRequest,
};

use super::files::{create_tree, path_request};
use super::{Report, session, texts};
use crate::client::Client;
use crate::environment::target;

/// How often each operation is tried while the link changes.
const ROUNDS: usize = 400;
const KEPT: &str = "/srv/data/kept/file";
const BY_LINK: &str = "/srv/data/link/file";

pub(super) async fn run(report: &mut Report) {
    let target = target();
    create_tree(
        &target,
        &[
            "/srv/data/kept/",
            KEPT,
            "/srv/data/free/",
            "/srv/data/free/file",
        ],
    );
    let grant = Grant {
        files: FilesGrant {
            read_only: texts(&["^/srv/data/kept/"]),
            ..FilesGrant::default()
        },
        ..Grant::default()
    };
    let (_agent, client) = session(&target, &grant).await;
    let swapping = Swapping::start(target.path("/srv/data"));
    let free = target.path("/srv/data/free/file");
    let inode = fs::metadata(target.path(KEPT)).unwrap().ino();
    let second = target.path("/srv/data/second");
    let mut was_linked = false;
    for _ in 0..ROUNDS {
        fs::write(&free, "free").unwrap();
        change(&client).await;
        was_linked |= fs::metadata(&second).is_ok_and(|second| second.ino() == inode);
        let _ = fs::remove_file(&second);
    }
    let swaps = swapping.end();
    let kept = fs::metadata(target.path(KEPT));
    let kept = |is_as_it_was: fn(&fs::Metadata) -> bool| kept.as_ref().is_ok_and(is_as_it_was);
    report.control("the link changed meanwhile", swaps > ROUNDS);
    report.attempt(
        "changing the mode while a link changes",
        !kept(|kept| kept.permissions().mode() & 0o777 != 0o777),
    );
    report.attempt("a hard link while a link changes", was_linked);
    report.attempt(
        "renaming or unlinking while a link changes",
        !kept(fs::Metadata::is_file),
    );
    report.attempt("writing while a link changes", !kept(|kept| kept.len() > 0));
}

/// Tries to change the read-only file through the link.
async fn change(client: &Client) {
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

/// A thread that lets the link lead to one directory and to the other.
struct Swapping {
    is_done: Arc<AtomicBool>,
    thread: thread::JoinHandle<usize>,
}

impl Swapping {
    fn start(directory: PathBuf) -> Self {
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let thread = thread::spawn(move || {
            let (new, link) = (directory.join("new"), directory.join("link"));
            let mut swaps = 0;
            while !done.load(Ordering::Relaxed) {
                let to = if swaps % 2 == 0 { "free" } else { "kept" };
                symlink(to, &new).unwrap();
                fs::rename(&new, &link).unwrap();
                swaps += 1;
            }
            swaps
        });
        Self { is_done, thread }
    }

    /// Returns how often the link has changed.
    fn end(self) -> usize {
        self.is_done.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}
