use api::multicluster::{MultiClusterPhase, OnUnreachable};
use api::session::{SessionClosed, SessionId};
use api::{MirrordMultiClusterSessionStatus, SessionData, TargetPath};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use link::tls::Fingerprint;

use super::*;
use crate::connect::returning::may_return;

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

fn wanted_by(name: &str, certificate: &str, asked: Option<u64>) -> MirrordMultiClusterSession {
    let user = User {
        name: name.to_owned(),
        groups: vec!["developers".to_owned()],
        extra: Vec::new(),
    };
    let asking = Asking {
        namespace: "shop".to_owned(),
        target: TargetPath::from_address("deployment.web").unwrap(),
        parameters: ConnectParameters {
            resume_window: asked,
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
        most_resume: Duration::from_secs(900),
    };
    wanted(&clusters(), &user, &asking, &client, &settings)
}

#[test]
fn a_parent_says_which_clusters_take_part() {
    let parent = wanted_by("anna", "one", None);
    assert_eq!(parent.name_any(), "mc-00000000000000ab");
    assert_eq!(parent.spec.clusters, ["hub"]);
    assert_eq!(parent.spec.default_cluster, "east");
    assert_eq!(parent.spec.on_unreachable, OnUnreachable::Continue);
    // The Primary vouches for these to its members.
    assert_eq!(parent.spec.owner.k8s_username, "anna");
    assert_eq!(parent.spec.owner.k8s_groups, ["developers"]);
    assert_eq!(parent.spec.target_alias, "deployment.web");
    assert_eq!(parent.spec.data, data());
    assert_eq!(parent.finalizers(), [PARENT_FINALIZER]);
    for (asked, expected) in [(None, 60), (Some(300), 300), (Some(9000), 900)] {
        let window = wanted_by("anna", "one", asked).spec.resume_window_secs;
        assert_eq!(window, expected, "{asked:?}");
    }
}

#[test]
fn only_the_same_user_with_the_same_key_comes_back() {
    let found = wanted_by("anna", "one", None);
    let code = |found: &MirrordMultiClusterSession, wanted: &MirrordMultiClusterSession| {
        may_return(found, wanted).map_err(|refusal| refusal.code.as_u16())
    };
    assert_eq!(code(&found, &wanted_by("anna", "one", Some(5))), Ok(()));
    assert_eq!(code(&found, &wanted_by("eve", "one", None)), Err(409));
    assert_eq!(code(&found, &wanted_by("anna", "two", None)), Err(409));
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
fn a_client_waits_until_something_is_certain() {
    let cases = [
        (None, None),
        (Some(MultiClusterPhase::Initializing), None),
        (Some(MultiClusterPhase::Pending), None),
        (Some(MultiClusterPhase::Ready), Some(Ok(()))),
        (Some(MultiClusterPhase::Failed), Some(Err(422))),
        (Some(MultiClusterPhase::Terminating), Some(Err(410))),
    ];
    for (phase, expected) in cases {
        let mut parent = wanted_by("anna", "one", None);
        parent.status = Some(MirrordMultiClusterSessionStatus {
            phase,
            ..MirrordMultiClusterSessionStatus::default()
        });
        let judged = judged(&parent);
        let judged = judged.map(|judged| judged.map_err(|refusal| refusal.code.as_u16()));
        assert_eq!(judged, expected, "{phase:?}");
    }
}
