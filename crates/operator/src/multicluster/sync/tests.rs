use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

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
