#![allow(clippy::type_complexity, reason = "a table is read by its columns")]

use super::resume::check_resume;
use super::*;

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| {
            (
                http::HeaderName::from_static(name),
                HeaderValue::from_str(value).unwrap(),
            )
        })
        .collect()
}

#[test]
fn only_clients_with_the_right_protocol_are_accepted() {
    let key = ("sec-websocket-key", "key");
    let upgrade = ("upgrade", "WebSocket");
    let ours = ("sec-websocket-protocol", "other, standin.link.v1");
    let foreign = ("sec-websocket-protocol", "mirrord.v1");
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(&[(&str, &str)], Result<&str, &str>)] = &[
        (&[key, upgrade, ours], Ok("key")),
        (&[key, ours],          Err("connecting requires a WebSocket")),
        (&[upgrade, ours],      Err("connecting requires a WebSocket")),
        (&[key, upgrade],       Err("`standin.link.v1`")),
        (&[key, upgrade, foreign], Err("`standin.link.v1`")),
    ];
    for (pairs, expected) in cases {
        match (handshake(&headers(pairs)), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, *expected),
            (Err(refusal), Err(expected)) => {
                assert!(refusal.message.contains(expected), "{}", refusal.message);
            }
            (found, _) => panic!("{pairs:?}: {found:?}"),
        }
    }
}

fn caller(id: u64, certificate: u8) -> Caller {
    Caller {
        id: SessionId(id),
        certificate: Fingerprint([certificate; 32]),
        name: "Anna".to_owned(),
        hostname: "laptop".to_owned(),
        version: None,
    }
}

fn connect_request(target: &str, resume_window: Option<u64>) -> ConnectRequest {
    ConnectRequest {
        namespace: "shop".to_owned(),
        target: target.parse().unwrap(),
        parameters: ConnectParameters {
            connect: true,
            resume_window,
            ..ConnectParameters::default()
        },
    }
}

fn user(name: &str) -> User {
    User {
        name: name.to_owned(),
        ..User::default()
    }
}

const SETTINGS: SessionSettings = SessionSettings {
    time_to_live: Duration::from_secs(60),
    max_resume: Duration::from_secs(900),
    max_age: None,
    review_interval: Duration::from_secs(300),
};

#[test]
fn client_headers_are_parsed() {
    let found = Caller::read(&headers(&[
        ("x-session-id", "31"),
        ("x-client-der", "AAEC"),
        ("x-client-name", "Anna"),
    ]))
    .unwrap();
    assert_eq!(found.id, SessionId(31));
    assert_eq!(found.certificate, Fingerprint::of(&vec![0, 1, 2].into()));
    for incomplete in [
        headers(&[("x-session-id", "31")]),
        headers(&[("x-client-der", "AAEC")]),
        headers(&[("x-session-id", "thirty"), ("x-client-der", "AAEC")]),
        headers(&[("x-session-id", "31"), ("x-client-der", "?")]),
    ] {
        assert_eq!(Caller::read(&incomplete).unwrap_err().code, 400);
    }
}

#[test]
fn the_resume_window_is_limited() {
    for (requested, expected) in [
        (None, 60),
        (Some(30), 30),
        (Some(600), 600),
        (Some(9000), 900),
    ] {
        let connect_request = connect_request("deployment/web", requested);
        let session = new_session(&user("anna"), &connect_request, &caller(1, 1), &SETTINGS);
        assert_eq!(session.spec.resume_window_secs, expected, "{requested:?}");
    }
}

/// In a session in one cluster, that cluster serves all stateful operations.
#[test]
fn a_session_in_one_cluster_has_all_of_its_data() {
    let mut connect_request = connect_request("deployment/web", None);
    connect_request.parameters.data.pg_branch_names = vec!["pg-5www5".to_owned()];
    let session = new_session(&user("anna"), &connect_request, &caller(1, 1), &SETTINGS);
    assert_eq!(session.spec.data, connect_request.parameters.data);
    assert!(!session.spec.data.is_empty());
}

#[test]
fn only_the_same_client_can_resume_a_session() {
    let session = |name: &str, target: &str, certificate: u8| {
        new_session(
            &user(name),
            &connect_request(target, None),
            &caller(1, certificate),
            &SETTINGS,
        )
    };
    let found = session("anna", "deployment/web", 1);
    let cases = [
        (session("anna", "deployment/web", 1), None),
        (session("eve", "deployment/web", 1), Some(409)),
        (session("anna", "deployment/web", 2), Some(409)),
        (session("anna", "deployment/other", 1), Some(409)),
    ];
    for (requested, expected) in cases {
        let refused = check_resume(&found, &requested).err();
        assert_eq!(refused.map(|refusal| refusal.code.as_u16()), expected);
    }
    let mut closed = found.clone();
    closed.status = Some(api::MirrordClusterSessionStatus {
        closed: Some(api::session::SessionClosed::default()),
        ..api::MirrordClusterSessionStatus::default()
    });
    assert_eq!(check_resume(&closed, &found).unwrap_err().code, 410);
}
