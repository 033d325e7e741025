use std::collections::BTreeMap;

use super::*;

fn anna() -> User {
    User {
        name: "anna".to_owned(),
        ..User::default()
    }
}

fn headers(list: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in list {
        headers.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            HeaderValue::from_bytes(value.as_bytes()).unwrap(),
        );
    }
    headers
}

type Headers = &'static [(&'static str, &'static str)];

/// All headers as lines, sorted by name.
fn lines(headers: &HeaderMap) -> Vec<String> {
    let mut lines: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
        .collect();
    lines.sort();
    lines
}

/// Sends headers as `anna`, and expects these headers beside her name.
fn check(sent: &[(&str, &str)], expected: &[&str]) {
    let found = request_headers(&headers(sent), &anna()).unwrap();
    let mut expected: Vec<String> = expected.iter().map(|line| (*line).to_owned()).collect();
    expected.push("impersonate-user: anna".to_owned());
    expected.sort();
    assert_eq!(lines(&found), expected, "{sent:?}");
}

#[test]
fn a_client_cannot_name_users_proxies_or_credentials() {
    check(
        &[("Accept", "application/json"), ("User-Agent", "kubectl")],
        &["accept: application/json", "user-agent: kubectl"],
    );
    // Each is dropped, in any case and any number.
    let dropped = [
        ("Impersonate-User", "root"),
        ("iMPERSONATE-uSER", "root"),
        ("Impersonate-Group", "system:masters"),
        ("Impersonate-Uid", "1"),
        ("Impersonate-Extra-Scopes", "all"),
        ("Impersonate-Something-New", "x"),
        ("X-Remote-User", "root"),
        ("X-REMOTE-GROUP", "system:masters"),
        ("X-Remote-Extra-Scopes", "all"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("X-Forwarded-Client-Cert", "x"),
        ("x-forwarded-host", "example.com"),
        ("Forwarded", "for=10.0.0.1"),
        ("Authorization", "Bearer secret"),
        ("Authorization", "Basic secret"),
        ("Proxy-Authorization", "Basic secret"),
        ("Cookie", "session=secret"),
        ("Host", "hub.example.com"),
        ("Content-Length", "5"),
        ("Expect", "100-continue"),
        ("Connection", "keep-alive"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Connection", "keep-alive"),
        ("TE", "trailers"),
        ("Trailer", "Grpc-Status"),
        ("Transfer-Encoding", "chunked"),
        ("Upgrade", "websocket"),
        ("Standin-Tunnel-Upgrade", "websocket"),
        ("standin-hub-forwarded", "replica"),
    ];
    for header in dropped {
        check(&[header, ("Accept", "*/*"), header], &["accept: */*"]);
    }
    check(&dropped, &[]);
}

#[test]
fn headers_that_connection_lists_are_dropped() {
    let cases: [(Headers, &[&str]); 5] = [
        (
            &[
                ("Connection", "X-Mine, close"),
                ("X-Mine", "1"),
                ("X-Other", "2"),
            ],
            &["x-other: 2"],
        ),
        (
            &[
                ("Connection", "x-a"),
                ("connection", " ,X-B ,"),
                ("X-A", "1"),
                ("X-B", "2"),
            ],
            &[],
        ),
        // The hub's own headers are added afterwards, so none of them can be dropped so.
        (
            &[("Connection", "Impersonate-User, Impersonate-Group")],
            &[],
        ),
        (
            &[("Connection", "not a name"), ("Accept", "*/*")],
            &["accept: */*"],
        ),
        (
            &[("Connection", "Accept"), ("Accept", "a"), ("Accept", "b")],
            &[],
        ),
    ];
    for (sent, expected) in cases {
        check(sent, expected);
    }
}

#[test]
fn values_pass_as_they_are() {
    check(
        &[("X-Name", "Jürgen"), ("X-Twice", "1"), ("x-twice", "2")],
        &["x-name: Jürgen", "x-twice: 1", "x-twice: 2"],
    );
}

#[test]
fn tokens_in_websocket_protocols_do_not_pass() {
    let token = "base64url.bearer.authorization.k8s.io.c2VjcmV0";
    let both = format!("{token}, v5.channel.k8s.io");
    let cases: [(&[&str], Option<&str>); 5] = [
        (&["v5.channel.k8s.io"], Some("v5.channel.k8s.io")),
        (
            &["v5.channel.k8s.io,v4.channel.k8s.io"],
            Some("v5.channel.k8s.io,v4.channel.k8s.io"),
        ),
        (&[&both], Some("v5.channel.k8s.io")),
        (&["v4.channel.k8s.io", token], Some("v4.channel.k8s.io")),
        (&[token], None),
    ];
    for (sent, expected) in cases {
        let sent: Vec<_> = sent
            .iter()
            .map(|value| ("Sec-WebSocket-Protocol", *value))
            .collect();
        let found = request_headers(&headers(&sent), &anna()).unwrap();
        let found = found
            .get(SEC_WEBSOCKET_PROTOCOL)
            .map(|value| value.to_str().unwrap());
        assert_eq!(found, expected, "{sent:?}");
    }
    let sent = headers(&[("Sec-WebSocket-Protocol", &both)]);
    assert_eq!(protocol_tokens(&sent).collect::<Vec<_>>(), ["c2VjcmV0"]);
}

#[test]
fn the_user_is_named_as_kubernetes_reads_it() {
    let user = User {
        name: "Jürgen@corp".to_owned(),
        uid: Some("42".to_owned()),
        groups: [
            "developers",
            "",
            "system:authenticated",
            "system:unauthenticated",
            "system:serviceaccounts",
            "Ämter",
        ]
        .map(str::to_owned)
        .to_vec(),
        extra: BTreeMap::from([
            (
                "authentication.kubernetes.io/credential-id".to_owned(),
                vec!["JTI=1".to_owned(), String::new()],
            ),
            ("a%b Ü".to_owned(), vec!["x".to_owned()]),
            ("Upper".to_owned(), vec!["y".to_owned()]),
        ]),
    };
    let found = request_headers(&HeaderMap::new(), &user).unwrap();
    assert_eq!(
        lines(&found),
        [
            "impersonate-extra-%55pper: y",
            "impersonate-extra-a%25b%20%c3%9c: x",
            "impersonate-extra-authentication.kubernetes.io%2fcredential-id: ",
            "impersonate-extra-authentication.kubernetes.io%2fcredential-id: JTI=1",
            "impersonate-group: developers",
            "impersonate-group: system:serviceaccounts",
            "impersonate-group: Ämter",
            "impersonate-uid: 42",
            "impersonate-user: Jürgen@corp",
        ]
    );
}

#[test]
fn a_name_that_would_change_on_its_route_is_refused() {
    for name in [
        "",
        " anna",
        "anna ",
        "anna\t",
        "an\nna",
        "an\0na",
        "anna\r\nx: y",
        "an\u{7f}na",
    ] {
        let mut user = anna();
        name.clone_into(&mut user.name);
        let refused = request_headers(&HeaderMap::new(), &user);
        assert!(refused.is_err(), "{name:?}");
        if name.is_empty() {
            continue;
        }
        let users = [
            User {
                groups: vec![name.to_owned()],
                ..anna()
            },
            User {
                uid: Some(name.to_owned()),
                ..anna()
            },
            User {
                extra: BTreeMap::from([("k".to_owned(), vec![name.to_owned()])]),
                ..anna()
            },
        ];
        for user in users {
            assert!(
                request_headers(&HeaderMap::new(), &user).is_err(),
                "{user:?}"
            );
        }
    }
    let user = User {
        extra: BTreeMap::from([(String::new(), vec![String::new()])]),
        ..anna()
    };
    assert!(request_headers(&HeaderMap::new(), &user).is_err());
}

#[test]
fn responses_lose_what_is_about_one_connection() {
    let mut found = headers(&[
        ("Content-Type", "application/json"),
        ("Content-Length", "5"),
        ("Connection", "X-Mine"),
        ("X-Mine", "1"),
        ("Transfer-Encoding", "chunked"),
        ("Set-Cookie", "session=evil"),
        ("Standin-Tunnel-Upgraded", "websocket"),
        ("Audit-Id", "1"),
        ("Warning", "299 - \"a\""),
        ("Warning", "299 - \"b\""),
    ]);
    clean_response(&mut found);
    let expected = [
        "audit-id: 1",
        "content-length: 5",
        "content-type: application/json",
        "warning: 299 - \"a\"",
        "warning: 299 - \"b\"",
    ];
    assert_eq!(lines(&found), expected);
}
