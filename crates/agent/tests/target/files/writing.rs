//! Writing: bytes that arrive where they belong, whoever else writes.

use super::*;

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
