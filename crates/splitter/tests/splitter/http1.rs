use std::sync::Arc;
use std::sync::atomic::Ordering;

use splitter::{Filter, Mode, OnConflict, Port, Probes, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::fixture::{Behavior, TestPort, TestUpstream, ToUpstream, bodies, claim, read_until};

fn get(path: &str, session: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-For: {session}\r\n\r\n")
}

fn post(path: &str, session: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nx-for:{session}\r\ncontent-length: {length}\r\n\r\n{body}")
}

#[tokio::test]
async fn requests_go_to_matching_sessions_and_responses_keep_their_order() {
    let fixture = TestPort::new(Behavior::Responds);
    let (alice, _alice) = fixture.session("alice", Behavior::Responds);
    let (bob, _bob) = fixture.session("bob", Behavior::Responds);
    let requests = [
        get("/1", "other"),
        get("/2", "alice"),
        post("/3", "alice", "three"),
        get("/4", "other"),
        post("/5", "bob", "five"),
        get("/6", "alice"),
        post("/7", "other", "seven"),
    ];
    let responses = fixture.exchange(&requests.concat()).await;
    assert_eq!(
        bodies(&responses),
        [
            "application GET /1",
            "alice GET /2",
            "alice POST /3 three",
            "application GET /4",
            "bob POST /5 five",
            "alice GET /6",
            "application POST /7 seven",
        ]
    );
    let only = |session: &str| -> String {
        let for_session = |request: &&String| {
            request.to_lowercase().contains(&format!("for:{session}"))
                || request.contains(&format!("For: {session}"))
        };
        requests.iter().filter(for_session).cloned().collect()
    };
    assert_eq!(fixture.application.received(), only("other"));
    assert_eq!(alice.received(), only("alice"));
    assert_eq!(bob.received(), only("bob"));
    assert_eq!(
        (fixture.application.opened(), alice.opened()),
        (1, 1),
        "connections are reused"
    );
}

#[tokio::test]
async fn unmatched_requests_are_pipelined() {
    let fixture = TestPort::new(Behavior::Silent);
    let (_alice, _guard) = fixture.session("alice", Behavior::Responds);
    let all = [get("/1", "x"), post("/2", "x", "two"), get("/3", "x")].concat();
    let mut client = fixture.connect();
    client.write_all(all.as_bytes()).await.unwrap();
    fixture.application.wait_until_received(&all).await;
}

#[tokio::test]
async fn unusual_requests_are_forwarded_unchanged() {
    let fixture = TestPort::new(Behavior::Responds);
    let (alice, _guard) = fixture.session("alice", Behavior::Responds);
    let odd = |session: &str| {
        format!(
            "\r\nGET /%7e?a=b&c HTTP/1.1\r\nhOsT:  a\t\r\nX-Empty:\r\nx-for:\t {session} \r\nX-Twice: 1\r\nX-Twice: 2\r\n\r\n"
        )
    };
    fixture.exchange(&odd("other")).await;
    assert_eq!(fixture.application.received(), odd("other"));
    fixture.exchange(&odd("alice")).await;
    assert_eq!(alice.received(), odd("alice"));
}

#[tokio::test]
async fn chunks_and_trailers_are_forwarded_unchanged() {
    let fixture = TestPort::new(Behavior::Responds);
    let (alice, _guard) = fixture.session("alice", Behavior::Responds);
    for session in ["other", "alice"] {
        let request = format!(
            "POST / HTTP/1.1\r\nX-For: {session}\r\nTransfer-Encoding: chunked\r\n\r\n\
             3;odd=yes\r\nabc\r\n02\r\nde\r\n0\r\nChecksum: 1\r\n\r\n"
        );
        let upstream = if session == "alice" {
            &alice
        } else {
            &fixture.application
        };
        let responses = fixture
            .exchange(&(request.clone() + &get("/next", session)))
            .await;
        let name = upstream.name;
        assert_eq!(
            bodies(&responses),
            [
                format!("{name} POST / abcde"),
                format!("{name} GET /next ").trim_end().to_owned()
            ]
        );
        assert_eq!(upstream.received(), request + &get("/next", session));
    }
}

#[tokio::test]
async fn ambiguous_requests_go_to_the_application_with_all_that_follows() {
    for ambiguous in [
        "POST / HTTP/1.1\r\nX-For: alice\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nX-For: alice\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "GET / HTTP/1.1\r\nA: b\r\n c\r\nX-For: alice\r\n\r\n",
        "GET / HTTP/1.1\nX-For: alice\n\n",
    ] {
        let fixture = TestPort::new(Behavior::Silent);
        let (alice, _guard) = fixture.session("alice", Behavior::Responds);
        // An earlier request of a session on the same connection makes no difference.
        let before = get("/before", "alice");
        let smuggled = get("/smuggled", "alice");
        let mut client = fixture.connect();
        client.write_all(before.as_bytes()).await.unwrap();
        read_until(&mut client, "alice GET /before").await;
        client
            .write_all((ambiguous.to_owned() + &smuggled).as_bytes())
            .await
            .unwrap();
        fixture
            .application
            .wait_until_received(&(ambiguous.to_owned() + &smuggled))
            .await;
        assert_eq!(alice.received(), before, "after {ambiguous:?}");
    }
}

#[tokio::test]
async fn expect_continue_is_answered() {
    let fixture = TestPort::new(Behavior::Responds);
    let (_alice, _guard) = fixture.session("alice", Behavior::Responds);
    for session in ["other", "alice"] {
        let mut client = fixture.connect();
        let head = format!(
            "POST / HTTP/1.1\r\nX-For: {session}\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        read_until(&mut client, "100 Continue\r\n\r\n").await;
        client.write_all(b"ok").await.unwrap();
        read_until(&mut client, "POST / ok").await;
    }
}

#[tokio::test]
async fn upgraded_connections_are_forwarded_in_both_directions() {
    for (session, upgrade) in [
        (
            "other",
            "GET /ws HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: echo\r\n",
        ),
        (
            "alice",
            "GET /ws HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: echo\r\n",
        ),
        ("alice", "CONNECT host:1 HTTP/1.1\r\n"),
    ] {
        let fixture = TestPort::new(Behavior::Upgrades);
        let (alice, _guard) = fixture.session("alice", Behavior::Upgrades);
        let mut client = fixture.connect();
        client
            .write_all(format!("{upgrade}X-For: {session}\r\n\r\n").as_bytes())
            .await
            .unwrap();
        read_until(
            &mut client,
            "101 Switching Protocols\r\nUpgrade: echo\r\n\r\n",
        )
        .await;
        // Bytes that look like a request are not parsed here.
        let inside = get("/inside", "other") + "\u{1}\u{2}";
        client.write_all(inside.as_bytes()).await.unwrap();
        read_until(&mut client, &inside).await;
        assert_eq!(alice.opened(), usize::from(session == "alice"));
        assert!(fixture.application.opened() <= 1);
    }
}

#[tokio::test]
async fn a_refused_upgrade_is_followed_by_requests() {
    let fixture = TestPort::new(Behavior::Responds);
    let (_alice, _guard) = fixture.session("alice", Behavior::Responds);
    let upgrade = "GET /ws HTTP/1.1\r\nX-For: alice\r\nUpgrade: echo\r\n\r\n";
    let responses = fixture
        .exchange(&(upgrade.to_owned() + &get("/after", "other")))
        .await;
    assert_eq!(
        bodies(&responses),
        ["alice GET /ws", "application GET /after"]
    );
}

#[tokio::test]
async fn json_bodies_select_the_route_and_are_forwarded_unchanged() {
    let fixture = TestPort::new(Behavior::Responds);
    let filter = Filter::json_body("$.user", "^alice$").unwrap();
    let (_alice, _guard) = fixture.claim("alice", Behavior::Responds, Mode::Steal, Some(filter));
    let long = format!(
        "{{\"user\": \"alice\", \"long\": \"{}\"}}",
        "x".repeat(100_000)
    );
    let cases = [
        ("{\"user\": \"alice\"}", "alice"),
        ("{\"user\": \"bob\"}", "application"),
        ("not JSON", "application"),
        ("", "application"),
        (long.as_str(), "application"),
    ];
    for (body, who) in cases {
        let responses = fixture.exchange(&post("/", "x", body)).await;
        assert_eq!(
            bodies(&responses),
            [format!("{who} POST / {body}").trim_end()]
        );
    }
    let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n";
    let mut client = fixture.connect();
    client.write_all(chunked.as_bytes()).await.unwrap();
    read_until(&mut client, "100 Continue\r\n\r\n").await;
    client
        .write_all(b"8\r\n{\"user\":\r\n8\r\n\"alice\"}\r\n0\r\n\r\n")
        .await
        .unwrap();
    read_until(&mut client, "alice POST / {\"user\":\"alice\"}").await;
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_body_is_forwarded_after_the_timeout() {
    let fixture = TestPort::new(Behavior::Silent);
    let filter = Filter::json_body("$.user", "^alice$").unwrap();
    let (_alice, _guard) = fixture.claim("alice", Behavior::Responds, Mode::Steal, Some(filter));
    let mut client = fixture.connect();
    let half = "POST / HTTP/1.1\r\nContent-Length: 50\r\n\r\n{";
    client.write_all(half.as_bytes()).await.unwrap();
    fixture.application.wait_until_received(half).await;
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_head_is_forwarded_to_the_application_after_the_timeout() {
    let fixture = TestPort::new(Behavior::Silent);
    let (_alice, _guard) = fixture.session("alice", Behavior::Responds);
    let mut client = fixture.connect();
    let slow = get("/1", "x") + "GET /slow HTTP/1.1\r\nX-For: ali";
    client.write_all(slow.as_bytes()).await.unwrap();
    fixture.application.wait_until_received(&slow).await;
    client.write_all(b"ce\r\n\r\n").await.unwrap();
    fixture
        .application
        .wait_until_received(&(slow + "ce\r\n\r\n"))
        .await;
}

#[tokio::test]
async fn large_bodies_are_forwarded() {
    const LENGTH: usize = 64 * 1024 * 1024;
    for session in ["other", "alice"] {
        let fixture = TestPort::new(Behavior::Silent);
        let (alice, _guard) = fixture.session("alice", Behavior::Silent);
        let mut client = fixture.connect();
        let head =
            format!("POST / HTTP/1.1\r\nX-For: {session}\r\nContent-Length: {LENGTH}\r\n\r\n");
        client.write_all(head.as_bytes()).await.unwrap();
        let part = vec![b'x'; 1024 * 1024];
        for _ in 0..LENGTH / part.len() {
            client.write_all(&part).await.unwrap();
        }
        let upstream = if session == "alice" {
            alice
        } else {
            fixture.application
        };
        while upstream.received_length() < LENGTH + head.len() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

/// Time is paused, so any waiting would be visible.
#[tokio::test(start_paused = true)]
async fn a_server_that_speaks_first_is_forwarded_immediately() {
    let fixture = TestPort::new(Behavior::SpeaksFirst);
    let (_alice, _guard) = fixture.session("alice", Behavior::Responds);
    let mut client = fixture.connect();
    let before = Instant::now();
    read_until(&mut client, "220 application\r\n").await;
    assert_eq!(Instant::now(), before);
    client.write_all(b"EHLO example\r\n").await.unwrap();
    read_until(&mut client, "EHLO example\r\n").await;
    // Bytes on such a connection are not parsed as requests.
    client
        .write_all(get("/", "alice").as_bytes())
        .await
        .unwrap();
    read_until(&mut client, "X-For: alice\r\n\r\n").await;
}

#[tokio::test(start_paused = true)]
async fn whole_ports_are_stolen_for_every_protocol() {
    for (behavior, sent, expected) in [
        (Behavior::SpeaksFirst, "", "220 alice\r\n"),
        (Behavior::SpeaksFirst, "\u{1}binary", "\u{1}binary"),
        (Behavior::Responds, "GET / HTTP/1.1\r\n\r\n", "alice GET /"),
    ] {
        let fixture = TestPort::new(Behavior::Silent);
        let (_alice, _guard) = fixture.claim("alice", behavior, Mode::Steal, None);
        let mut client = fixture.connect();
        let before = Instant::now();
        client.write_all(sent.as_bytes()).await.unwrap();
        read_until(&mut client, expected).await;
        assert_eq!(Instant::now(), before);
        assert_eq!(fixture.application.opened(), 0);
    }
}

#[tokio::test]
async fn malformed_requests_on_a_stolen_port_go_to_its_owner() {
    let fixture = TestPort::new(Behavior::Silent);
    let (alice, _guard) = fixture.claim("alice", Behavior::Silent, Mode::Steal, None);
    let bytes = "GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\nGET / HTTP/1.1\nodd";
    let mut client = fixture.connect();
    client.write_all(bytes.as_bytes()).await.unwrap();
    alice.wait_until_received(bytes).await;
    assert_eq!(fixture.application.opened(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_head_does_not_cancel_a_pending_response() {
    let fixture = TestPort::with(Behavior::Silent, |settings| {
        settings.response_timeout = None;
    });
    let (alice, _guard) = fixture.session("alice", Behavior::Silent);
    let mut client = fixture.connect();
    let request = get("/", "alice");
    client
        .write_all((request.clone() + "GET /next HT").as_bytes())
        .await
        .unwrap();
    alice.wait_until_received(&request).await;
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(fixture.application.received(), "");
    drop(client);
}

#[tokio::test]
async fn probes_reach_the_application_unless_they_are_claimed() {
    let fixture = TestPort::new(Behavior::Responds);
    let application = fixture.application.clone();
    let port =
        Port::new(Arc::new(ToUpstream(application)), Settings::default()).with_probes(Probes {
            paths: vec!["/healthz".to_owned()],
        });
    let fixture = TestPort {
        port: Arc::new(port),
        ..fixture
    };
    let (_alice, _guard) = fixture.claim("alice", Behavior::Responds, Mode::Steal, None);
    let requests = [
        "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /anything HTTP/1.1\r\nUser-Agent: kube-probe/1.30\r\n\r\n",
        "POST /healthz HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        "GET /other HTTP/1.1\r\nUser-Agent: not-kube-probe/1\r\n\r\n",
    ];
    let responses = fixture.exchange(&requests.concat()).await;
    assert_eq!(
        bodies(&responses),
        [
            "application GET /healthz",
            "application GET /anything",
            "alice POST /healthz",
            "alice GET /other"
        ]
    );
    drop(_guard);
    let bob = TestUpstream::new("bob", Behavior::Responds);
    let mut claims_probes = claim("bob", Mode::Steal, None, Arc::new(ToUpstream(bob)));
    claims_probes.takes_probes = true;
    let _guard = fixture
        .port
        .claims()
        .claim(claims_probes, OnConflict::Abort)
        .unwrap();
    assert_eq!(
        bodies(&fixture.exchange(requests[0]).await),
        ["bob GET /healthz"]
    );
}

#[tokio::test]
async fn idle_connections_are_reused_by_the_next_client() {
    let fixture = TestPort::new(Behavior::Responds);
    let (_alice, _guard) = fixture.session("alice", Behavior::Responds);
    for _ in 0..10 {
        let mut client = fixture.connect();
        client.write_all(get("/", "x").as_bytes()).await.unwrap();
        read_until(&mut client, "application GET /").await;
        drop(client);
        // The connection is returned to the pool after the proxy has seen the client's end.
        while !format!("{:?}", fixture.port).contains("Pool of 1") {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
    assert_eq!(fixture.application.opened(), 1);
}

#[tokio::test]
async fn authenticated_or_closing_connections_are_not_reused() {
    let fixture = TestPort::new(Behavior::Responds);
    let (_alice, _guard) = fixture.session("alice", Behavior::Responds);
    let log_in = "GET / HTTP/1.1\r\nAuthorization: NTLM x\r\n\r\n";
    fixture.exchange(log_in).await;
    fixture.exchange(&get("/", "x")).await;
    assert_eq!(fixture.application.opened(), 2);
    fixture
        .application
        .closes_after_response
        .store(true, Ordering::SeqCst);
    fixture.exchange(&get("/", "x")).await;
    fixture.exchange(&get("/", "x")).await;
    assert!(fixture.application.opened() >= 3);
}

#[tokio::test]
async fn the_client_connection_ends_when_the_application_closes() {
    let fixture = TestPort::new(Behavior::Responds);
    let (_alice, _guard) = fixture.session("alice", Behavior::Responds);
    fixture
        .application
        .closes_after_response
        .store(true, Ordering::SeqCst);
    let mut client = fixture.connect();
    client.write_all(get("/", "x").as_bytes()).await.unwrap();
    let mut responses = String::new();
    client.read_to_string(&mut responses).await.unwrap();
    assert_eq!(bodies(&responses), ["application GET /"]);
}
