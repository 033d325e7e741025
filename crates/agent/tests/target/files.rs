//! The target's files, with the target's permissions.

use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use bytes::Bytes;
use protocol::rpc::{
    AccessMode, AccessRequest, AllocateRequest, CloseRequest, Entry, GetAttributeRequest,
    LinkRequest, ListAttributesRequest, ListRequest, MakeDirectoryRequest, MakeNodeRequest,
    Metadata, NewTime, OpenRequest, Place, ReadLinkRequest, RemoveAttributeRequest,
    RemoveDirectoryRequest, RenameRequest, SeekRequest, SetAttributeRequest, SetModeRequest,
    SetOwnerRequest, SetTimesRequest, StatFilesystemRequest, StatRequest, SymbolicLinkRequest,
    SyncRequest, Time, TruncateRequest, UnlinkRequest,
};
use tonic::Status;

use crate::client::{Client, errno};
use crate::world::{Target, target};

fn open(path: &str) -> OpenRequest {
    OpenRequest {
        path: path.to_owned().into(),
        ..OpenRequest::default()
    }
}

fn create(path: &str) -> OpenRequest {
    OpenRequest {
        access_mode: AccessMode::ReadWrite.into(),
        create: true,
        mode: 0o644,
        ..open(path)
    }
}

async fn stat(client: &Client, place: Place) -> Result<Metadata, Status> {
    let place = Some(place);
    let answer = client.files().stat(StatRequest { place }).await?;
    Ok(answer.into_inner().metadata.expect("metadata"))
}

async fn list(client: &Client, place: Place) -> Result<Vec<Entry>, Status> {
    let request = ListRequest {
        place: Some(place),
        without_metadata: false,
    };
    let mut pieces = client.files().list(request).await?.into_inner();
    let mut entries = Vec::new();
    while let Some(piece) = pieces.message().await? {
        entries.extend(piece.entries);
    }
    Ok(entries)
}

async fn in_data() -> Option<(Target, Client)> {
    let target = target()?;
    let client = target.client().await;
    Some((target, client))
}

#[tokio::test]
async fn a_small_file_is_one_call() {
    let Some((_target, client)) = in_data().await else {
        return;
    };
    let opened = client
        .open(OpenRequest {
            first_bytes: 65_536,
            forget_when_whole: true,
            ..open("/etc/greeting")
        })
        .await
        .unwrap();
    assert_eq!(opened.first_bytes, "only at the target\n");
    assert!(opened.whole);
    assert_eq!(opened.handle, 0);
    assert_eq!(opened.metadata.unwrap().size, 19);
    // Cut, with a handle for the rest.
    let opened = client
        .open(OpenRequest {
            first_bytes: 4,
            forget_when_whole: true,
            ..open("/etc/greeting")
        })
        .await
        .unwrap();
    assert_eq!((&*opened.first_bytes, opened.whole), (&b"only"[..], false));
    assert_eq!(
        client.read(opened.handle, 4, 100).await.unwrap(),
        " at the target\n"
    );
    // Exactly as long as was asked for, and files that say they are empty.
    let opened = client
        .open(OpenRequest {
            first_bytes: 19,
            ..open("/etc/greeting")
        })
        .await
        .unwrap();
    assert!(opened.whole && opened.handle != 0);
    let opened = client
        .open(OpenRequest {
            first_bytes: 65_536,
            ..open("/proc/version")
        })
        .await
        .unwrap();
    assert!(opened.whole && opened.first_bytes.starts_with(b"Linux"));
}

