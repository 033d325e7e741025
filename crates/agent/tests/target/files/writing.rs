//! Writing files, also with concurrent writers.

use super::*;

#[tokio::test]
#[ignore = "needs root"]
async fn bytes_are_written_at_their_offset() {
    let (target, client) = target_and_client().await;
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
#[ignore = "needs root"]
async fn a_full_disk_is_an_error() {
    let (target, client) = target_and_client().await;
    // Limits the size of the target's file system.
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
#[ignore = "needs root"]
async fn concurrent_appends_do_not_overwrite_each_other() {
    let (target, client) = target_and_client().await;
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
                // The offset is outdated, as for any client with concurrent writers.
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
#[ignore = "needs root"]
async fn a_temporary_file_can_be_linked_later() {
    let (target, client) = target_and_client().await;
    let temporary = OpenRequest {
        temporary: true,
        create: false,
        ..create("/srv/data")
    };
    let opened = client.open(temporary).await.unwrap();
    client.write(opened.handle, 0, "late").await.unwrap();
    assert!(
        list(&client, FileRef::path("/srv/data"))
            .await
            .unwrap()
            .is_empty()
    );
    let link = LinkRequest {
        from: Some(FileRef::handle(opened.handle)),
        to: "/srv/data/named".into(),
    };
    client.files().link(link).await.unwrap();
    assert_eq!(fs::read(target.path("/srv/data/named")).unwrap(), b"late");
}
