//! Files that a session must not read or change.

mod directories;
mod read_only;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixListener;

use bytes::Bytes;
use protocol::grant::{FilesGrant, Grant};
use protocol::outgoing::{UnixAddress, UnixConnect, UnixKind};
use protocol::rpc::{
    AccessMode, FileRef, LinkRequest, ListRequest, OpenRequest, ResolvePathRequest, StatRequest,
    SymbolicLinkRequest,
};

use super::{Report, run_inside, session, texts};
use crate::client::Client;
use crate::environment::{Target, target};

/// The content of hidden and read-only files.
const CONTENT: &str = "only at the target\n";

pub(super) fn path_request(path: &str, mode: AccessMode) -> OpenRequest {
    OpenRequest {
        path: path.to_owned().into(),
        access_mode: mode.into(),
        first_bytes: 1000,
        ..OpenRequest::default()
    }
}

pub(super) async fn can_open(client: &Client, request: OpenRequest) -> bool {
    client.open(request).await.is_ok()
}

fn bytes(path: &str) -> Bytes {
    Bytes::copy_from_slice(path.as_bytes())
}

/// Creates files of the target's user from outside.
pub(super) fn create_tree(target: &Target, paths: &[&str]) {
    for path in paths {
        let outside = target.path(path);
        match path.ends_with('/') {
            true => fs::create_dir_all(&outside).unwrap(),
            false => fs::write(&outside, CONTENT).unwrap(),
        }
        chown(outside, Some(1234), Some(1235)).unwrap();
    }
}

pub(super) async fn run(report: &mut Report) {
    hidden_files(report).await;
    read_only::run(report).await;
    directories::run(report).await;
}

async fn hidden_files(report: &mut Report) {
    let target = target();
    create_tree(
        &target,
        &[
            "/srv/data/dir/",
            "/srv/data/dir/key",
            "/srv/data/closed/",
            "/run/bound/",
            "/run/file",
        ],
    );
    // In the target, links of procfs have paths as the agent sees them.
    symlink("/", target.path("/mnt")).unwrap();
    let socket = target.path("/srv/data/closed/socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    run_inside(&target, "mount --bind /mnt/etc /mnt/run/bound");
    run_inside(&target, "mount --bind /mnt/etc/greeting /mnt/run/file");
    let grant = Grant {
        files: FilesGrant {
            hidden: texts(&[
                "^/etc/greeting$",
                "^/srv/data/dir/key$",
                "^/srv/data/new$",
                "^/srv/data/closed(/|$)",
            ]),
            ..FilesGrant::default()
        },
        ..Grant::default()
    };
    let (_agent, client) = session(&target, &grant).await;
    let link = |path: &str, target: &str| SymbolicLinkRequest {
        path: bytes(path),
        target: bytes(target),
    };
    for (path, target) in [
        ("/srv/data/to-file", "/etc/greeting"),
        ("/srv/data/to-directory", "../../etc"),
        ("/srv/data/to-link", "to-file"),
        ("/srv/data/to-proc", "/proc/1/root/etc/greeting"),
        ("/srv/data/to-new", "new"),
        ("/srv/data/to-closed", "closed"),
    ] {
        client
            .files()
            .symbolic_link(link(path, target))
            .await
            .unwrap();
    }
    for path in [
        "/etc/greeting",
        "/etc/./greeting",
        "//etc//greeting",
        "/srv/../etc/greeting",
        "/srv/data/dir/../../../etc/greeting",
        "/../../etc/greeting",
        "/etc/greeting/.",
        "/srv/absolute",
        "/srv/upward",
        "/srv/data/to-file",
        "/srv/data/to-directory/greeting",
        "/srv/data/to-link",
        "/srv/data/to-proc",
        "/proc/1/root/etc/greeting",
        "/proc/1/cwd/dir/key",
        "/run/bound/greeting",
        "/run/file",
    ] {
        let opened = client.open(path_request(path, AccessMode::Read)).await;
        report.attempt(format!("reading {path}"), opened.is_ok());
        let file = Some(FileRef::path(path));
        let found = client.files().stat(StatRequest { file }).await;
        report.attempt(format!("finding {path}"), found.is_ok());
    }
    for path in ["/srv/data/closed", "/srv/data/to-closed/"] {
        let list = ListRequest {
            file: Some(FileRef::path(path)),
            ..ListRequest::default()
        };
        let listed = client.files().list(list).await;
        report.attempt(format!("listing {path}"), listed.is_ok());
    }
    let socket = UnixConnect {
        address: UnixAddress::Path(b"/srv/data/to-closed/socket".into()),
        kind: UnixKind::Stream,
    };
    let connected = client
        .connect_stream(socket.path(), socket.to_headers())
        .await;
    report.attempt("connecting to a hidden Unix socket", connected.is_ok());
    let resolved = client
        .files()
        .resolve_path(ResolvePathRequest {
            path: bytes("/srv/upward"),
        })
        .await;
    report.attempt("resolving a link to a hidden file", resolved.is_ok());
    for path in ["/srv/data/new", "/srv/data/to-new", "/srv/data//./new"] {
        let create = OpenRequest {
            create: true,
            mode: 0o600,
            ..path_request(path, AccessMode::Write)
        };
        report.attempt(format!("creating {path}"), can_open(&client, create).await);
    }
    let second = LinkRequest {
        from: Some(FileRef::path("/srv/data/dir/key")),
        to: bytes("/srv/data/second"),
    };
    let linked = client.files().link(second).await;
    report.attempt("a hard link to a hidden file", linked.is_ok());
    for path in ["/run/bound/hosts", "/srv/data/to-directory/hosts"] {
        let opened = can_open(&client, path_request(path, AccessMode::Read)).await;
        report.control(format!("reading {path}"), opened);
    }
}
