//! Files that a session may read and must not change.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use protocol::grant::{FilesGrant, Grant};
use protocol::rpc::{
    AccessMode, FileRef, LinkRequest, MakeDirectoryRequest, MakeNodeRequest, OpenRequest,
    RenameRequest, SetAttributeRequest, SetModeRequest, SetOwnerRequest, SetTimesRequest,
    SymbolicLinkRequest, TruncateRequest, UnlinkRequest,
};

use super::{CONTENT, bytes, can_open, create_tree, path_request};
use crate::bypass::{Report, run_inside, session, texts};
use crate::client::Client;
use crate::environment::{Target, target};

const KEPT: &str = "/srv/data/kept/file";

pub(super) async fn run(report: &mut Report) {
    let target = target();
    create_tree(
        &target,
        &[
            "/srv/data/kept/",
            KEPT,
            "/srv/data/other",
            "/run/bound/",
            "/run/all/",
        ],
    );
    run_inside(&target, "mount --bind /mnt/srv/data/kept /mnt/run/bound");
    run_inside(&target, "mount --bind /mnt/srv/data /mnt/run/all");
    let grant = Grant {
        files: FilesGrant {
            read_only: texts(&["^/srv/data/kept/"]),
            ..FilesGrant::default()
        },
        ..Grant::default()
    };
    let (_agent, client) = session(&target, &grant).await;
    let mut files = client.files();
    for (path, to) in [
        ("/srv/data/to-kept", "kept"),
        ("/srv/data/to-file", "kept/file"),
        ("/srv/data/to-new", "kept/new"),
    ] {
        let link = SymbolicLinkRequest {
            path: bytes(path),
            target: bytes(to),
        };
        files.symbolic_link(link).await.unwrap();
    }
    opening(&target, &client, report).await;
    attributes(&client, report).await;
    entries(&target, &client, report).await;
    controls(&target, &client, report).await;
}

async fn opening(target: &Target, client: &Client, report: &mut Report) {
    for path in [
        KEPT,
        "/srv/data/to-file",
        "/srv/data/to-kept/file",
        "/run/bound/file",
        "/srv/data/kept//file",
    ] {
        let opened = can_open(client, path_request(path, AccessMode::Write)).await;
        report.attempt(format!("writing to {path}"), opened);
    }
    for path in [
        "/srv/data/kept/new",
        "/srv/data/to-new",
        "/srv/data/to-kept/new",
        "/run/bound/new",
    ] {
        let create = OpenRequest {
            create: true,
            mode: 0o600,
            ..path_request(path, AccessMode::Write)
        };
        report.attempt(format!("creating {path}"), can_open(client, create).await);
        if path == "/srv/data/to-new" {
            // The kernel does not follow a link for this.
            continue;
        }
        // Each attempt can pass whether or not the one before has.
        let _ = fs::remove_file(target.path("/srv/data/kept/new"));
        let exclusive = OpenRequest {
            create: true,
            exclusive: true,
            mode: 0o600,
            ..path_request(path, AccessMode::ReadWrite)
        };
        report.attempt(
            format!("creating only {path}"),
            can_open(client, exclusive).await
                && fs::metadata(target.path("/srv/data/kept/new")).is_ok(),
        );
    }
    for (name, request) in [
        (
            "emptying a file that is opened for reading",
            OpenRequest {
                truncate: true,
                ..path_request(KEPT, AccessMode::Read)
            },
        ),
        (
            "creating a file that is opened for reading",
            OpenRequest {
                create: true,
                mode: 0o600,
                ..path_request("/srv/data/kept/read", AccessMode::Read)
            },
        ),
    ] {
        report.attempt(name, can_open(client, request).await);
    }
    for path in [KEPT, "/srv/data/to-file", "/run/bound/file"] {
        let truncate = TruncateRequest {
            file: Some(FileRef::path(path)),
            size: 0,
        };
        let truncated = client.files().truncate(truncate).await;
        report.attempt(format!("truncating {path}"), truncated.is_ok());
    }
}

