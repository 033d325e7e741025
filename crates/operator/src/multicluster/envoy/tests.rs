use std::sync::Mutex;

use api::operator::License;
use api::{MirrordOperator, MirrordOperatorSpec, MirrordOperatorStatus};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::super::auth::NoCredential;
use super::super::stub;
use super::super::sync::Check;
use super::*;
use crate::background::Background;
use crate::metrics::FailedTasks;

fn now() -> Timestamp {
    "2026-01-27T09:22:55Z".parse().unwrap()
}

fn found(access: &Access, health: &Health) -> serde_json::Value {
    serde_json::to_value(shown("remote-1", access, health, now())).unwrap()
}

#[test]
fn members_are_shown_as_clients_expect_it() {
    let spec = MirrordOperatorSpec {
        operator_version: env!("CARGO_PKG_VERSION").to_owned(),
        license: Some(License {
            fingerprint: Some("S1hg".to_owned()),
            ..License::default()
        }),
        ..MirrordOperatorSpec::default()
    };
    let operator = MirrordOperator::new(spec, MirrordOperatorStatus::default());
    let health = |outcome| Health {
        check: Some(Check { at: now(), outcome }),
        ..Health::default()
    };
    let well = health(Ok(Box::new(operator)));
    assert_eq!(
        found(&Access::default(), &well),
        json!({
            "name": "remote-1",
            "lastCheck": "2026-01-27T09:22:55Z",
            "connected": {"license_fingerprint": "S1hg", "operator_version": env!("CARGO_PKG_VERSION")},
        })
    );
    let ill = health(Err("no route to host".to_owned()));
    assert_eq!(
        found(&Access::default(), &ill),
        json!({"name": "remote-1", "lastCheck": "2026-01-27T09:22:55Z", "error": "no route to host"})
    );
    // What was well a moment ago is not, without a credential.
    let without = Access {
        trouble: Some(NoCredential::NoSecret(
            "mirrord-cluster-remote-1".to_owned(),
        )),
        ..Access::default()
    };
    let shown = found(&without, &well);
    assert!(shown["error"].as_str().unwrap().contains("is not there"));
    assert!(shown.get("connected").is_none(), "{shown}");
    let ending = Access {
        certificate_ends: Some(now()),
        ..Access::default()
    };
    let shown = found(&ending, &well);
    assert!(shown["warning"].as_str().unwrap().contains("has ended"));
}

/// An older member is used as far as it goes, and whoever looks learns of it, and by which version it could be the same.
#[test]
fn an_older_member_that_says_less_is_understood_and_pointed_out() {
    let objects = [
        json!({"operator_version": "0.0.1"}),
        json!({
            "operator_version": "0.0.1", "copy_target_enabled": false, "default_namespace": "default",
            "features": ["ProxyApi"], "protocol_version": "1.25.0", "supported_features": ["ProxyApi"],
            "a_field_of_long_ago": true,
        }),
    ];
    for spec in objects {
        let object = json!({
            "apiVersion": "operator.metalbear.co/v1", "kind": "MirrordOperator",
            "metadata": {"name": "operator"}, "spec": spec,
        });
        let operator: MirrordOperator = serde_json::from_value(object).unwrap();
        let check = Check {
            at: now(),
            outcome: Ok(Box::new(operator)),
        };
        let health = Health {
            check: Some(check),
            ..Health::default()
        };
        let shown = found(&Access::default(), &health);
        assert_eq!(shown["connected"]["operator_version"], "0.0.1");
        assert!(shown.get("error").is_none(), "{shown}");
        let warning = shown["warning"].as_str().unwrap();
        assert!(
            warning.contains("0.0.1") && warning.contains(env!("CARGO_PKG_VERSION")),
            "{warning}"
        );
    }
}

