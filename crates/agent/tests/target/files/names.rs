//! Directories and links: listing, creating, renaming and removing.

use super::*;

#[tokio::test]
#[ignore = "needs root"]
async fn directories_are_listed_completely() {
    let (target, client) = target_and_client().await;
    let names = || (0..3000).map(|number| format!("file-with-a-rather-long-name-{number:05}"));
    for name in names() {
        fs::write(target.path("/srv/data").join(name), "x").unwrap();
    }
    let not_utf8 = std::ffi::OsString::from_vec(b"\xff\xfe\n ".to_vec());
    fs::write(target.path("/srv/data").join(not_utf8), "").unwrap();
    let mut entries = list(&client, FileRef::path("/srv/data")).await.unwrap();
    entries.sort_by(|left, right| left.name.cmp(&right.name));
    assert_eq!(entries.len(), 3001);
    for (entry, name) in entries.iter().zip(names()) {
        assert_eq!(entry.name, name.as_bytes());
        assert_eq!(entry.metadata.as_ref().unwrap().size, 1);
        assert_eq!(entry.kind, 0o100_000);
    }
    assert_eq!(entries[3000].name, &b"\xff\xfe\n "[..]);
    let opened = client
        .open(OpenRequest {
            path: Bytes::from_static(b"/srv/data/\xff\xfe\n "),
            ..OpenRequest::default()
        })
        .await;
    assert!(opened.unwrap().handle > 0);

    let opened = client
        .open(OpenRequest {
            directory: true,
            ..open("/srv")
        })
        .await
        .unwrap();
    for _ in 0..2 {
        let entries = list(&client, FileRef::handle(opened.handle)).await.unwrap();
        assert_eq!(entries.len(), 6);
    }
    assert!(
        list(&client, FileRef::path("/run"))
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        errno(list(&client, FileRef::path("/etc/greeting")).await),
        libc::ENOTDIR
    );
    assert_eq!(
        errno(list(&client, FileRef::path("/srv/locked")).await),
        libc::EACCES
    );
    assert_eq!(
        errno(list(&client, FileRef::path("/missing")).await),
        libc::ENOENT
    );
}

