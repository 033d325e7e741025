use api::connect::{CLIENT_CERTIFICATE_HEADER, OnConcurrentSteal, SESSION_ID_HEADER};
use api::multicluster::{MultiClusterPhase, OnUnreachable};
use api::session::{SessionClosed, SessionId};
use api::{MirrordMultiClusterSessionStatus, SessionData, TargetPath};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use link::tls::Fingerprint;
use serde_json::json;

use super::*;
use crate::connect::resume::check_resume;
use crate::fixture::{self, api_server};
use crate::settings::Settings;

fn clusters() -> MultiCluster {
    MultiCluster {
        name: "hub".to_owned(),
        default: "east".to_owned(),
        is_management_only: false,
        on_unreachable: OnUnreachable::Continue,
        members: Vec::new(),
    }
}

fn data() -> SessionData {
    SessionData {
        pg_branch_names: vec!["pg-5www5".to_owned()],
        ..SessionData::default()
    }
}

fn parent_of(
    name: &str,
    certificate: &str,
    resume_window: Option<u64>,
) -> MirrordMultiClusterSession {
    let user = User {
        name: name.to_owned(),
        groups: vec!["developers".to_owned()],
        extra: [("team".to_owned(), vec!["shop".to_owned()])].into(),
    };
    let connect_request = ConnectRequest {
        namespace: "shop".to_owned(),
        target: TargetPath::from_address("deployment.web").unwrap(),
        parameters: ConnectParameters {
            resume_window,
            on_concurrent_steal: Some(OnConcurrentSteal::Override),
            profile: Some("fast".to_owned()),
            data: data(),
            ..ConnectParameters::default()
        },
    };
    let client = Caller {
        id: SessionId(0xab),
        certificate: Fingerprint::of(&certificate.as_bytes().to_vec().into()),
        name: "Anna".to_owned(),
        hostname: "laptop".to_owned(),
        version: None,
    };
    let settings = SessionSettings {
        time_to_live: Duration::from_secs(60),
        max_resume: Duration::from_secs(900),
        max_age: None,
        review_interval: Duration::from_secs(300),
    };
    new_parent(&clusters(), &user, &connect_request, &client, &settings)
}

#[test]
fn a_parent_has_the_clusters_of_the_session() {
    let parent = parent_of("anna", "one", None);
    assert_eq!(parent.name_any(), "mc-00000000000000ab");
    assert_eq!(parent.spec.clusters, ["hub"]);
    assert_eq!(parent.spec.default_cluster, "east");
    assert_eq!(parent.spec.on_unreachable, OnUnreachable::Continue);
    // The Primary asserts these to its members.
    assert_eq!(parent.spec.owner.k8s_username, "anna");
    assert_eq!(parent.spec.owner.k8s_groups, ["developers"]);
    assert_eq!(parent.spec.owner.k8s_extra["team"], ["shop"]);
    assert_eq!(parent.spec.target_alias, "deployment.web");
    assert_eq!(parent.spec.data, data());
    assert_eq!(
        parent.spec.on_concurrent_steal,
        Some(OnConcurrentSteal::Override)
    );
    assert_eq!(parent.spec.profile.as_deref(), Some("fast"));
    assert_eq!(parent.finalizers(), [PARENT_FINALIZER]);
    for (requested, expected) in [(None, 60), (Some(300), 300), (Some(9000), 900)] {
        let window = parent_of("anna", "one", requested).spec.resume_window_secs;
        assert_eq!(window, expected, "{requested:?}");
    }
}

#[test]
fn a_management_only_primary_has_no_sessions_of_its_own() {
    let management_only = MultiCluster {
        is_management_only: true,
        ..clusters()
    };
    let cases = [
        (LocalSession::Single, "leave `multi_cluster: false` out"),
        (
            LocalSession::Child,
            "remove it from the clusters of the Primary",
        ),
    ];
    for (session, next_step) in cases {
        assert!(check_local(&clusters(), session).is_ok());
        let Refusal { code, message, .. } = check_local(&management_only, session).unwrap_err();
        assert_eq!(code.as_u16(), 422);
        let expected = "the cluster hub only coordinates others";
        assert!(message.starts_with(expected), "{message}");
        assert!(message.contains(next_step), "{message}");
    }
}