#[tokio::test]
async fn paths_resolve_inside_the_target() {
    let Some((_target, client)) = in_data().await else {
        return;
    };
    let check = async |path: &str, expected: Result<&str, i32>| {
        let opened = client
            .open(OpenRequest {
                first_bytes: 100,
                ..open(path)
            })
            .await;
        match expected {
            Ok(text) => assert_eq!(opened.unwrap().first_bytes, text.as_bytes(), "{path}"),
            Err(number) => assert_eq!(errno(opened), number, "{path}"),
        }
    };
    let greeting = Ok("only at the target\n");
    check("/etc/greeting", greeting).await;
    check("//etc///greeting", greeting).await;
    check("/srv/../etc/./greeting", greeting).await;
    check("/../../../etc/greeting", greeting).await;
    check("/srv/absolute", greeting).await;
    check("/srv/upward", greeting).await;
    check("/etc/group-only", Ok("for the group")).await;
    check("/srv/dangling", Err(libc::ENOENT)).await;
    check("/srv/loop", Err(libc::ELOOP)).await;
    check("/etc/shadow", Err(libc::EACCES)).await;
    check("/srv/locked/file", Err(libc::EACCES)).await;
    check("/etc/greeting/", Err(libc::ENOTDIR)).await;
    check("/etc/greeting/more", Err(libc::ENOTDIR)).await;
    check("/etc/missing", Err(libc::ENOENT)).await;
    check("/var", Err(libc::ENOENT)).await;
    check("", Err(libc::ENOENT)).await;
    check("etc/greeting", Err(libc::EINVAL)).await;
    check("/zero\0", Err(libc::EINVAL)).await;
    check(&format!("/{}", "x".repeat(4095)), Err(libc::ENAMETOOLONG)).await;
    check(&"/x".repeat(2047), Err(libc::ENOENT)).await;
    check(&format!("/{}", "x".repeat(256)), Err(libc::ENAMETOOLONG)).await;
}

#[tokio::test]
async fn flags_mean_what_they_mean_in_open() {
    let Some((target, client)) = in_data().await else {
        return;
    };
    let check = async |request: OpenRequest, expected: Result<(), i32>| {
        let opened = client.open(request.clone()).await;
        match expected {
            Ok(()) => assert_ne!(opened.unwrap().handle, 0, "{request:?}"),
            Err(number) => assert_eq!(errno(opened), number, "{request:?}"),
        }
    };
    let exclusive = OpenRequest {
        exclusive: true,
        ..create("/srv/data/new")
    };
    check(exclusive.clone(), Ok(())).await;
    check(exclusive, Err(libc::EEXIST)).await;
    let made = fs::metadata(target.path("/srv/data/new")).unwrap();
    assert_eq!(
        (made.uid(), made.gid(), made.mode() & 0o7777),
        (1234, 1235, 0o644)
    );
    // The mode is the caller's, whatever mask the agent was started with.
    check(
        OpenRequest {
            mode: 0o666,
            ..create("/srv/data/open")
        },
        Ok(()),
    )
    .await;
    assert_eq!(
        fs::metadata(target.path("/srv/data/open")).unwrap().mode() & 0o777,
        0o666
    );
    check(
        OpenRequest {
            no_follow: true,
            ..open("/srv/absolute")
        },
        Err(libc::ELOOP),
    )
    .await;
    check(
        OpenRequest {
            directory: true,
            ..open("/etc/greeting")
        },
        Err(libc::ENOTDIR),
    )
    .await;
    check(
        OpenRequest {
            directory: true,
            ..open("/etc")
        },
        Ok(()),
    )
    .await;
    check(
        OpenRequest {
            access_mode: AccessMode::Write.into(),
            ..open("/etc")
        },
        Err(libc::EISDIR),
    )
    .await;
    check(
        OpenRequest {
            access_mode: AccessMode::Write.into(),
            ..open("/etc/greeting")
        },
        Err(libc::EACCES),
    )
    .await;
    check(
        OpenRequest {
            access_mode: AccessMode::None.into(),
            ..open("/etc/shadow")
        },
        Ok(()),
    )
    .await;
    check(
        OpenRequest {
            no_access_time: true,
            ..open("/etc/greeting")
        },
        Err(libc::EPERM),
    )
    .await;
    check(create("/etc/not-allowed"), Err(libc::EACCES)).await;
    // A mode without a file to create, and devices, are nothing special. A FIFO keeps nobody waiting.
    check(
        OpenRequest {
            mode: 0o777,
            ..open("/etc/greeting")
        },
        Ok(()),
    )
    .await;
    check(
        OpenRequest {
            access_mode: AccessMode::Write.into(),
            ..open("/dev/null")
        },
        Ok(()),
    )
    .await;
    let fifo = MakeNodeRequest {
        path: "/srv/data/fifo".into(),
        mode: 0o010_600,
        ..MakeNodeRequest::default()
    };
    client.files().make_node(fifo).await.unwrap();
    check(
        OpenRequest {
            access_mode: AccessMode::Write.into(),
            ..open("/srv/data/fifo")
        },
        Err(libc::ENXIO),
    )
    .await;

    fs::write(target.path("/srv/data/new"), "old").unwrap();
    check(
        OpenRequest {
            truncate: true,
            ..create("/srv/data/new")
        },
        Ok(()),
    )
    .await;
    assert_eq!(fs::read(target.path("/srv/data/new")).unwrap(), b"");
}