#[tokio::test]
#[ignore = "needs root"]
async fn links_are_read_and_permissions_are_checked() {
    let (_target, client) = target_and_client().await;
    let read_link = async |path: &str| {
        let file_ref = Some(FileRef::path(path.to_owned()));
        let response = client
            .files()
            .read_link(ReadLinkRequest { file: file_ref })
            .await;
        response.map(|response| response.into_inner().target)
    };
    assert_eq!(read_link("/srv/absolute").await.unwrap(), "/etc/greeting");
    assert_eq!(read_link("/srv/dangling").await.unwrap(), "nowhere");
    assert_eq!(errno(read_link("/etc/greeting").await), libc::EINVAL);
    assert_eq!(errno(read_link("/missing").await), libc::ENOENT);

    let check = async |path: &str, permissions: &str, expected: i32| {
        let request = AccessRequest {
            file: Some(FileRef::path(path.to_owned())),
            read: permissions.contains('r'),
            write: permissions.contains('w'),
            execute: permissions.contains('x'),
        };
        let result = client.files().access(request).await;
        match expected {
            0 => drop(result.unwrap()),
            number => assert_eq!(errno(result), number, "{path} {permissions}"),
        }
    };
    check("/etc/greeting", "", 0).await;
    check("/etc/greeting", "r", 0).await;
    check("/etc/greeting", "rw", libc::EACCES).await;
    check("/etc/greeting", "x", libc::EACCES).await;
    check("/etc/shadow", "r", libc::EACCES).await;
    check("/etc/group-only", "r", 0).await;
    check("/srv/data", "rwx", 0).await;
    check("/missing", "", libc::ENOENT).await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn entries_are_created_renamed_and_removed() {
    let (target, client) = target_and_client().await;
    let mut files = client.files();
    let exists = |path: &str| fs::symlink_metadata(target.path(path)).is_ok();
    let path = |path: &str| Bytes::from(path.to_owned());

    let make = |name: &str| MakeDirectoryRequest {
        path: path(name),
        mode: 0o750,
    };
    files
        .make_directory(make("/srv/data/folder/"))
        .await
        .unwrap();
    let folder = fs::metadata(target.path("/srv/data/folder")).unwrap();
    assert_eq!((folder.mode() & 0o7777, folder.uid()), (0o750, 1234));
    assert_eq!(
        errno(files.make_directory(make("/srv/data/folder")).await),
        libc::EEXIST
    );
    assert_eq!(errno(files.make_directory(make("/")).await), libc::EEXIST);
    assert_eq!(
        errno(files.make_directory(make("/etc/folder")).await),
        libc::EACCES
    );

    client.open(create("/srv/data/folder/file")).await.unwrap();
    let remove = |name: &str| RemoveDirectoryRequest { path: path(name) };
    assert_eq!(
        errno(files.remove_directory(remove("/srv/data/folder")).await),
        libc::ENOTEMPTY
    );
    assert_eq!(
        errno(
            files
                .remove_directory(remove("/srv/data/folder/file"))
                .await
        ),
        libc::ENOTDIR
    );
    let unlink = |name: &str| UnlinkRequest { path: path(name) };
    assert_eq!(
        errno(files.unlink(unlink("/srv/data/folder")).await),
        libc::EISDIR
    );
    assert_eq!(
        errno(files.unlink(unlink("/etc/greeting")).await),
        libc::EACCES
    );

    let rename = |from: &str, to: &str| RenameRequest {
        from: path(from),
        to: path(to),
        ..RenameRequest::default()
    };
    files
        .rename(rename("/srv/data/folder/file", "/srv/data/moved"))
        .await
        .unwrap();
    assert!(exists("/srv/data/moved") && !exists("/srv/data/folder/file"));
    client.open(create("/srv/data/other")).await.unwrap();
    let keep = RenameRequest {
        no_replace: true,
        ..rename("/srv/data/moved", "/srv/data/other")
    };
    assert_eq!(errno(files.rename(keep).await), libc::EEXIST);
    let swap = RenameRequest {
        exchange: true,
        ..rename("/srv/data/moved", "/srv/data/folder")
    };
    files.rename(swap).await.unwrap();
    assert!(target.path("/srv/data/moved").is_dir());
    files
        .remove_directory(remove("/srv/data/moved"))
        .await
        .unwrap();
    assert_eq!(
        errno(files.rename(rename("/srv/data/other", "/proc/x")).await),
        libc::EXDEV
    );

    let link = |from: FileRef, to: &str| LinkRequest {
        from: Some(from),
        to: path(to),
    };
    files
        .link(link(
            FileRef::path_no_follow("/srv/data/other"),
            "/srv/data/linked",
        ))
        .await
        .unwrap();
    assert_eq!(
        fs::metadata(target.path("/srv/data/other"))
            .unwrap()
            .nlink(),
        2
    );
    let symbolic = SymbolicLinkRequest {
        target: path("/etc/greeting"),
        path: path("/srv/data/symbolic"),
    };
    files.symbolic_link(symbolic).await.unwrap();
    assert_eq!(
        fs::read_link(target.path("/srv/data/symbolic"))
            .unwrap()
            .to_str(),
        Some("/etc/greeting")
    );
    files
        .link(link(
            FileRef::path_no_follow("/srv/data/symbolic"),
            "/srv/data/same-link",
        ))
        .await
        .unwrap();
    assert!(target.path("/srv/data/same-link").is_symlink());
    for name in ["other", "linked", "symbolic", "same-link"] {
        files
            .unlink(unlink(&format!("/srv/data/{name}")))
            .await
            .unwrap();
    }
    assert_eq!(
        errno(files.unlink(unlink("/srv/data/other")).await),
        libc::ENOENT
    );
    assert_eq!(
        list(&client, FileRef::path("/srv/data"))
            .await
            .unwrap()
            .len(),
        1
    );
}

/// A program reaches such files with relative paths, from a working directory that is as deep.
#[tokio::test]
#[ignore = "needs root"]
async fn paths_may_be_longer_than_the_kernel_accepts_in_one_call() {
    let (_target, client) = target_and_client().await;
    let mut deep = String::from("/srv/data");
    while deep.len() < 9000 {
        deep.push('/');
        deep.push_str(&"d".repeat(200));
        let request = MakeDirectoryRequest {
            path: deep.clone().into(),
            mode: 0o755,
        };
        client.files().make_directory(request).await.unwrap();
    }
    let path = |name: &str| format!("{deep}/{name}");
    client.open(create(&path("file"))).await.unwrap();
    for (name, content) in [
        ("absolute", "/etc/greeting"),
        ("relative", "../../upward"),
        ("../../upward", "/srv/absolute"),
        ("dangling", "nowhere"),
    ] {
        let request = SymbolicLinkRequest {
            path: path(name).into(),
            target: content.into(),
        };
        client.files().symbolic_link(request).await.unwrap();
    }
    let check = async |name: &str, expected: Result<u64, i32>| {
        let found = stat(&client, FileRef::path(path(name))).await;
        match expected {
            Ok(size) => assert_eq!(found.unwrap().size, size, "{name}"),
            Err(number) => assert_eq!(errno(found), number, "{name}"),
        }
    };
    check("file", Ok(0)).await;
    check("absolute", Ok(19)).await;
    check("relative", Ok(19)).await;
    check("dangling", Err(libc::ENOENT)).await;
    check("missing", Err(libc::ENOENT)).await;
    check("file/below", Err(libc::ENOTDIR)).await;
    check(&"x".repeat(256), Err(libc::ENAMETOOLONG)).await;
    check(&"x/".repeat(32 * 1024), Err(libc::ENAMETOOLONG)).await;
    let link = stat(&client, FileRef::path_no_follow(path("absolute")))
        .await
        .unwrap();
    assert_eq!(link.mode & 0o170_000, 0o120_000);
    let resolve = async |path: String| {
        let request = ResolvePathRequest { path: path.into() };
        client.files().resolve_path(request).await
    };
    let resolved = resolve(path("relative")).await.unwrap().into_inner();
    assert_eq!(resolved.path, "/etc/greeting");
    let resolved = resolve(path("file")).await.unwrap().into_inner();
    assert_eq!(resolved.path, path("file"));
    let request = RenameRequest {
        from: path("file").into(),
        to: path("renamed").into(),
        ..RenameRequest::default()
    };
    client.files().rename(request).await.unwrap();
    let entries = list(&client, FileRef::path(deep.clone())).await.unwrap();
    assert_eq!(entries.len(), 4);
}