/// The first attempt meets a token that was renewed at the same time, so that one is left as it is now.
#[tokio::test]
async fn tokens_of_members_that_are_gone_are_removed() {
    let kept = |version: &str, east: &str, keys: &[&str]| {
        let data: serde_json::Map<_, _> = keys
            .iter()
            .map(|key| ((*key).to_owned(), json!("YQ==")))
            .collect();
        let mut secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": TOKENS, "resourceVersion": version}, "data": data,
        });
        secret["data"]["east"] = json!(east);
        secret
    };
    let stored = Arc::new(Mutex::new((
        kept("1", "b2xk", &["west", "west.received"]),
        0,
    )));
    let there = Arc::clone(&stored);
    let secrets = stub::storing(move |secret| {
        let (stored, writes) = &mut *there.lock().unwrap();
        let Some(secret) = secret else {
            return stub::said(http::StatusCode::OK, stored);
        };
        *writes += 1;
        if *writes == 1 {
            *stored = kept("2", "bmV3", &["west", "west.received"]);
        }
        if secret["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"] {
            let conflict = json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict", "message": ""});
            return stub::said(http::StatusCode::CONFLICT, &conflict);
        }
        *stored = secret;
        stub::said(http::StatusCode::OK, stored)
    });
    forget(&Api::namespaced(secrets, "tools"), &["east"])
        .await
        .unwrap();
    let (stored, writes) = stored.lock().unwrap().clone();
    assert_eq!(stored["data"], json!({"east": "bmV3"}));
    assert_eq!(writes, 2);
}

fn given() -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {
            "name": "mirrord-cluster-east", "namespace": "tools", "resourceVersion": "2",
            "labels": {"operator.metalbear.co/remote-cluster-credentials": "true"},
        },
        "data": {"bearerToken": "YQ=="},
    })
}

/// An API server whose Secret of a member is there until a test says otherwise. No other object is there.
fn with_secret(mut changes: Option<mpsc::UnboundedReceiver<serde_json::Value>>) -> Client {
    stub::client(move |asked| {
        let is_given = asked.contains("mirrord-cluster-east");
        if asked.contains("watch=true") {
            let changes = changes.take_if(|_| is_given);
            return changes.map_or_else(stub::silence, stub::telling);
        }
        let list = json!({
            "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"},
            "items": if is_given { vec![given()] } else { Vec::new() },
        });
        stub::said(http::StatusCode::OK, &list)
    })
}

/// An administrator takes a member's Secret away: what is under way there ends now, everybody sees why, and it is reached
/// again when the Secret is back.
#[tokio::test]
async fn a_member_whose_secret_goes_is_left_alone_until_it_is_back() {
    let (change, changes) = mpsc::unbounded_channel();
    let client = with_secret(Some(changes));
    let keeper = Arc::new(MemberKeeper::new(stub::member(Method::BearerToken)));
    let background = Background::new(CancellationToken::new(), FailedTasks::default());
    let envoy = Envoy {
        clusters: MultiCluster {
            name: "hub".to_owned(),
            default: "east".to_owned(),
            is_management_only: true,
            on_unreachable: api::multicluster::OnUnreachable::Continue,
            members: vec![keeper.member.clone()],
        },
        sessions: ParentCache::follow(client.clone(), &background, "parents"),
        secrets: Api::namespaced(client.clone(), "tools"),
        client,
        keepers: vec![Arc::clone(&keeper)],
        eks: None,
        namespace: "tools".to_owned(),
    };
    let error = || envoy.connected_clusters(now()).remove(0).error;
    let told = async {
        let mut access = keeper.access.subscribe();
        let has_client = |access: &Access| access.client.is_some();
        access.wait_for(has_client).await.unwrap();
        envoy.client_of("east").unwrap();
        let mut session = std::pin::pin!(envoy.unreachable("east"));
        assert!(futures_util::poll!(session.as_mut()).is_pending());

        let happen = |what: &str| change.send(json!({"type": what, "object": given()}));
        happen("DELETED").unwrap();
        let why = session.await;
        assert!(why.contains("mirrord-cluster-east is not there"), "{why}");
        assert_eq!(envoy.client_of("east").err(), Some(why.clone()));
        assert_eq!(error(), Some(why.clone()));

        happen("ADDED").unwrap();
        access.wait_for(has_client).await.unwrap();
        envoy.client_of("east").unwrap();
        assert_ne!(error(), Some(why));
    };
    tokio::select! {
        () = envoy.keep() => panic!("nobody keeps the member"),
        told = timeout(Duration::from_secs(60), told) => told.expect("the Secret is followed"),
    }
}

#[test]
fn a_member_of_another_version_is_pointed_out() {
    let ours = env!("CARGO_PKG_VERSION");
    let (series, _) = ours.rsplit_once('.').unwrap();
    assert_eq!(other_version(ours), None);
    assert_eq!(other_version(&format!("{series}.999")), None);
    let warning = other_version("0.0.1").unwrap();
    assert!(
        warning.contains("0.0.1") && warning.contains(ours),
        "{warning}"
    );
}
