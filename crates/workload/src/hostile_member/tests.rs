//! The member as its Primary sees it.

use std::pin::pin;

use api::{MirrordClusterSession, MirrordClusterSessionSpec};
use error_chain::error_chain;
use futures_util::StreamExt as _;
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::config::AuthInfo;
use kube::{Api, Client, Config};

use super::*;

/// So that a failure does not hang.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The client of a Primary, for the member with this behavior.
async fn client(behavior: &str) -> Client {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let access = start(address).await.unwrap();
    let text = |key: &str| access[key].as_str().unwrap();
    let pem = STANDARD.decode(text("caData")).unwrap();
    let lines = String::from_utf8(pem).unwrap();
    let certificate: String = lines
        .lines()
        .filter(|line| !line.starts_with('-'))
        .collect();
    let mut config = Config::new(format!("https://{address}/{behavior}").parse().unwrap());
    config.root_cert = Some(vec![STANDARD.decode(certificate).unwrap()]);
    config.auth_info = AuthInfo {
        token: Some(text("bearerToken").to_owned().into()),
        ..AuthInfo::default()
    };
    cluster::bounded(cluster::client(config).unwrap())
}

fn child(name: &str) -> MirrordClusterSession {
    MirrordClusterSession::new(name, MirrordClusterSessionSpec::default())
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    let finished = tokio::time::timeout(TIMEOUT, work).await;
    finished.expect("the member responds")
}

#[tokio::test]
async fn a_quiet_member_stores_sessions() {
    let children: Api<MirrordClusterSession> = Api::all(client("quiet").await);
    let (create, list) = (PostParams::default(), ListParams::default());
    within(async {
        children.create(&create, &child("one")).await.unwrap();
        let again = children.create(&create, &child("one")).await;
        assert!(matches!(again, Err(kube::Error::Api(status)) if status.code == 409));
        let found = children.list(&list).await.unwrap();
        assert_eq!(found.metadata.resource_version.as_deref(), Some("1"));
        assert_eq!(found.items.len(), 1);
        let mut events = pin!(children.watch(&WatchParams::default(), "1").await.unwrap());
        children
            .delete("one", &DeleteParams::default())
            .await
            .unwrap();
        let event = events.next().await;
        assert!(
            matches!(event, Some(Ok(WatchEvent::Deleted(_)))),
            "{event:?}"
        );
        assert_eq!(children.list(&list).await.unwrap().items, []);
    })
    .await;
}

#[tokio::test]
async fn responses_are_endless() {
    for (behavior, limit) in [
        ("endless-health", cluster::MAX_RESPONSE_BYTES),
        ("endless", cluster::MAX_RESPONSE_BYTES),
        ("endless-errors", cluster::MAX_ERROR_BYTES),
    ] {
        let children: Api<MirrordClusterSession> = Api::all(client(behavior).await);
        let error = within(children.list(&ListParams::default()))
            .await
            .unwrap_err();
        let error = error_chain(&error);
        assert!(error.contains(&limit.to_string()), "{behavior}: {error}");
    }
}

#[tokio::test]
async fn pages_are_readable_and_have_a_next_one() {
    let children: Api<MirrordClusterSession> = Api::all(client("huge-lists").await);
    let mut parameters = ListParams::default().limit(50);
    for number in 0..3 {
        let page = within(children.list(&parameters)).await.unwrap();
        let expected = format!("mc-{:016x}-hostile", 50 * number);
        assert_eq!(page.items[0].metadata.name, Some(expected));
        parameters = parameters.continue_token(&page.metadata.continue_.unwrap());
    }
}

#[tokio::test]
async fn statuses_are_huge_and_change() {
    let children: Api<MirrordClusterSession> = Api::all(client("huge-statuses").await);
    within(async {
        let create = PostParams::default();
        children.create(&create, &child("one")).await.unwrap();
        let mut events = pin!(children.watch(&WatchParams::default(), "0").await.unwrap());
        let mut pods = Vec::new();
        while pods.len() < 2 {
            match events.next().await {
                Some(Ok(WatchEvent::Added(_))) => {}
                Some(Ok(WatchEvent::Modified(child))) => {
                    let status = child.status.unwrap();
                    assert!(status.message.unwrap().len() > 500_000);
                    pods.push(status.pods);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(pods[0].len() == 1000 && pods[0] != pods[1]);
    })
    .await;
}