#[tokio::test]
async fn ranges_are_read_and_nothing_else() {
    let Some((target, client)) = in_data().await else {
        return;
    };
    // Two GiB of which nearly nothing exists.
    let file = fs::File::create(target.path("/srv/data/large")).unwrap();
    file.set_len(2 * 1024 * 1024 * 1024).unwrap();
    let pattern: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    std::os::unix::fs::FileExt::write_all_at(&file, &pattern, 1_000_000_000).unwrap();
    let opened = client
        .open(OpenRequest {
            first_bytes: 4096,
            ..open("/srv/data/large")
        })
        .await
        .unwrap();
    assert_eq!(opened.first_bytes.len(), 4096);
    let read = async |offset, length| client.read(opened.handle, offset, length).await.unwrap();
    assert_eq!(read(1_000_000_000, 4096).await, pattern[..4096]);
    assert_eq!(read(1_000_000_003, 1).await, pattern[3..4]);
    assert_eq!(read(1_000_000_000, pattern.len() as u64).await, pattern);
    assert_eq!(read(2 * 1024 * 1024 * 1024 - 10, 4096).await.len(), 10);
    assert_eq!(read(u64::MAX / 4, 4096).await.len(), 0);
    assert_eq!(read(0, 0).await.len(), 0);
    let failure = client.read(opened.handle, u64::MAX, 10).await.unwrap_err();
    assert_eq!(failure.number(), Some(libc::EINVAL));

    let data = SeekRequest {
        handle: opened.handle,
        offset: 0,
        hole: false,
    };
    let data = client.files().seek(data).await.unwrap().into_inner().offset;
    assert_eq!(data, 1_000_000_000 / 4096 * 4096);

    let directory = client.open(open("/etc")).await.unwrap();
    let failure = client.read(directory.handle, 0, 10).await.unwrap_err();
    assert_eq!(failure.number(), Some(libc::EISDIR));
    let handles = vec![opened.handle, opened.handle, 777];
    client
        .files()
        .close(CloseRequest { handles })
        .await
        .unwrap();
    let failure = client.read(opened.handle, 0, 10).await.unwrap_err();
    assert_eq!(failure.number(), Some(libc::EBADF));
}

#[tokio::test]
async fn bytes_are_written_where_they_belong() {
    let Some((target, client)) = in_data().await else {
        return;
    };
    let opened = client.open(create("/srv/data/file")).await.unwrap();
    assert_eq!(client.write(opened.handle, 0, "hello world").await, Ok(11));
    assert_eq!(client.write(opened.handle, 6, "there").await, Ok(5));
    assert_eq!(client.write(opened.handle, 20, "").await, Ok(0));
    let content = || fs::read(target.path("/srv/data/file")).unwrap();
    assert_eq!(content(), b"hello there");
    let large = Bytes::from(vec![7; 5_000_000]);
    assert_eq!(
        client.write(opened.handle, 3, large.clone()).await,
        Ok(5_000_000)
    );
    assert_eq!(content()[3..], large);
    let read_only = client.open(open("/srv/data/file")).await.unwrap();
    let failure = client.write(read_only.handle, 0, "x").await.unwrap_err();
    assert_eq!(failure.number(), Some(libc::EBADF));
    let handle = opened.handle;
    client
        .files()
        .sync(SyncRequest {
            handle,
            data_only: false,
        })
        .await
        .unwrap();
    client
        .files()
        .sync(SyncRequest {
            handle,
            data_only: true,
        })
        .await
        .unwrap();
    let allocate = AllocateRequest {
        handle,
        offset: 0,
        length: 6_000_000,
        ..AllocateRequest::default()
    };
    client.files().allocate(allocate).await.unwrap();
    assert_eq!(content().len(), 6_000_000);
}

#[tokio::test]
async fn a_full_disk_says_how_much_was_written() {
    let Some((target, client)) = in_data().await else {
        return;
    };
    // The size of the target's file system, as seen from outside.
    let options = "remount,size=8m";
    let remount = std::process::Command::new("nsenter")
        .args([
            &format!("--mount=/proc/{}/ns/mnt", target.pid),
            "mount",
            "-o",
            options,
            "/mnt",
        ])
        .status();
    assert!(remount.unwrap().success());
    let opened = client.open(create("/srv/data/file")).await.unwrap();
    let failure = client
        .write(opened.handle, 0, vec![1; 20_000_000])
        .await
        .unwrap_err();
    assert_eq!(failure.number(), Some(libc::ENOSPC));
}

