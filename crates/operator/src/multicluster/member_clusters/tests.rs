use api::operator::License;
use api::{MirrordOperator, MirrordOperatorSpec, MirrordOperatorStatus};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::super::auth::NoCredential;
use super::super::member_client::HealthCheck;
use super::super::stub;
use super::*;
use crate::background::Background;
use crate::fixture;
use crate::metrics::FailedTasks;

fn now() -> Timestamp {
    "2026-01-27T09:22:55Z".parse().unwrap()
}

fn cluster_json(access: &MemberAccess, health: &MemberHealth) -> serde_json::Value {
    serde_json::to_value(connected_cluster("remote-1", access, health, now())).unwrap()
}

#[test]
fn members_have_the_format_that_clients_expect() {
    let spec = MirrordOperatorSpec {
        operator_version: env!("CARGO_PKG_VERSION").to_owned(),
        license: Some(License {
            fingerprint: Some("S1hg".to_owned()),
            ..License::default()
        }),
        ..MirrordOperatorSpec::default()
    };
    let operator = MirrordOperator::new(spec, MirrordOperatorStatus::default());
    let health = |outcome| MemberHealth {
        check: Some(HealthCheck { at: now(), outcome }),
        ..MemberHealth::default()
    };
    let healthy = health(Ok(Box::new(operator)));
    assert_eq!(
        cluster_json(&MemberAccess::default(), &healthy),
        json!({
            "name": "remote-1",
            "lastCheck": "2026-01-27T09:22:55Z",
            "connected": {"license_fingerprint": "S1hg", "operator_version": env!("CARGO_PKG_VERSION")},
        })
    );
    let unhealthy = health(Err("no route to host".to_owned()));
    assert_eq!(
        cluster_json(&MemberAccess::default(), &unhealthy),
        json!({"name": "remote-1", "lastCheck": "2026-01-27T09:22:55Z", "error": "no route to host"})
    );
    // A healthy member without a credential is reported with an error.
    let without = MemberAccess {
        error: Some(NoCredential::NoSecret(
            "mirrord-cluster-remote-1".to_owned(),
        )),
        ..MemberAccess::default()
    };
    let shown = cluster_json(&without, &healthy);
    assert!(shown["error"].as_str().unwrap().contains("does not exist"));
    assert!(shown.get("connected").is_none(), "{shown}");
    assert_eq!(
        cluster_json(&MemberAccess::default(), &MemberHealth::default()),
        json!({"name": "remote-1", "error": "the member was not checked yet"})
    );
    // A healthy member that would refuse sessions.
    let refusing = MemberHealth {
        refusal: Some("the member refuses sessions".to_owned()),
        ..healthy.clone()
    };
    let shown = cluster_json(&MemberAccess::default(), &refusing);
    assert_eq!(shown["error"], "the member refuses sessions");
    assert!(shown.get("connected").is_none(), "{shown}");
    let ending = MemberAccess {
        certificate_expires: Some(now()),
        ..MemberAccess::default()
    };
    let shown = cluster_json(&ending, &healthy);
    assert!(shown["warning"].as_str().unwrap().contains("has expired"));
}

/// An older member can be used, with a warning that names both versions.
#[test]
fn an_older_member_is_used_with_a_warning() {
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
        let check = HealthCheck {
            at: now(),
            outcome: Ok(Box::new(operator)),
        };
        let health = MemberHealth {
            check: Some(check),
            ..MemberHealth::default()
        };
        let shown = cluster_json(&MemberAccess::default(), &health);
        assert_eq!(shown["connected"]["operator_version"], "0.0.1");
        assert!(shown.get("error").is_none(), "{shown}");
        let warning = shown["warning"].as_str().unwrap();
        assert!(
            warning.contains("0.0.1") && warning.contains(env!("CARGO_PKG_VERSION")),
            "{warning}"
        );
    }
}

fn configured_secret() -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {
            "name": "mirrord-cluster-east", "namespace": "tools", "resourceVersion": "2",
            "labels": {"operator.metalbear.co/remote-cluster-credentials": "true"},
        },
        "data": {"bearerToken": "YQ=="},
    })
}

