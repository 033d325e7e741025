use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

fn anna() -> User {
    User {
        name: "anna".to_owned(),
        groups: vec!["developers".to_owned()],
        ..User::default()
    }
}

/// An API server that allows `anna` the cluster `mine`, and fails for `broken`. It counts its reviews.
fn authorizer(reviews: &Arc<AtomicU32>) -> Authorizer {
    let reviews = Arc::clone(reviews);
    let service = tower::service_fn(move |request: Request<Body>| {
        let reviews = Arc::clone(&reviews);
        async move {
            let body = request.into_body().collect_bytes().await.unwrap();
            let review: Value = serde_json::from_slice(&body).unwrap();
            reviews.fetch_add(1, Ordering::SeqCst);
            let name = review["spec"]["resourceAttributes"]["name"].as_str();
            let is_allowed = review["spec"]["user"] == "anna" && name == Some("mine");
            let is_broken = name == Some("broken");
            let response = json!({"spec": {}, "status": {"allowed": is_allowed}});
            let mut response = Response::new(Body::from(response.to_string().into_bytes()));
            *response.status_mut() = if is_broken {
                StatusCode::INTERNAL_SERVER_ERROR
            } else {
                StatusCode::CREATED
            };
            Ok::<_, std::io::Error>(response)
        }
    });
    Authorizer::new(Client::new(service, "standin"), "standin".to_owned())
}

#[tokio::test(start_paused = true)]
async fn decisions_are_kept_for_seconds_and_failures_allow_nothing() {
    let reviews = Arc::default();
    let authorizer = authorizer(&reviews);
    let (anna, mut berta) = (anna(), anna());
    "berta".clone_into(&mut berta.name);
    let authorize = async |user: &User, cluster| {
        let authorized = authorizer
            .authorize(user, &Right::Proxy, Some(cluster))
            .await;
        authorized.map_err(|forbidden| forbidden.status().code.as_u16())
    };
    for _ in 0..3 {
        assert_eq!(authorize(&anna, "mine").await, Ok(()));
    }
    assert_eq!(reviews.swap(0, Ordering::SeqCst), 1);
    for _ in 0..3 {
        assert_eq!(authorize(&anna, "other").await, Err(403));
        assert_eq!(authorize(&berta, "mine").await, Err(403));
    }
    assert_eq!(reviews.swap(0, Ordering::SeqCst), 2);
    for _ in 0..3 {
        assert_eq!(authorize(&anna, "broken").await, Err(503));
    }
    assert_eq!(reviews.swap(0, Ordering::SeqCst), 3);
    tokio::time::advance(ALLOWED_TTL).await;
    assert_eq!(authorize(&anna, "mine").await, Ok(()));
    assert_eq!(reviews.load(Ordering::SeqCst), 1);
}

#[test]
fn a_failed_authorizer_has_not_decided() {
    let status = |allowed, denied, error: Option<&str>| SubjectAccessReviewStatus {
        allowed,
        denied,
        evaluation_error: error.map(str::to_owned),
        ..SubjectAccessReviewStatus::default()
    };
    let cases = [
        (None, Some(false)),
        (Some(status(true, None, Some("webhook"))), Some(true)),
        (Some(status(false, None, None)), Some(false)),
        (
            Some(status(false, Some(true), Some("webhook"))),
            Some(false),
        ),
        (Some(status(false, None, Some("webhook"))), None),
    ];
    for (status, expected) in cases {
        assert_eq!(is_allowed(status.as_ref()).ok(), expected, "{status:?}");
    }
}

#[test]
fn a_review_names_user_right_and_cluster() {
    let cases = [
        (
            Right::Proxy,
            Some("a"),
            json!({"verb": "proxy", "name": "a"}),
        ),
        (Right::List, None, json!({"verb": "list"})),
        (
            Right::Create,
            Some("a"),
            json!({"verb": "create", "name": "a"}),
        ),
        (
            Right::CreateToken,
            Some("a"),
            json!({"verb": "create", "subresource": "token", "name": "a"}),
        ),
        (
            Right::ReadAudit,
            None,
            json!({"verb": "get", "subresource": "audit"}),
        ),
    ];
    for (right, cluster, mut expected) in cases {
        let spec = review(&anna(), right, "standin", cluster).spec;
        assert_eq!(spec.user.as_deref(), Some("anna"));
        let groups = ["developers", "system:authenticated"].map(str::to_owned);
        assert_eq!(spec.groups, Some(groups.to_vec()));
        for (key, value) in [
            ("group", "standin.dev"),
            ("version", "v1alpha1"),
            ("resource", "managedclusters"),
            ("namespace", "standin"),
        ] {
            expected[key] = json!(value);
        }
        assert_eq!(
            serde_json::to_value(spec.resource_attributes).unwrap(),
            expected
        );
    }
}

#[test]
fn a_refusal_names_the_rule() {
    let cases = [
        (
            Right::Proxy,
            Some("a"),
            "user \"anna\" may not proxy managedclusters \"a\"; ask for this rule in a Role in the hub's namespace \
             \"standin\": {apiGroups: [standin.dev], resources: [managedclusters], resourceNames: [a], verbs: [proxy]}",
        ),
        (
            Right::Create,
            Some("a"),
            "user \"anna\" may not create managedclusters \"a\"; ask for this rule in a Role in the hub's namespace \
             \"standin\": {apiGroups: [standin.dev], resources: [managedclusters], verbs: [create]}",
        ),
        (
            Right::ReadAudit,
            None,
            "user \"anna\" may not get managedclusters/audit; ask for this rule in a Role in the hub's namespace \
             \"standin\": {apiGroups: [standin.dev], resources: [managedclusters/audit], verbs: [get]}",
        ),
    ];
    for (right, cluster, expected) in cases {
        assert_eq!(refusal(&anna(), right, "standin", cluster), expected);
    }
}
