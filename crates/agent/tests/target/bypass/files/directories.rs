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
            "/srv/data/view/",
        ],
    );
    run_inside(
        &target,
        "mount --bind /mnt/srv/data/source /mnt/srv/data/view",
    );
    let grant = Grant {
        files: FilesGrant {
            read_only: texts(&[
                "^/srv/data/outer/kept/",
                "^/srv/data/itself$",
                "^/srv/data/view/",
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
    let link = SymbolicLinkRequest {
        path: bytes("/srv/data/here"),
        target: bytes("."),
    };
    files.symbolic_link(link).await.unwrap();
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
            "moving a directory there",
            rename("/srv/data/free/inner", "/srv/data/outer/kept"),
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
