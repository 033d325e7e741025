use api::operator::MultiClusterRoles;
use api::{MirrordOperatorSpec, MirrordOperatorStatus};
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

/// The result of a check: an error has the status of the response, if there was one.
type Checked = Result<(), Option<u16>>;

/// One failed check does not close connections that work, nor do any that the API server has answered.
#[test]
fn connections_are_closed_after_several_failed_checks() {
    // The results of checks, and whether the connection is closed.
    let cases: &[(&[Checked], bool)] = &[
        (&[Err(None)], false),
        (&[Err(None), Err(None)], true),
        (&[Err(None), Ok(()), Err(None)], false),
        (&[Err(None), Err(Some(429)), Err(None)], false),
        (&[Err(Some(503)), Err(Some(503)), Err(Some(503))], false),
        (&[Err(Some(401)), Err(Some(401))], true),
        (&[Err(Some(404)), Err(None)], true),
    ];
    for before in [0, 3] {
        for (checks, expected) in cases {
            // Checks that failed before the connection was opened are not about it.
            let mut health = MemberHealth::default();
            for _ in 0..before {
                health.record(Timestamp::UNIX_EPOCH, Err("no route".to_owned()), None);
            }
            let mut detector = OutageDetector::since(&health);
            let closed = checks.iter().any(|result| {
                let operator =
                    || Box::new(MirrordOperator::new(Default::default(), Default::default()));
                let (outcome, code) = match result {
                    Ok(()) => (Ok(operator()), None),
                    Err(code) => (Err("failed".to_owned()), *code),
                };
                health.record(Timestamp::UNIX_EPOCH, outcome, code);
                detector.detect(&health).is_some()
            });
            assert_eq!(closed, *expected, "{checks:?} after {before}");
        }
    }
}

#[tokio::test]
async fn a_member_that_would_refuse_sessions_says_so() {
    let denied = "ValidatingAdmissionPolicy 'mirrord-operator-sessions' denied request";
    // The response of the member, and what is known from it.
    let cases = [
        (http::StatusCode::CREATED, Some(None)),
        (http::StatusCode::CONFLICT, Some(None)),
        (http::StatusCode::FORBIDDEN, Some(Some(denied))),
        (http::StatusCode::UNPROCESSABLE_ENTITY, Some(Some(denied))),
        (http::StatusCode::TOO_MANY_REQUESTS, None),
        (http::StatusCode::SERVICE_UNAVAILABLE, None),
    ];
    for (status, expected) in cases {
        let mut response = serde_json::to_value(probe_session()).unwrap();
        if !status.is_success() {
            response = json!({
                "kind": "Status", "status": "Failure", "code": status.as_u16(), "reason": "", "message": denied,
            });
        }
        let client = stub::client(move |path| {
            assert!(path.contains("dryRun=All"), "{path}");
            stub::json_response(status, &response)
        });
        match (check_refusal(&client).await, expected) {
            (Some(Some(refusal)), Some(Some(expected))) => {
                assert!(refusal.contains(expected), "{refusal}");
            }
            (Some(None), Some(None)) | (None, None) => {}
            (found, expected) => panic!("{status}: {found:?} instead of {expected:?}"),
        }
    }
}

/// The refusal of a member is written into the operator's status.
#[tokio::test]
async fn a_long_refusal_is_shortened() {
    let response = json!({
        "kind": "Status", "status": "Failure", "code": 403, "reason": "",
        "message": format!("\u{1b}[2J{}", "x".repeat(20_000)),
    });
    let client = stub::client(move |_| stub::json_response(http::StatusCode::FORBIDDEN, &response));
    let refusal = check_refusal(&client).await.unwrap().unwrap();
    assert!(refusal.len() < 2000, "{} bytes", refusal.len());
    assert!(!refusal.contains('\u{1b}'), "{refusal:?}");
}

/// Without a role, only the members on EKS cannot be used.
#[tokio::test]
async fn a_missing_role_is_an_error_of_the_member() {
    let region = "eu-north-1".to_owned();
    let member_client = MemberClient::new(stub::member(AuthMethod::Eks { region }));
    let secrets = Api::namespaced(forbidding("nothing"), "tools");
    let mut access = member_client.access.subscribe();
    let error = access.wait_for(|access| access.error.is_some());
    let error = timeout(Duration::from_secs(60), error);
    tokio::select! {
        () = member_client.run(secrets, None) => panic!("the client has stopped"),
        access = error => {
            let error = access.expect("the error is reported").unwrap().error.clone();
            let text = error.unwrap().to_string();
            assert!(text.contains("has no role in AWS") && text.contains("sa.roleArn"), "{text}");
        }
    }
}

/// A Primary without targets that another Primary names as its member.
#[test]
fn a_management_only_member_has_no_sessions() {
    let operator = |roles: Option<MultiClusterRoles>| {
        let spec = MirrordOperatorSpec {
            multi_cluster: roles,
            ..MirrordOperatorSpec::default()
        };
        MirrordOperator::new(spec, MirrordOperatorStatus::default())
    };
    let primary = |management_only| MultiClusterRoles {
        management_only,
        ..MultiClusterRoles::default()
    };
    let cases = [
        (None, false),
        (Some(primary(false)), false),
        (Some(primary(true)), true),
    ];
    for (roles, expected) in cases {
        let refusal = management_refusal(&operator(roles.clone()));
        assert_eq!(refusal.is_some(), expected, "{roles:?}: {refusal:?}");
    }
}