/// An API server with a member's Secret, whose changes a test sends. It has no other objects.
fn with_secret(mut changes: Option<mpsc::UnboundedReceiver<serde_json::Value>>) -> Client {
    stub::client(move |path| {
        let is_secret = path.contains("mirrord-cluster-east");
        if path.contains("watch=true") {
            let changes = changes.take_if(|_| is_secret);
            return changes.map_or_else(stub::pending_response, stub::streaming_response);
        }
        let list = json!({
            "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"},
            "items": if is_secret { vec![configured_secret()] } else { Vec::new() },
        });
        stub::json_response(http::StatusCode::OK, &list)
    })
}

fn clusters(members: Vec<Member>) -> MultiCluster {
    MultiCluster {
        name: "hub".to_owned(),
        default: "east".to_owned(),
        is_management_only: true,
        on_unreachable: api::multicluster::OnUnreachable::Continue,
        members,
    }
}

impl MemberClusters {
    /// The members of a Primary, without a controller.
    pub(crate) fn of(client: Client, clusters: MultiCluster) -> Self {
        let background = Background::new(CancellationToken::new(), FailedTasks::default());
        Self {
            settings: PrimarySettings {
                config_map: "clusters".to_owned(),
                session: fixture::settings().session,
                startup_timeout: Duration::from_secs(75),
            },
            membership: watch::Sender::new(Arc::new(Membership::new(clusters))),
            configuration_error: watch::Sender::default(),
            removed: watch::Sender::default(),
            sessions: ParentCache::start(client.clone(), &background, "parents"),
            secrets: Api::namespaced(client.clone(), "tools"),
            client,
            eks: None,
            namespace: "tools".to_owned(),
        }
    }
}

/// A Primary with the member east.
fn member_clusters(client: Client) -> MemberClusters {
    let east = stub::member(AuthMethod::BearerToken);
    MemberClusters::of(client, clusters(vec![east]))
}

/// Changes of the configuration take effect at once, and do not disturb other members.
#[tokio::test]
async fn members_change_while_the_operator_runs() {
    let members = member_clusters(with_secret(None));
    let east = stub::member(AuthMethod::BearerToken);
    let west = |namespace: &str| Member {
        name: "west".to_owned(),
        namespace: Some(namespace.to_owned()),
        ..stub::member(AuthMethod::Mtls)
    };
    let names = || {
        let shown = members.connected_clusters(now()).into_iter();
        shown.map(|cluster| cluster.name).collect::<Vec<_>>()
    };
    let client_of_east = Arc::clone(members.membership().member_client("east").unwrap());
    assert_eq!(
        members.client_of("west").err().as_deref(),
        Some(NOT_CONFIGURED)
    );
    members.configure(Ok(clusters(vec![east.clone(), west("a")])));
    assert_eq!(names(), ["east", "west"]);
    assert!(members.membership().uses(&client_of_east));

    let session = members.unreachable("west");
    let mut session = std::pin::pin!(session);
    assert!(futures_util::poll!(session.as_mut()).is_pending());
    members.configure(Ok(clusters(vec![east.clone(), west("b")])));
    assert_eq!(
        session.await,
        "the configuration of the cluster has changed"
    );

    // An invalid configuration is reported, and changes nothing.
    members.configure(Err("the ConfigMap clusters is invalid".to_owned()));
    assert_eq!(names(), ["east", "west"]);
    let warning = members.connected_clusters(now()).remove(0).warning;
    assert_eq!(
        warning.as_deref(),
        Some("the ConfigMap clusters is invalid")
    );

    let mut session = std::pin::pin!(members.unreachable("west"));
    assert!(futures_util::poll!(session.as_mut()).is_pending());
    members.configure(Ok(clusters(vec![east])));
    assert_eq!(session.await, NOT_CONFIGURED);
    assert_eq!(names(), ["east"]);
    assert_eq!(members.connected_clusters(now()).remove(0).warning, None);
    assert!(members.membership().uses(&client_of_east));
}