/// `operator.agent.targetless: false` of the Primary holds for sessions over several clusters.
#[tokio::test(start_paused = true)]
async fn a_session_without_a_target_is_refused_if_the_primary_does_not_allow_them() {
    let connect_request = ConnectRequest {
        namespace: "shop".to_owned(),
        target: "targetless".parse().unwrap(),
        parameters: ConnectParameters::default(),
    };
    let headers = HeaderMap::from_iter([
        (SESSION_ID_HEADER.parse().unwrap(), "171".parse().unwrap()),
        (
            CLIENT_CERTIFICATE_HEADER.parse().unwrap(),
            "AAEC".parse().unwrap(),
        ),
    ]);
    let user = User {
        name: "anna".to_owned(),
        ..User::default()
    };
    for (targetless, code) in [(false, 422), (true, 503)] {
        let (client, writes) = api_server(|path, _| {
            let is_review = path.contains("/subjectaccessreviews");
            is_review.then(|| {
                json!({
                    "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                    "metadata": {}, "spec": {}, "status": {"allowed": true},
                })
            })
        });
        let settings = Settings {
            targetless,
            ..fixture::settings()
        };
        let shared = fixture::shared(client, settings, Some(clusters()));
        let members = shared.members.as_ref().unwrap();
        let refusal = admit(&shared, members, &user, &connect_request, &headers).await;
        let refusal = refusal.unwrap_err();
        // Where it is allowed, the session waits for the controller, which does not run here.
        assert_eq!(refusal.code.as_u16(), code, "{}", refusal.message);
        let value = "`operator.agent.targetless` of its chart";
        assert_eq!(
            refusal.message.contains(value),
            !targetless,
            "{}",
            refusal.message
        );
        let writes = writes.lock();
        let parents = writes
            .iter()
            .filter(|(path, _)| path.contains("/mirrordmulticlustersessions"));
        assert_eq!(parents.count(), usize::from(targetless), "{writes:?}");
    }
}

#[test]
fn only_the_same_user_with_the_same_key_can_resume() {
    let found = parent_of("anna", "one", None);
    let code = |found: &MirrordMultiClusterSession, requested: &MirrordMultiClusterSession| {
        check_resume(found, requested).map_err(|refusal| refusal.code.as_u16())
    };
    assert_eq!(code(&found, &parent_of("anna", "one", Some(5))), Ok(()));
    assert_eq!(code(&found, &parent_of("eve", "one", None)), Err(409));
    assert_eq!(code(&found, &parent_of("anna", "two", None)), Err(409));
    let mut deleted = found.clone();
    deleted.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    assert_eq!(code(&deleted, &found), Err(410));
    let mut closed = found.clone();
    closed.status = Some(MirrordMultiClusterSessionStatus {
        closed: Some(SessionClosed::default()),
        ..MirrordMultiClusterSessionStatus::default()
    });
    assert_eq!(code(&closed, &found), Err(410));
}

#[test]
fn a_client_waits_until_the_phase_is_decided() {
    let cases = [
        (None, None),
        (Some(MultiClusterPhase::Initializing), None),
        (Some(MultiClusterPhase::Pending), None),
        (Some(MultiClusterPhase::Ready), Some(Ok(()))),
        (Some(MultiClusterPhase::Failed), Some(Err(422))),
        (Some(MultiClusterPhase::Terminating), Some(Err(410))),
    ];
    for (phase, expected) in cases {
        let mut parent = parent_of("anna", "one", None);
        parent.status = Some(MirrordMultiClusterSessionStatus {
            phase,
            ..MirrordMultiClusterSessionStatus::default()
        });
        let outcome = outcome(&parent);
        let outcome = outcome.map(|outcome| outcome.map_err(|refusal| refusal.code.as_u16()));
        assert_eq!(outcome, expected, "{phase:?}");
    }
}
