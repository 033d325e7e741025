//! Metadata of files, and its changes.

use super::*;

#[tokio::test]
#[ignore = "needs root"]
async fn metadata_is_read_from_the_target() {
    let (target, client) = target_and_client().await;
    let native = fs::metadata(target.path("/etc/greeting")).unwrap();
    let found = stat(&client, FileRef::path("/srv/absolute")).await.unwrap();
    assert_eq!(
        (found.inode, found.size, found.mode, found.uid, found.links),
        (native.ino(), 19, native.mode(), 0, 1)
    );
    let modified = found.modification_time.unwrap();
    assert_eq!(
        (modified.seconds, i64::from(modified.nanoseconds)),
        (native.mtime(), native.mtime_nsec())
    );
    let link = stat(&client, FileRef::path_no_follow("/srv/absolute"))
        .await
        .unwrap();
    assert_eq!(link.mode & 0o170_000, 0o120_000);
    // Needs no permission on the file itself.
    assert_eq!(
        stat(&client, FileRef::path("/etc/shadow"))
            .await
            .unwrap()
            .size,
        6
    );
    assert_eq!(
        errno(stat(&client, FileRef::path("/etc/missing")).await),
        libc::ENOENT
    );
    assert_eq!(
        errno(stat(&client, FileRef::path("/srv/locked/x")).await),
        libc::EACCES
    );
    // By handle, after the file was unlinked.
    let opened = client.open(create("/srv/data/file")).await.unwrap();
    client
        .files()
        .unlink(UnlinkRequest {
            path: "/srv/data/file".into(),
        })
        .await
        .unwrap();
    assert_eq!(
        stat(&client, FileRef::handle(opened.handle))
            .await
            .unwrap()
            .links,
        0
    );

    let file_ref = Some(FileRef::path("/etc"));
    let filesystem = client
        .files()
        .stat_filesystem(StatFilesystemRequest { file: file_ref })
        .await;
    let filesystem = filesystem.unwrap().into_inner();
    // tmpfs
    assert_eq!(filesystem.kind, 0x0102_1994);
    assert_eq!(filesystem.name_length, 255);
}

#[tokio::test]
#[ignore = "needs root"]
async fn metadata_is_changed() {
    let (target, client) = target_and_client().await;
    let mut files = client.files();
    let opened = client.open(create("/srv/data/file")).await.unwrap();
    client.write(opened.handle, 0, "0123456789").await.unwrap();
    let file_ref = || Some(FileRef::path("/srv/data/file"));
    let foreign = || Some(FileRef::path("/etc/greeting"));
    let native = || fs::metadata(target.path("/srv/data/file")).unwrap();

    files
        .set_mode(SetModeRequest {
            file: file_ref(),
            mode: 0o4711,
        })
        .await
        .unwrap();
    assert_eq!(native().permissions().mode() & 0o7777, 0o4711);
    let by_handle = Some(FileRef::handle(opened.handle));
    files
        .set_mode(SetModeRequest {
            file: by_handle,
            mode: 0o600,
        })
        .await
        .unwrap();
    assert_eq!(native().permissions().mode() & 0o7777, 0o600);
    assert_eq!(
        errno(
            files
                .set_mode(SetModeRequest {
                    file: foreign(),
                    mode: 0o777
                })
                .await
        ),
        libc::EPERM
    );

    // The target may change the group to one of its own groups, but not the owner.
    files
        .set_owner(SetOwnerRequest {
            file: file_ref(),
            uid: None,
            gid: Some(2000),
        })
        .await
        .unwrap();
    assert_eq!((native().uid(), native().gid()), (1234, 2000));
    let new_owner = SetOwnerRequest {
        file: file_ref(),
        uid: Some(0),
        gid: None,
    };
    assert_eq!(errno(files.set_owner(new_owner).await), libc::EPERM);

    let at = |seconds| {
        Some(NewTime {
            now: false,
            time: Some(Time {
                seconds,
                nanoseconds: 5,
            }),
        })
    };
    let times = SetTimesRequest {
        file: file_ref(),
        access_time: at(1),
        modification_time: at(2),
    };
    files.set_times(times).await.unwrap();
    assert_eq!(
        (native().atime(), native().mtime(), native().mtime_nsec()),
        (1, 2, 5)
    );
    let now = Some(NewTime {
        now: true,
        time: None,
    });
    let times = SetTimesRequest {
        file: file_ref(),
        access_time: None,
        modification_time: now,
    };
    files.set_times(times).await.unwrap();
    assert!(native().atime() == 1 && native().mtime() > 1_000_000_000);

    files
        .truncate(TruncateRequest {
            file: file_ref(),
            size: 4,
        })
        .await
        .unwrap();
    assert_eq!(fs::read(target.path("/srv/data/file")).unwrap(), b"0123");
    let by_handle = Some(FileRef::handle(opened.handle));
    files
        .truncate(TruncateRequest {
            file: by_handle,
            size: 6,
        })
        .await
        .unwrap();
    assert_eq!(native().len(), 6);
    assert_eq!(
        errno(
            files
                .truncate(TruncateRequest {
                    file: foreign(),
                    size: 0
                })
                .await
        ),
        libc::EACCES
    );
    let folder = Some(FileRef::path("/srv/data"));
    assert_eq!(
        errno(
            files
                .truncate(TruncateRequest {
                    file: folder,
                    size: 0
                })
                .await
        ),
        libc::EISDIR
    );
}

#[tokio::test]
#[ignore = "needs root"]
async fn extended_attributes_are_stored() {
    let (_target, client) = target_and_client().await;
    let mut files = client.files();
    client.open(create("/srv/data/file")).await.unwrap();
    let file_ref = || Some(FileRef::path("/srv/data/file"));
    let set = |value: &'static str| SetAttributeRequest {
        file: file_ref(),
        name: "user.note".into(),
        value: value.into(),
        ..SetAttributeRequest::default()
    };
    // The target's root is a tmpfs, which supports these attributes since Linux 6.6.
    files.set_attribute(set("one")).await.unwrap();
    let again = SetAttributeRequest {
        create: true,
        ..set("two")
    };
    assert_eq!(errno(files.set_attribute(again).await), libc::EEXIST);
    let get = |name: &'static str| GetAttributeRequest {
        file: file_ref(),
        name: name.into(),
    };
    assert_eq!(
        files
            .get_attribute(get("user.note"))
            .await
            .unwrap()
            .into_inner()
            .value,
        "one"
    );
    assert_eq!(
        errno(files.get_attribute(get("user.other")).await),
        libc::ENODATA
    );
    let names = files
        .list_attributes(ListAttributesRequest { file: file_ref() })
        .await;
    assert_eq!(names.unwrap().into_inner().names, ["user.note"]);
    let remove = || RemoveAttributeRequest {
        file: file_ref(),
        name: "user.note".into(),
    };
    files.remove_attribute(remove()).await.unwrap();
    assert_eq!(errno(files.remove_attribute(remove()).await), libc::ENODATA);
    let foreign = SetAttributeRequest {
        file: Some(FileRef::path("/etc/greeting")),
        ..set("x")
    };
    assert_eq!(errno(files.set_attribute(foreign).await), libc::EACCES);
}
