use std::sync::Arc;
use std::sync::atomic::Ordering;

use splitter::{Filter, Mode, OnConflict, Port, Probes, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::stage::{Manner, Place, Stage, To, bodies, claim, read_until};

fn get(path: &str, session: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-For: {session}\r\n\r\n")
}

fn post(path: &str, session: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nx-for:{session}\r\ncontent-length: {length}\r\n\r\n{body}")
}

#[tokio::test]
async fn each_request_goes_to_who_wants_it_and_answers_keep_their_order() {
    let stage = Stage::new(Manner::Answers);
    let (alice, _alice) = stage.session("alice", Manner::Answers);
    let (bob, _bob) = stage.session("bob", Manner::Answers);
    let requests = [
        get("/1", "nobody"),
        get("/2", "alice"),
        post("/3", "alice", "three"),
        get("/4", "nobody"),
        post("/5", "bob", "five"),
        get("/6", "alice"),
        post("/7", "nobody", "seven"),
    ];
    let answers = stage.ask(&requests.concat()).await;
    assert_eq!(
        bodies(&answers),
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
    assert_eq!(stage.application.got(), only("nobody"));
    assert_eq!(alice.got(), only("alice"));
    assert_eq!(bob.got(), only("bob"));
    assert_eq!(
        (stage.application.opened(), alice.opened()),
        (1, 1),
        "connections are kept"
    );
}

#[tokio::test]
async fn unmatched_requests_follow_one_another_without_waiting() {
    let stage = Stage::new(Manner::Silent);
    let (_alice, _guard) = stage.session("alice", Manner::Answers);
    let all = [get("/1", "x"), post("/2", "x", "two"), get("/3", "x")].concat();
    let mut client = stage.connect();
    client.write_all(all.as_bytes()).await.unwrap();
    stage.application.wait_until_got(&all).await;
}

#[tokio::test]
async fn what_is_odd_but_legal_arrives_as_it_was_sent() {
    let stage = Stage::new(Manner::Answers);
    let (alice, _guard) = stage.session("alice", Manner::Answers);
    let odd = |session: &str| {
        format!(
            "\r\nGET /%7e?a=b&c HTTP/1.1\r\nhOsT:  a\t\r\nX-Empty:\r\nx-for:\t {session} \r\nX-Twice: 1\r\nX-Twice: 2\r\n\r\n"
        )
    };
    stage.ask(&odd("nobody")).await;
    assert_eq!(stage.application.got(), odd("nobody"));
    stage.ask(&odd("alice")).await;
    assert_eq!(alice.got(), odd("alice"));
}

#[tokio::test]
async fn chunks_and_trailers_arrive_as_they_were_sent() {
    let stage = Stage::new(Manner::Answers);
    let (alice, _guard) = stage.session("alice", Manner::Answers);
    for session in ["nobody", "alice"] {
        let request = format!(
            "POST / HTTP/1.1\r\nX-For: {session}\r\nTransfer-Encoding: chunked\r\n\r\n\
             3;odd=yes\r\nabc\r\n02\r\nde\r\n0\r\nChecksum: 1\r\n\r\n"
        );
        let place = if session == "alice" {
            &alice
        } else {
            &stage.application
        };
        let answers = stage.ask(&(request.clone() + &get("/next", session))).await;
        let name = place.name;
        assert_eq!(
            bodies(&answers),
            [
                format!("{name} POST / abcde"),
                format!("{name} GET /next ").trim_end().to_owned()
            ]
        );
        assert_eq!(place.got(), request + &get("/next", session));
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
        let stage = Stage::new(Manner::Silent);
        let (alice, _guard) = stage.session("alice", Manner::Answers);
        // A session that has had a request on the connection before makes no difference.
        let before = get("/before", "alice");
        let smuggled = get("/smuggled", "alice");
        let mut client = stage.connect();
        client.write_all(before.as_bytes()).await.unwrap();
        read_until(&mut client, "alice GET /before").await;
        client
            .write_all((ambiguous.to_owned() + &smuggled).as_bytes())
            .await
            .unwrap();
        stage
            .application
            .wait_until_got(&(ambiguous.to_owned() + &smuggled))
            .await;
        assert_eq!(alice.got(), before, "after {ambiguous:?}");
    }
}

#[tokio::test]
async fn a_client_that_waits_for_a_word_gets_it() {
    let stage = Stage::new(Manner::Answers);
    let (_alice, _guard) = stage.session("alice", Manner::Answers);
    for session in ["nobody", "alice"] {
        let mut client = stage.connect();
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
async fn upgraded_connections_carry_anything_both_ways() {
    for (session, upgrade) in [
        (
            "nobody",
            "GET /ws HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: echo\r\n",
        ),
        (
            "alice",
            "GET /ws HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: echo\r\n",
        ),
        ("alice", "CONNECT host:1 HTTP/1.1\r\n"),
    ] {
        let stage = Stage::new(Manner::Upgrades);
        let (alice, _guard) = stage.session("alice", Manner::Upgrades);
        let mut client = stage.connect();
        client
            .write_all(format!("{upgrade}X-For: {session}\r\n\r\n").as_bytes())
            .await
            .unwrap();
        read_until(
            &mut client,
            "101 Switching Protocols\r\nUpgrade: echo\r\n\r\n",
        )
        .await;
        // What looks like a request for somebody else is none here.
        let inside = get("/inside", "nobody") + "\u{1}\u{2}";
        client.write_all(inside.as_bytes()).await.unwrap();
        read_until(&mut client, &inside).await;
        assert_eq!(alice.opened(), usize::from(session == "alice"));
        assert!(stage.application.opened() <= 1);
    }
}

#[tokio::test]
async fn a_refused_upgrade_is_followed_by_requests() {
    let stage = Stage::new(Manner::Answers);
    let (_alice, _guard) = stage.session("alice", Manner::Answers);
    let upgrade = "GET /ws HTTP/1.1\r\nX-For: alice\r\nUpgrade: echo\r\n\r\n";
    let answers = stage
        .ask(&(upgrade.to_owned() + &get("/after", "nobody")))
        .await;
    assert_eq!(
        bodies(&answers),
        ["alice GET /ws", "application GET /after"]
    );
}

#[tokio::test]
async fn json_bodies_decide_and_arrive_unharmed() {
    let stage = Stage::new(Manner::Answers);
    let filter = Filter::json_body("$.user", "^alice$").unwrap();
    let (_alice, _guard) = stage.claim("alice", Manner::Answers, Mode::Steal, Some(filter));
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
        let answers = stage.ask(&post("/", "x", body)).await;
        assert_eq!(
            bodies(&answers),
            [format!("{who} POST / {body}").trim_end()]
        );
    }
    let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n";
    let mut client = stage.connect();
    client.write_all(chunked.as_bytes()).await.unwrap();
    read_until(&mut client, "100 Continue\r\n\r\n").await;
    client
        .write_all(b"8\r\n{\"user\":\r\n8\r\n\"alice\"}\r\n0\r\n\r\n")
        .await
        .unwrap();
    read_until(&mut client, "alice POST / {\"user\":\"alice\"}").await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_does_not_hold_the_request() {
    let stage = Stage::new(Manner::Silent);
    let filter = Filter::json_body("$.user", "^alice$").unwrap();
    let (_alice, _guard) = stage.claim("alice", Manner::Answers, Mode::Steal, Some(filter));
    let mut client = stage.connect();
    let half = "POST / HTTP/1.1\r\nContent-Length: 50\r\n\r\n{";
    client.write_all(half.as_bytes()).await.unwrap();
    stage.application.wait_until_got(half).await;
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_come_is_the_applications_matter() {
    let stage = Stage::new(Manner::Silent);
    let (_alice, _guard) = stage.session("alice", Manner::Answers);
    let mut client = stage.connect();
    let slow = get("/1", "x") + "GET /slow HTTP/1.1\r\nX-For: ali";
    client.write_all(slow.as_bytes()).await.unwrap();
    stage.application.wait_until_got(&slow).await;
    client.write_all(b"ce\r\n\r\n").await.unwrap();
    stage
        .application
        .wait_until_got(&(slow + "ce\r\n\r\n"))
        .await;
}

#[tokio::test]
async fn large_bodies_flow_as_fast_as_they_are_read() {
    const LENGTH: usize = 64 * 1024 * 1024;
    for session in ["nobody", "alice"] {
        let stage = Stage::new(Manner::Silent);
        let (alice, _guard) = stage.session("alice", Manner::Silent);
        let mut client = stage.connect();
        let head =
            format!("POST / HTTP/1.1\r\nX-For: {session}\r\nContent-Length: {LENGTH}\r\n\r\n");
        client.write_all(head.as_bytes()).await.unwrap();
        let part = vec![b'x'; 1024 * 1024];
        for _ in 0..LENGTH / part.len() {
            client.write_all(&part).await.unwrap();
        }
        let place = if session == "alice" {
            alice
        } else {
            stage.application
        };
        while place.got_length() < LENGTH + head.len() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

/// Time passes only when everybody waits for it.
#[tokio::test(start_paused = true)]
async fn a_server_that_speaks_first_is_heard_at_once() {
    let stage = Stage::new(Manner::SpeaksFirst);
    let (_alice, _guard) = stage.session("alice", Manner::Answers);
    let mut client = stage.connect();
    let before = Instant::now();
    read_until(&mut client, "220 application\r\n").await;
    assert_eq!(Instant::now(), before);
    client.write_all(b"EHLO example\r\n").await.unwrap();
    read_until(&mut client, "EHLO example\r\n").await;
    // Nothing on such a connection is taken for a request.
    client
        .write_all(get("/", "alice").as_bytes())
        .await
        .unwrap();
    read_until(&mut client, "X-For: alice\r\n\r\n").await;
}

#[tokio::test(start_paused = true)]
async fn whole_ports_are_taken_whatever_they_carry() {
    for (manner, sent, answered) in [
        (Manner::SpeaksFirst, "", "220 alice\r\n"),
        (Manner::SpeaksFirst, "\u{1}binary", "\u{1}binary"),
        (Manner::Answers, "GET / HTTP/1.1\r\n\r\n", "alice GET /"),
    ] {
        let stage = Stage::new(Manner::Silent);
        let (_alice, _guard) = stage.claim("alice", manner, Mode::Steal, None);
        let mut client = stage.connect();
        let before = Instant::now();
        client.write_all(sent.as_bytes()).await.unwrap();
        read_until(&mut client, answered).await;
        assert_eq!(Instant::now(), before);
        assert_eq!(stage.application.opened(), 0);
    }
}

#[tokio::test]
async fn what_is_not_understood_on_a_whole_port_is_its_owners() {
    let stage = Stage::new(Manner::Silent);
    let (alice, _guard) = stage.claim("alice", Manner::Silent, Mode::Steal, None);
    let bytes = "GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\nGET / HTTP/1.1\nodd";
    let mut client = stage.connect();
    client.write_all(bytes.as_bytes()).await.unwrap();
    alice.wait_until_got(bytes).await;
    assert_eq!(stage.application.opened(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_takes_long_is_not_given_up_for_a_head_that_does_not_come() {
    let stage = Stage::with(Manner::Silent, |settings| settings.answer_within = None);
    let (alice, _guard) = stage.session("alice", Manner::Silent);
    let mut client = stage.connect();
    let request = get("/", "alice");
    client
        .write_all((request.clone() + "GET /next HT").as_bytes())
        .await
        .unwrap();
    alice.wait_until_got(&request).await;
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(stage.application.got(), "");
    drop(client);
}

#[tokio::test]
async fn probes_reach_the_application_unless_they_are_asked_for() {
    let stage = Stage::new(Manner::Answers);
    let application = stage.application.clone();
    let port = Port::new(Arc::new(To(application)), Settings::default()).with_probes(Probes {
        paths: vec!["/healthz".to_owned()],
    });
    let stage = Stage {
        port: Arc::new(port),
        ..stage
    };
    let (_alice, _guard) = stage.claim("alice", Manner::Answers, Mode::Steal, None);
    let requests = [
        "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /anything HTTP/1.1\r\nUser-Agent: kube-probe/1.30\r\n\r\n",
        "POST /healthz HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        "GET /other HTTP/1.1\r\nUser-Agent: not-kube-probe/1\r\n\r\n",
    ];
    let answers = stage.ask(&requests.concat()).await;
    assert_eq!(
        bodies(&answers),
        [
            "application GET /healthz",
            "application GET /anything",
            "alice POST /healthz",
            "alice GET /other"
        ]
    );
    drop(_guard);
    let bob = Place::new("bob", Manner::Answers);
    let mut wants_probes = claim("bob", Mode::Steal, None, Arc::new(To(bob)));
    wants_probes.takes_probes = true;
    let _guard = stage
        .port
        .claims()
        .claim(wants_probes, OnConflict::Abort)
        .unwrap();
    assert_eq!(bodies(&stage.ask(requests[0]).await), ["bob GET /healthz"]);
}

#[tokio::test]
async fn the_next_client_gets_the_last_ones_connection() {
    let stage = Stage::new(Manner::Answers);
    let (_alice, _guard) = stage.session("alice", Manner::Answers);
    for _ in 0..10 {
        let mut client = stage.connect();
        client.write_all(get("/", "x").as_bytes()).await.unwrap();
        read_until(&mut client, "application GET /").await;
        drop(client);
        // The connection is kept when the client's end has been noticed.
        while !format!("{:?}", stage.port).contains("Pool of 1") {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
    assert_eq!(stage.application.opened(), 1);
}

#[tokio::test]
async fn connections_that_are_logged_in_or_closing_are_not_handed_on() {
    let stage = Stage::new(Manner::Answers);
    let (_alice, _guard) = stage.session("alice", Manner::Answers);
    let log_in = "GET / HTTP/1.1\r\nAuthorization: NTLM x\r\n\r\n";
    stage.ask(log_in).await;
    stage.ask(&get("/", "x")).await;
    assert_eq!(stage.application.opened(), 2);
    stage
        .application
        .closes_after_answer
        .store(true, Ordering::SeqCst);
    stage.ask(&get("/", "x")).await;
    stage.ask(&get("/", "x")).await;
    assert!(stage.application.opened() >= 3);
}

#[tokio::test]
async fn the_client_notices_when_the_application_closes() {
    let stage = Stage::new(Manner::Answers);
    let (_alice, _guard) = stage.session("alice", Manner::Answers);
    stage
        .application
        .closes_after_answer
        .store(true, Ordering::SeqCst);
    let mut client = stage.connect();
    client.write_all(get("/", "x").as_bytes()).await.unwrap();
    let mut answers = String::new();
    client.read_to_string(&mut answers).await.unwrap();
    assert_eq!(bodies(&answers), ["application GET /"]);
}
