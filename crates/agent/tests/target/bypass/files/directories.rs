//! Directories that are protected, or have protected files below them.

use protocol::grant::{FilesGrant, Grant};
use protocol::rpc::{
    FileRef, RemoveDirectoryRequest, RenameRequest, SetModeRequest, SymbolicLinkRequest,
};

use super::{bytes, create_tree};
use crate::bypass::{Report, run_inside, session, texts};
use crate::environment::target;

pub(super) async fn run(report: &mut Report) {
    let target = target();
    create_tree(
        &target,
        &[
            "/srv/data/outer/",
            "/srv/data/outer/kept/",
            "/srv/data/outer/kept/file",
            "/srv/data/free/",
            "/srv/data/free/inner/",
            "/srv/data/itself/",
            "/srv/data/source/",
            "/srv/data/source/file",
            "/srv/data/source/part/",
            "/srv/data/view/",
            "/srv/data/parent/",
            "/srv/data/parent/child/",
            "/srv/data/window/",
        ],
    );
    for (source, point) in [("source", "view"), ("parent/child", "window")] {
        run_inside(
            &target,
            &format!("mount --bind /mnt/srv/data/{source} /mnt/srv/data/{point}"),
        );
    }
    let grant = Grant {
        files: FilesGrant {
            read_only: texts(&[
                "^/srv/data/outer/kept/",
                "^/srv/data/itself$",
                "^/srv/data/view/part/",
                "^/srv/data/window/",
                "^/srv/data/future/",
            ]),
            ..FilesGrant::default()
        },
        ..Grant::default()
    };
    let (_agent, client) = session(&target, &grant).await;
    let mut files = client.files();
    let rename = |from: &str, to: &str| RenameRequest {
        from: bytes(from),
        to: bytes(to),
        ..RenameRequest::default()
    };
    let exchange = |from: &str, to: &str| RenameRequest {
        exchange: true,
        ..rename(from, to)
    };
    for (path, target) in [("/srv/data/here", "."), ("/srv/data/to-itself", "itself")] {
        let link = SymbolicLinkRequest {
            path: bytes(path),
            target: bytes(target),
        };
        files.symbolic_link(link).await.unwrap();
    }
    for (name, request) in [
        (
            "renaming the directory of the files",
            rename("/srv/data/outer/kept", "/srv/data/outer/moved"),
        ),
        (
            "renaming a directory above",
            rename("/srv/data/outer", "/srv/data/moved"),
        ),
        (
            "renaming with a trailing slash",
            rename("/srv/data/outer/", "/srv/data/moved"),
        ),
        (
            "renaming through a link",
            rename("/srv/data/here/outer", "/srv/data/moved"),
        ),
        (
            "exchanging a directory above",
            exchange("/srv/data/outer", "/srv/data/free"),
        ),
        (
            "exchanging in the other order",
            exchange("/srv/data/free", "/srv/data/outer"),
        ),
        (
            "moving a directory to a protected path",
            rename("/srv/data/free/inner", "/srv/data/future"),
        ),
        (
            "renaming a protected directory",
            rename("/srv/data/itself", "/srv/data/moved"),
        ),
        (
            "renaming a protected directory, slash",
            rename("/srv/data/itself/", "/srv/data/moved"),
        ),
        (
            "renaming what is mounted elsewhere",
            rename("/srv/data/source", "/srv/data/moved"),
        ),
        (
            "renaming a part of what is mounted elsewhere",
            rename("/srv/data/source/part", "/srv/data/moved"),
        ),
        (
            "renaming a directory above what is mounted elsewhere",
            rename("/srv/data/parent", "/srv/data/moved"),
        ),
    ] {
        let renamed = files.rename(request.clone()).await.is_ok();
        report.attempt(name, renamed);
        if renamed {
            // Back again, for the next attempt.
            let back = RenameRequest {
                from: request.to,
                to: request.from,
                ..request
            };
            let _ = files.rename(back).await;
        }
    }
    for path in [
        "/srv/data/itself/",
        "/srv/data/itself//",
        "/srv/data/itself/.",
        "/srv/data/to-itself/",
    ] {
        let file = Some(FileRef::path_no_follow(path));
        let changed = files.set_mode(SetModeRequest { file, mode: 0o711 }).await;
        report.attempt(format!("changing the mode of {path}"), changed.is_ok());
    }
    let removed = files
        .remove_directory(RemoveDirectoryRequest {
            path: bytes("/srv/data/itself/"),
        })
        .await;
    report.attempt("removing a protected directory, slash", removed.is_ok());
    let renamed = files
        .rename(rename("/srv/data/free/inner", "/srv/data/free/other"))
        .await;
    report.control("renaming another directory", renamed.is_ok());
    let renamed = files
        .rename(rename("/srv/data/free/", "/srv/data/freed"))
        .await;
    report.control("renaming another directory, slash", renamed.is_ok());
}
