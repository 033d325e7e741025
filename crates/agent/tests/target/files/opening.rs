//! Opening and reading files.

use super::*;

#[tokio::test]
#[ignore = "needs root"]
async fn a_small_file_needs_one_call() {
    let (_target, client) = target_and_client().await;
    let opened = client
        .open(OpenRequest {
            first_bytes: 65_536,
            close_if_whole: true,
            ..open("/etc/greeting")
        })
        .await
        .unwrap();
    assert_eq!(opened.first_bytes, "only at the target\n");
    assert!(opened.whole);
    assert_eq!(opened.handle, 0);
    assert_eq!(opened.metadata.unwrap().size, 19);
    // Truncated, with a handle for the rest.
    let opened = client
        .open(OpenRequest {
            first_bytes: 4,
            close_if_whole: true,
            ..open("/etc/greeting")
        })
        .await
        .unwrap();
    assert_eq!((&*opened.first_bytes, opened.whole), (&b"only"[..], false));
    assert_eq!(
        client.read(opened.handle, 4, 100).await.unwrap(),
        " at the target\n"
    );
    // A file of exactly the requested length, and a virtual file with the size 0.
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
#[ignore = "needs root"]
async fn paths_resolve_inside_the_target() {
    let (_target, client) = target_and_client().await;
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
#[ignore = "needs root"]
async fn flags_work_as_in_open() {
    let (target, client) = target_and_client().await;
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
    // The agent's umask is not applied to the mode.
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
    // A mode without `create` is ignored, devices can be opened, and opening a FIFO does not block.
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
#[ignore = "needs root"]
async fn only_requested_ranges_are_read() {
    let (target, client) = target_and_client().await;
    // A sparse file of 2 GiB.
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