async fn entries(target: &Target, client: &Client, report: &mut Report) {
    let mut files = client.files();
    // The kernel renames only within a mount.
    for (directory, outside) in [
        ("/srv/data/to-kept", "/srv/data"),
        ("/run/all/kept", "/run/all"),
    ] {
        let restore = || create_tree(target, &[KEPT, "/srv/data/other"]);
        let outside = |name: &str| bytes(&format!("{outside}/{name}"));
        let path = |name: &str| bytes(&format!("{directory}/{name}"));
        let made = files
            .make_directory(MakeDirectoryRequest {
                path: path("d"),
                mode: 0o700,
            })
            .await;
        report.attempt(format!("a directory in {directory}"), made.is_ok());
        let node = MakeNodeRequest {
            path: path("n"),
            mode: 0o600,
            ..MakeNodeRequest::default()
        };
        report.attempt(
            format!("a node in {directory}"),
            files.make_node(node).await.is_ok(),
        );
        let link = SymbolicLinkRequest {
            path: path("l"),
            target: bytes("/"),
        };
        let linked = files.symbolic_link(link).await;
        report.attempt(format!("a symbolic link in {directory}"), linked.is_ok());
        let over = RenameRequest {
            from: outside("other"),
            to: path("file"),
            ..RenameRequest::default()
        };
        report.attempt(
            format!("renaming over a file in {directory}"),
            files.rename(over).await.is_ok(),
        );
        restore();
        let out = RenameRequest {
            from: path("file"),
            to: outside("taken"),
            ..RenameRequest::default()
        };
        report.attempt(
            format!("renaming a file in {directory}"),
            files.rename(out).await.is_ok(),
        );
        restore();
        let removed = files.unlink(UnlinkRequest { path: path("file") }).await;
        report.attempt(format!("unlinking in {directory}"), removed.is_ok());
    }
}

async fn attributes(client: &Client, report: &mut Report) {
    let mut files = client.files();
    let reading = client
        .open(path_request(KEPT, AccessMode::Read))
        .await
        .unwrap()
        .handle;
    let referring = client
        .open(path_request(KEPT, AccessMode::None))
        .await
        .unwrap()
        .handle;
    // The kernel links only within a mount.
    for (name, file, second) in [
        ("a path", FileRef::path(KEPT), "/srv/data/1"),
        (
            "a symbolic link",
            FileRef::path("/srv/data/to-file"),
            "/srv/data/2",
        ),
        (
            "another mount",
            FileRef::path("/run/all/kept/file"),
            "/run/all/3",
        ),
        ("a handle", FileRef::handle(reading), "/srv/data/4"),
        (
            "a handle without access",
            FileRef::handle(referring),
            "/srv/data/5",
        ),
    ] {
        let file = || Some(file.clone());
        let mode = SetModeRequest {
            file: file(),
            mode: 0o777,
        };
        let mut changes = vec![("mode", files.set_mode(mode).await.is_ok())];
        let owner = SetOwnerRequest {
            file: file(),
            gid: Some(2000),
            ..SetOwnerRequest::default()
        };
        changes.push(("owner", files.set_owner(owner).await.is_ok()));
        let times = SetTimesRequest {
            file: file(),
            ..SetTimesRequest::default()
        };
        changes.push(("times", files.set_times(times).await.is_ok()));
        let attribute = SetAttributeRequest {
            file: file(),
            name: bytes("user.a"),
            value: bytes("b"),
            ..SetAttributeRequest::default()
        };
        changes.push(("attribute", files.set_attribute(attribute).await.is_ok()));
        let link = LinkRequest {
            from: file(),
            to: bytes(second),
        };
        changes.push(("hard link", files.link(link).await.is_ok()));
        for (change, has_passed) in changes {
            report.attempt(format!("changing the {change} by {name}"), has_passed);
        }
    }
}

async fn controls(target: &Target, client: &Client, report: &mut Report) {
    let mut files = client.files();
    let metadata = fs::metadata(target.path(KEPT));
    report.control(
        "the file is as it was",
        fs::read_to_string(target.path(KEPT)).is_ok_and(|text| text == CONTENT)
            && metadata.is_ok_and(|kept| kept.nlink() == 1 && kept.mode() & 0o777 != 0o777),
    );
    report.control(
        "reading it",
        can_open(client, path_request(KEPT, AccessMode::Read)).await,
    );
    let other = || Some(FileRef::path("/srv/data/other"));
    let changed = files
        .set_mode(SetModeRequest {
            file: other(),
            mode: 0o640,
        })
        .await;
    report.control("changing the mode of another file", changed.is_ok());
    let linked = files
        .link(LinkRequest {
            from: other(),
            to: bytes("/srv/data/linked"),
        })
        .await;
    report.control("a hard link to another file", linked.is_ok());
}
