use serde_json::json;

use super::*;
use crate::multicluster::stub::{self, token_secret as configured};

/// A new client would close the connections of the previous one.
#[tokio::test]
async fn an_unchanged_token_keeps_the_client() {
    let member_client = MemberClient::new(stub::member(AuthMethod::BearerToken));
    let mut changes = member_client.access.subscribe();
    // The token in the Secret, and whether the client is replaced.
    let cases = [
        (Some("one"), true),
        (Some("one"), false),
        (Some("two"), true),
        (None, true),
        (Some("two"), true),
        (Some("two"), false),
    ];
    for (index, (token, is_new)) in cases.into_iter().enumerate() {
        let secret = token.map(configured);
        let now = Timestamp::UNIX_EPOCH;
        let chosen = bearer::choose(&member_client.member, secret.as_ref(), None, None, now);
        member_client.use_token(chosen);
        assert_eq!(changes.has_changed().unwrap(), is_new, "step {index}");
        let access = changes.borrow_and_update();
        assert_eq!(access.client.is_some(), token.is_some(), "step {index}");
    }
}

/// An API server that returns an empty list for Secrets whose name contains `readable`, and forbids all others.
fn forbidding(readable: &'static str) -> Client {
    stub::client(move |path| {
        if path.contains("watch=true") {
            return stub::pending_response();
        }
        if path.contains(readable) {
            let list = json!({
                "apiVersion": "v1", "kind": "SecretList", "metadata": {"resourceVersion": "1"}, "items": [],
            });
            return stub::json_response(http::StatusCode::OK, &list);
        }
        let refusal = json!({
            "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden",
            "message": "secrets is forbidden",
        });
        stub::json_response(http::StatusCode::FORBIDDEN, &refusal)
    })
}

/// Without a reported error, users would wait for a member that is never checked.
#[tokio::test]
async fn an_unreadable_secret_is_reported() {
    let (configured, renewed) = (
        "mirrord-cluster-east",
        "mirrord-operator-cluster-token-east",
    );
    let forbidden = "secrets is forbidden";
    // The readable Secret, the Secret in the error, and the error.
    let cases = [
        (AuthMethod::Mtls, "nothing", configured, forbidden),
        (AuthMethod::BearerToken, renewed, configured, forbidden),
        (AuthMethod::BearerToken, configured, renewed, forbidden),
        (AuthMethod::Mtls, configured, configured, "does not exist"),
    ];
    for (method, readable, secret, expected) in cases {
        let member_client = MemberClient::new(stub::member(method));
        let mut access = member_client.access.subscribe();
        let secrets = Api::namespaced(forbidding(readable), "tools");
        let error = access.wait_for(|access| access.error.is_some());
        let error = timeout(Duration::from_secs(60), error);
        tokio::select! {
            () = member_client.run(secrets, None) => panic!("the client has stopped"),
            access = error => {
                let access = access.expect("the error is reported").unwrap();
                let error = access.error.as_ref().unwrap().to_string();
                assert!(error.contains(secret) && error.contains(expected), "{error}");
            }
        }
    }
}

/// A credential stays in use when its Secret becomes unreadable.
#[tokio::test]
async fn a_client_outlives_the_permission_to_read_its_secret() {
    let member_client = MemberClient::new(stub::member(AuthMethod::BearerToken));
    let error = || NoCredential::NotRead {
        secret: "mirrord-cluster-east".to_owned(),
        why: "forbidden".to_owned(),
    };
    member_client.record_read_error(error(), false);
    assert_eq!(member_client.access.borrow().error, Some(error()));
    let mut changes = member_client.access.subscribe();
    member_client.record_read_error(error(), false);
    assert!(!changes.has_changed().unwrap(), "it is reported once");
    let secret = configured("one");
    let now = Timestamp::UNIX_EPOCH;
    member_client.use_token(bearer::choose(
        &member_client.member,
        Some(&secret),
        None,
        None,
        now,
    ));
    changes.mark_unchanged();
    member_client.record_read_error(error(), true);
    assert!(!changes.has_changed().unwrap());
    assert!(member_client.access.borrow().client.is_some());
}