#[test]
fn tokens_of_members_that_are_not_configured_any_more_are_removed() {
    let bearer = |name: &str| Member {
        name: name.to_owned(),
        ..stub::member(AuthMethod::BearerToken)
    };
    let mtls = Member {
        name: "north".to_owned(),
        ..stub::member(AuthMethod::Mtls)
    };
    // The configured members, and those whose tokens are to be removed.
    let steps: [(Vec<Member>, &[&str]); 5] = [
        (vec![bearer("east"), bearer("west"), mtls.clone()], &[]),
        (vec![bearer("east")], &["west"]),
        (vec![bearer("west")], &["east"]),
        (vec![mtls], &["east", "west"]),
        (vec![bearer("east"), bearer("west")], &[]),
    ];
    let (mut removed, mut before) = (BTreeSet::new(), clusters(Vec::new()));
    for (members, expected) in steps {
        let now = clusters(members);
        update_removed(&mut removed, &before, &now);
        let found: Vec<&str> = removed.iter().map(String::as_str).collect();
        assert_eq!(found, expected, "{now:?}");
        before = now;
    }
}

/// The Secret of a member that was never in the chart's values.
#[tokio::test]
async fn the_token_of_a_removed_member_is_deleted() {
    let (client, writes) = fixture::api_server(|path, _| {
        let (_, name) = path.split_once("/namespaces/tools/secrets/")?;
        let name = name.trim_end_matches('?');
        let is_of_chart = name.ends_with("-east");
        Some(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "uid": name, "resourceVersion": "7", "labels": {
                "app.kubernetes.io/managed-by": if is_of_chart { "Helm" } else { "standin-operator" },
            }},
        }))
    });
    let member = |name: &str| Member {
        name: name.to_owned(),
        ..stub::member(AuthMethod::BearerToken)
    };
    let both = clusters(vec![member("east"), member("west")]);
    let members = MemberClusters::of(client, both);
    members.configure(Err("the ConfigMap clusters is invalid".to_owned()));
    assert!(members.removed.borrow().is_empty(), "nothing has changed");
    members.configure(Ok(clusters(vec![member("north")])));
    let mut removed = members.removed.subscribe();
    tokio::select! {
        () = members.remove_tokens() => panic!("the task has ended"),
        done = removed.wait_for(BTreeSet::is_empty) => drop(done.unwrap()),
    }
    let writes = writes.lock();
    let [(path, body)] = writes.as_slice() else {
        panic!("one Secret is deleted: {writes:?}");
    };
    let west = "/api/v1/namespaces/tools/secrets/mirrord-operator-cluster-token-west";
    assert!(path.starts_with(west), "{path}");
    assert_eq!(body["preconditions"]["resourceVersion"], "7", "{body}");
}

/// When an administrator deletes a member's Secret, its connections end with that reason. The member is used again when
/// the Secret is restored.
#[tokio::test]
async fn a_member_without_its_secret_is_not_used() {
    let (change, changes) = mpsc::unbounded_channel();
    let client = with_secret(Some(changes));
    let members = member_clusters(client);
    let member_client = Arc::clone(members.membership().member_client("east").unwrap());
    let error = || members.connected_clusters(now()).remove(0).error;
    let steps = async {
        let mut access = member_client.access.subscribe();
        let has_client = |access: &MemberAccess| access.client.is_some();
        access.wait_for(has_client).await.unwrap();
        members.client_of("east").unwrap();
        let mut session = std::pin::pin!(members.unreachable("east"));
        assert!(futures_util::poll!(session.as_mut()).is_pending());

        let send_event =
            |event: &str| change.send(json!({"type": event, "object": configured_secret()}));
        send_event("DELETED").unwrap();
        let reason = session.await;
        assert!(
            reason.contains("mirrord-cluster-east does not exist"),
            "{reason}"
        );
        assert_eq!(members.client_of("east").err(), Some(reason.clone()));
        assert_eq!(error(), Some(reason.clone()));

        send_event("ADDED").unwrap();
        access.wait_for(has_client).await.unwrap();
        members.client_of("east").unwrap();
        assert_ne!(error(), Some(reason));
    };
    tokio::select! {
        () = members.run() => panic!("the clients have stopped"),
        finished = timeout(Duration::from_secs(60), steps) => finished.expect("the Secret is watched"),
    }
}

#[test]
fn another_version_causes_a_warning() {
    let ours = env!("CARGO_PKG_VERSION");
    let (series, _) = ours.rsplit_once('.').unwrap();
    assert_eq!(version_warning(ours), None);
    assert_eq!(version_warning(&format!("{series}.999")), None);
    let warning = version_warning("0.0.1").unwrap();
    assert!(
        warning.contains("0.0.1") && warning.contains(ours),
        "{warning}"
    );
}