#[tokio::test]
async fn appends_of_many_do_not_overwrite_each_other() {
    let Some((target, client)) = in_data().await else {
        return;
    };
    let mut writers = Vec::new();
    for writer in 0..8u8 {
        let client = client.clone();
        writers.push(tokio::spawn(async move {
            let opened = client
                .open(OpenRequest {
                    append: true,
                    ..create("/srv/data/log")
                })
                .await
                .unwrap();
            for _ in 0..20 {
                let line = vec![b'a' + writer; 40_000];
                // The offset is stale, as that of a client with other writers is.
                assert_eq!(client.write(opened.handle, 0, line).await, Ok(40_000));
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let log = fs::read(target.path("/srv/data/log")).unwrap();
    assert_eq!(log.len(), 8 * 20 * 40_000);
    assert!(
        log.chunks(40_000)
            .all(|line| line.iter().all(|byte| *byte == line[0]))
    );
}

#[tokio::test]
async fn a_temporary_file_gets_a_name_later() {
    let Some((target, client)) = in_data().await else {
        return;
    };
    let temporary = OpenRequest {
        temporary: true,
        create: false,
        ..create("/srv/data")
    };
    let opened = client.open(temporary).await.unwrap();
    client.write(opened.handle, 0, "late").await.unwrap();
    assert!(
        list(&client, Place::path("/srv/data"))
            .await
            .unwrap()
            .is_empty()
    );
    let link = LinkRequest {
        from: Some(Place::handle(opened.handle)),
        to: "/srv/data/named".into(),
    };
    client.files().link(link).await.unwrap();
    assert_eq!(fs::read(target.path("/srv/data/named")).unwrap(), b"late");
}

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
async fn directories_are_listed_whole() {
    let Some((target, client)) = in_data().await else {
        return;
    };
    let names = || (0..3000).map(|number| format!("file-with-a-rather-long-name-{number:05}"));
    for name in names() {
        fs::write(target.path("/srv/data").join(name), "x").unwrap();
    }
    let strange = std::ffi::OsString::from_vec(b"\xff\xfe\n ".to_vec());
    fs::write(target.path("/srv/data").join(strange), "").unwrap();
    let mut entries = list(&client, Place::path("/srv/data")).await.unwrap();
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
        let entries = list(&client, Place::handle(opened.handle)).await.unwrap();
        assert_eq!(entries.len(), 6);
    }
    assert!(list(&client, Place::path("/run")).await.unwrap().is_empty());
    assert_eq!(
        errno(list(&client, Place::path("/etc/greeting")).await),
        libc::ENOTDIR
    );
    assert_eq!(
        errno(list(&client, Place::path("/srv/locked")).await),
        libc::EACCES
    );
    assert_eq!(
        errno(list(&client, Place::path("/missing")).await),
        libc::ENOENT
    );
}

#[tokio::test]
async fn links_are_read_and_rights_are_asked() {
    let Some((_target, client)) = in_data().await else {
        return;
    };
    let read_link = async |path: &str| {
        let place = Some(Place::path(path.to_owned()));
        let answer = client.files().read_link(ReadLinkRequest { place }).await;
        answer.map(|answer| answer.into_inner().target)
    };
    assert_eq!(read_link("/srv/absolute").await.unwrap(), "/etc/greeting");
    assert_eq!(read_link("/srv/dangling").await.unwrap(), "nowhere");
    assert_eq!(errno(read_link("/etc/greeting").await), libc::EINVAL);
    assert_eq!(errno(read_link("/missing").await), libc::ENOENT);

    let check = async |path: &str, rights: &str, expected: i32| {
        let request = AccessRequest {
            place: Some(Place::path(path.to_owned())),
            read: rights.contains('r'),
            write: rights.contains('w'),
            execute: rights.contains('x'),
        };
        let answer = client.files().access(request).await;
        match expected {
            0 => drop(answer.unwrap()),
            number => assert_eq!(errno(answer), number, "{path} {rights}"),
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
async fn names_are_made_moved_and_removed() {
    let Some((target, client)) = in_data().await else {
        return;
    };
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

    let link = |from: Place, to: &str| LinkRequest {
        from: Some(from),
        to: path(to),
    };
    files
        .link(link(
            Place::path_no_follow("/srv/data/other"),
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
            Place::path_no_follow("/srv/data/symbolic"),
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
        list(&client, Place::path("/srv/data")).await.unwrap().len(),
        1
    );
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
