use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use super::*;
use crate::multicluster::stub;

fn given(token: &str) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some("mirrord-cluster-east".to_owned()),
            labels: Some(BTreeMap::from([(
                auth::LABEL.to_owned(),
                "true".to_owned(),
            )])),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(
            "bearerToken".to_owned(),
            ByteString(token.as_bytes().to_vec()),
        )])),
        ..Secret::default()
    }
}

/// A client that is made anew cuts off whoever uses the one before.
#[tokio::test]
async fn a_token_that_is_the_same_changes_nothing() {
    let keeper = MemberKeeper::new(stub::member(Method::BearerToken));
    let mut changes = keeper.access.subscribe();
    // What the Secret holds, and whether there is another client then.
    let cases = [
        (Some("one"), true),
        (Some("one"), false),
        (Some("two"), true),
        (None, true),
        (Some("two"), true),
        (Some("two"), false),
    ];
    for (index, (token, is_new)) in cases.into_iter().enumerate() {
        let secret = token.map(given);
        let now = Timestamp::UNIX_EPOCH;
        let chosen = bearer::choose(&keeper.member, secret.as_ref(), None, None, now);
        keeper.take(chosen);
        assert_eq!(changes.has_changed().unwrap(), is_new, "step {index}");
        let access = changes.borrow_and_update();
        assert_eq!(access.client.is_some(), token.is_some(), "step {index}");
    }
}

/// An API server that lists Secrets whose names have `read` in them, which are none, and forbids all others.
fn forbidding(read: &'static str) -> Client {
    stub::client(move |asked| {
        if asked.contains("watch=true") {
            return stub::silence();
        }
        if asked.contains(read) {
            let list = json!({
                "apiVersion": "v1", "kind": "SecretList", "metadata": {"resourceVersion": "1"}, "items": [],
            });
            return stub::said(http::StatusCode::OK, &list);
        }
        let refusal = json!({
            "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden",
            "message": "secrets is forbidden",
        });
        stub::said(http::StatusCode::FORBIDDEN, &refusal)
    })
}

/// Without a word of why, people would wait for a member that is never asked.
#[tokio::test]
async fn a_secret_that_cannot_be_read_is_the_members_trouble() {
    let (given, kept) = ("mirrord-cluster-east", TOKENS);
    // What may be read, what may not, and why there is no credential.
    let cases = [
        (Method::Mtls, "nothing", given, "secrets is forbidden"),
        (Method::BearerToken, kept, given, "secrets is forbidden"),
        (Method::BearerToken, given, kept, "secrets is forbidden"),
        (Method::Mtls, given, given, "is not there"),
    ];
    for (method, read, secret, expected) in cases {
        let keeper = MemberKeeper::new(stub::member(method));
        let mut access = keeper.access.subscribe();
        let secrets = Api::namespaced(forbidding(read), "tools");
        let trouble = access.wait_for(|access| access.trouble.is_some());
        let trouble = timeout(Duration::from_secs(60), trouble);
        tokio::select! {
            () = keeper.keep(secrets, None) => panic!("nobody keeps it"),
            access = trouble => {
                let access = access.expect("the trouble is told").unwrap();
                let trouble = access.trouble.as_ref().unwrap().to_string();
                assert!(trouble.contains(secret) && trouble.contains(expected), "{trouble}");
            }
        }
    }
}

/// What was read holds while nobody may read on.
#[tokio::test]
async fn a_client_outlives_the_right_to_read_its_secret() {
    let keeper = MemberKeeper::new(stub::member(Method::BearerToken));
    let trouble = || NoCredential::NotRead {
        secret: "mirrord-cluster-east".to_owned(),
        why: "forbidden".to_owned(),
    };
    keeper.note_unread(trouble(), false);
    assert_eq!(keeper.access.borrow().trouble, Some(trouble()));
    let mut changes = keeper.access.subscribe();
    keeper.note_unread(trouble(), false);
    assert!(!changes.has_changed().unwrap(), "it is told once");
    let secret = given("one");
    let now = Timestamp::UNIX_EPOCH;
    keeper.take(bearer::choose(
        &keeper.member,
        Some(&secret),
        None,
        None,
        now,
    ));
    changes.mark_unchanged();
    keeper.note_unread(trouble(), true);
    assert!(!changes.has_changed().unwrap());
    assert!(keeper.access.borrow().client.is_some());
}
