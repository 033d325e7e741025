//! What describes a file, and changing it.

use super::*;

#[tokio::test]
async fn metadata_is_the_target_s() {
    let Some((target, client)) = in_data().await else {
        return;
    };
    let native = fs::metadata(target.path("/etc/greeting")).unwrap();
    let found = stat(&client, Place::path("/srv/absolute")).await.unwrap();
    assert_eq!(
        (found.inode, found.size, found.mode, found.uid, found.links),
        (native.ino(), 19, native.mode(), 0, 1)
    );
    let modified = found.modification_time.unwrap();
    assert_eq!(
        (modified.seconds, i64::from(modified.nanoseconds)),
        (native.mtime(), native.mtime_nsec())
    );
    let link = stat(&client, Place::path_no_follow("/srv/absolute"))
        .await
        .unwrap();
    assert_eq!(link.mode & 0o170_000, 0o120_000);
    // No right on the file itself is needed.
    assert_eq!(
        stat(&client, Place::path("/etc/shadow"))
            .await
            .unwrap()
            .size,
        6
    );
    assert_eq!(
        errno(stat(&client, Place::path("/etc/missing")).await),
        libc::ENOENT
    );
    assert_eq!(
        errno(stat(&client, Place::path("/srv/locked/x")).await),
        libc::EACCES
    );
    // By handle, also without a name.
    let opened = client.open(create("/srv/data/file")).await.unwrap();
    client
        .files()
        .unlink(UnlinkRequest {
            path: "/srv/data/file".into(),
        })
        .await
        .unwrap();
    assert_eq!(
        stat(&client, Place::handle(opened.handle))
            .await
            .unwrap()
            .links,
        0
    );

    let place = Some(Place::path("/etc"));
    let filesystem = client
        .files()
        .stat_filesystem(StatFilesystemRequest { place })
        .await;
    let filesystem = filesystem.unwrap().into_inner();
    // tmpfs
    assert_eq!(filesystem.kind, 0x0102_1994);
    assert_eq!(filesystem.name_length, 255);
}

#[tokio::test]
async fn what_describes_a_file_is_changed() {
    let Some((target, client)) = in_data().await else {
        return;
    };
    let mut files = client.files();
    let opened = client.open(create("/srv/data/file")).await.unwrap();
    client.write(opened.handle, 0, "0123456789").await.unwrap();
    let place = || Some(Place::path("/srv/data/file"));
    let foreign = || Some(Place::path("/etc/greeting"));
    let native = || fs::metadata(target.path("/srv/data/file")).unwrap();

    files
        .set_mode(SetModeRequest {
            place: place(),
            mode: 0o4711,
        })
        .await
        .unwrap();
    assert_eq!(native().permissions().mode() & 0o7777, 0o4711);
    let by_handle = Some(Place::handle(opened.handle));
    files
        .set_mode(SetModeRequest {
            place: by_handle,
            mode: 0o600,
        })
        .await
        .unwrap();
    assert_eq!(native().permissions().mode() & 0o7777, 0o600);
    assert_eq!(
        errno(
            files
                .set_mode(SetModeRequest {
                    place: foreign(),
                    mode: 0o777
                })
                .await
        ),
        libc::EPERM
    );

    // To a group of its own the target may give a file, to another user not.
    files
        .set_owner(SetOwnerRequest {
            place: place(),
            uid: None,
            gid: Some(2000),
        })
        .await
        .unwrap();
    assert_eq!((native().uid(), native().gid()), (1234, 2000));
    let give_away = SetOwnerRequest {
        place: place(),
        uid: Some(0),
        gid: None,
    };
    assert_eq!(errno(files.set_owner(give_away).await), libc::EPERM);

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
        place: place(),
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
        place: place(),
        access_time: None,
        modification_time: now,
    };
    files.set_times(times).await.unwrap();
    assert!(native().atime() == 1 && native().mtime() > 1_000_000_000);

    files
        .truncate(TruncateRequest {
            place: place(),
            size: 4,
        })
        .await
        .unwrap();
    assert_eq!(fs::read(target.path("/srv/data/file")).unwrap(), b"0123");
    let by_handle = Some(Place::handle(opened.handle));
    files
        .truncate(TruncateRequest {
            place: by_handle,
            size: 6,
        })
        .await
        .unwrap();
    assert_eq!(native().len(), 6);
    assert_eq!(
        errno(
            files
                .truncate(TruncateRequest {
                    place: foreign(),
                    size: 0
                })
                .await
        ),
        libc::EACCES
    );
    let folder = Some(Place::path("/srv/data"));
    assert_eq!(
        errno(
            files
                .truncate(TruncateRequest {
                    place: folder,
                    size: 0
                })
                .await
        ),
        libc::EISDIR
    );
}

#[tokio::test]
async fn attributes_are_kept() {
    let Some((_target, client)) = in_data().await else {
        return;
    };
    let mut files = client.files();
    client.open(create("/srv/data/file")).await.unwrap();
    let place = || Some(Place::path("/srv/data/file"));
    let set = |value: &'static str| SetAttributeRequest {
        place: place(),
        name: "user.note".into(),
        value: value.into(),
        ..SetAttributeRequest::default()
    };
    let answer = files.set_attribute(set("one")).await;
    if let Err(status) = &answer
        && protocol::failure::Failure::from_status(status)
            .unwrap()
            .number()
            == Some(libc::EOPNOTSUPP)
    {
        eprintln!("skipped: this kernel's tmpfs keeps no attributes");
        return;
    }
    answer.unwrap();
    let again = SetAttributeRequest {
        create: true,
        ..set("two")
    };
    assert_eq!(errno(files.set_attribute(again).await), libc::EEXIST);
    let get = |name: &'static str| GetAttributeRequest {
        place: place(),
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
        .list_attributes(ListAttributesRequest { place: place() })
        .await;
    assert_eq!(names.unwrap().into_inner().names, ["user.note"]);
    let remove = || RemoveAttributeRequest {
        place: place(),
        name: "user.note".into(),
    };
    files.remove_attribute(remove()).await.unwrap();
    assert_eq!(errno(files.remove_attribute(remove()).await), libc::ENODATA);
    let foreign = SetAttributeRequest {
        place: Some(Place::path("/etc/greeting")),
        ..set("x")
    };
    assert_eq!(errno(files.set_attribute(foreign).await), libc::EACCES);
}
