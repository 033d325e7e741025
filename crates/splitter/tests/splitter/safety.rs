use std::io;
use std::sync::Arc;
use std::time::Duration;

use splitter::{
    BoxFuture, BoxStream, Claim, ClaimGuard, ClaimedTraffic, Claims, ConnectionMeta, Destination,
    EarlierSession, FailureReason, Filter, Mode, Notice, OnConflict, Unreachable,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::fixture::{
    Behavior, NoticeLog, TestPort, TestUpstream, ToUpstream, bodies, claim, meta, read_until,
};

const FOR_ALICE: &str = "POST /1 HTTP/1.1\r\nX-For: alice\r\nContent-Length: 4\r\n\r\nbody";
const NEXT: &str = "GET /2 HTTP/1.1\r\nX-For: alice\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn requests_without_a_session_response_fall_back_to_the_application() {
    for (behavior, reason) in [
        (Behavior::Refuses, FailureReason::Unreachable),
        (Behavior::Closes, FailureReason::NoResponse),
        (Behavior::Silent, FailureReason::Timeout),
    ] {
        let fixture = TestPort::new(Behavior::Responds);
        let (alice, _guard) = fixture.session("alice", behavior);
        let responses = fixture.exchange(&(FOR_ALICE.to_owned() + NEXT)).await;
        assert_eq!(
            bodies(&responses),
            ["application POST /1 body", "application GET /2"],
            "{behavior:?}"
        );
        assert_eq!(fixture.application.received(), FOR_ALICE.to_owned() + NEXT);
        let holder = "alice";
        assert_eq!(
            fixture.notices(),
            [(holder, Notice::FellBack { reason })],
            "{behavior:?}"
        );
        // Only one request is delayed. After the cooldown the session gets requests again.
        alice.set_behavior(Behavior::Responds);
        assert_eq!(
            bodies(&fixture.exchange(NEXT).await),
            ["application GET /2"]
        );
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(bodies(&fixture.exchange(NEXT).await), ["alice GET /2"]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_body_follows_its_request_to_the_application() {
    let fixture = TestPort::new(Behavior::Responds);
    let (alice, _guard) = fixture.session("alice", Behavior::Silent);
    let mut client = fixture.connect();
    let head = "POST /1 HTTP/1.1\r\nX-For: alice\r\nContent-Length: 9\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    client.write_all(b"before ").await.unwrap();
    alice
        .wait_until_received(&(head.to_owned() + "before "))
        .await;
    fixture
        .application
        .wait_until_received(&(head.to_owned() + "before "))
        .await;
    client.write_all(b"it").await.unwrap();
    read_until(&mut client, "application POST /1 before it").await;
}

#[tokio::test(start_paused = true)]
async fn a_request_above_the_replay_limit_is_lost_and_the_next_is_not() {
    let fixture = TestPort::with(Behavior::Responds, |settings| settings.replay_limit = 100);
    let (_alice, _guard) = fixture.session("alice", Behavior::Closes);
    let large = "x".repeat(200);
    let request = format!("POST / HTTP/1.1\r\nX-For: alice\r\nContent-Length: 200\r\n\r\n{large}");
    assert_eq!(
        bodies(&fixture.exchange(&request).await),
        Vec::<&str>::new()
    );
    assert_eq!(
        bodies(&fixture.exchange(NEXT).await),
        ["application GET /2"]
    );
    let holder = "alice";
    let reason = FailureReason::NoResponse;
    assert_eq!(fixture.notices(), [(holder, Notice::Lost { reason })]);
}

#[tokio::test]
async fn a_whole_port_falls_back_too() {
    let fixture = TestPort::new(Behavior::SpeaksFirst);
    let (_alice, _guard) = fixture.claim("alice", Behavior::Refuses, Mode::Steal, None);
    let mut client = fixture.connect();
    read_until(&mut client, "220 application").await;
}

/// A session claims the whole port and accepts connections, and then fails before its first byte.
#[tokio::test(start_paused = true)]
async fn a_raw_connection_without_a_session_response_falls_back_to_the_application() {
    let text = "not HTTP at all\n";
    for (behavior, keeps_its_turn) in [(Behavior::Closes, true), (Behavior::Resets, false)] {
        let fixture = TestPort::new(Behavior::SpeaksFirst);
        let (alice, _guard) = fixture.claim("alice", behavior, Mode::Steal, None);
        let mut client = fixture.connect();
        client.write_all(text.as_bytes()).await.unwrap();
        read_until(&mut client, text).await;
        assert_eq!(fixture.application.received(), text, "{behavior:?}");
        let (holder, reason) = ("alice", FailureReason::NoResponse);
        assert_eq!(fixture.notices(), [(holder, Notice::FellBack { reason })]);
        // Later bytes follow the first.
        client.write_all(b"more\n").await.unwrap();
        read_until(&mut client, "more\n").await;
        // A session that closed the connection cleanly is not suspended.
        alice.set_behavior(Behavior::SpeaksFirst);
        let who = if keeps_its_turn {
            "alice"
        } else {
            "application"
        };
        read_until(&mut fixture.connect(), &format!("220 {who}")).await;
    }
}

/// The client speaks first, in pieces, and the session reads all of them before it resets the connection.
#[tokio::test(start_paused = true)]
async fn bytes_that_a_session_received_without_a_response_are_replayed() {
    for (limit, is_lost) in [(64, false), (10, true)] {
        let fixture = TestPort::with(Behavior::Silent, |settings| settings.replay_limit = limit);
        let (alice, _guard) =
            fixture.claim("alice", Behavior::ResetsAfter("end"), Mode::Steal, None);
        let mut client = fixture.connect();
        let mut sent = String::new();
        for piece in ["\u{1}first ", "second "] {
            client.write_all(piece.as_bytes()).await.unwrap();
            sent += piece;
            alice.wait_until_received(&sent).await;
        }
        client.write_all(b"end").await.unwrap();
        let (holder, reason) = ("alice", FailureReason::NoResponse);
        if is_lost {
            assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
            assert_eq!(fixture.notices(), [(holder, Notice::Lost { reason })]);
        } else {
            fixture
                .application
                .wait_until_received(&(sent + "end"))
                .await;
            assert_eq!(fixture.notices(), [(holder, Notice::FellBack { reason })]);
        }
    }
}

/// In some protocols there is no response: the client sends its data, and both ends close.
#[tokio::test(start_paused = true)]
async fn a_raw_connection_without_a_response_is_not_a_failure() {
    let fixture = TestPort::new(Behavior::Responds);
    let (alice, _guard) = fixture.claim("alice", Behavior::Silent, Mode::Steal, None);
    let text = "\u{1}a line of a log\n";
    assert_eq!(fixture.exchange(text).await, "");
    assert_eq!(
        (alice.received(), fixture.notices()),
        (text.to_owned(), vec![])
    );
    assert_eq!(fixture.application.received(), "");
}

/// Two sessions hang. One has a response timeout of a second, the other uses the port's.
#[tokio::test(start_paused = true)]
async fn each_session_has_its_own_response_timeout() {
    let fixture = TestPort::new(Behavior::Responds);
    let (alice, bob) = (
        TestUpstream::new("alice", Behavior::Silent),
        TestUpstream::new("bob", Behavior::Silent),
    );
    let mut guards = Vec::new();
    for (upstream, response_timeout) in [(alice, Some(Duration::from_secs(1))), (bob, None)] {
        let name = upstream.name;
        let filter = Filter::header(&format!("^x-for: {name}$")).unwrap();
        let mut claim = claim(
            name,
            Mode::Steal,
            Some(filter),
            Arc::new(ToUpstream(upstream)),
        );
        claim.response_timeout = response_timeout;
        guards.push(
            fixture
                .port
                .claims()
                .claim(claim, OnConflict::Abort)
                .unwrap(),
        );
    }
    for (name, seconds) in [("alice", 1), ("bob", 30)] {
        let started = tokio::time::Instant::now();
        let request = format!("GET / HTTP/1.1\r\nX-For: {name}\r\n\r\n");
        let mut client = fixture.connect();
        client.write_all(request.as_bytes()).await.unwrap();
        read_until(&mut client, "application GET /").await;
        assert_eq!(started.elapsed().as_secs(), seconds, "{name}");
    }
}

#[tokio::test]
async fn requests_after_the_end_of_a_session_go_to_the_application() {
    let fixture = TestPort::new(Behavior::Responds);
    let (_alice, guard) = fixture.session("alice", Behavior::Responds);
    let mut client = fixture.connect();
    client.write_all(NEXT.as_bytes()).await.unwrap();
    read_until(&mut client, "alice GET /2").await;
    drop(guard);
    client.write_all(NEXT.as_bytes()).await.unwrap();
    read_until(&mut client, "application GET /2").await;
}

/// Holder names are for people: two sessions of one person may have the same name.
#[tokio::test]
async fn only_the_session_that_failed_is_notified() {
    let fixture = TestPort::new(Behavior::Responds);
    let log = [NoticeLog::default(), NoticeLog::default()];
    let guards: Vec<_> = ["one", "two"]
        .iter()
        .zip(&log)
        .map(|(value, log)| {
            let filter = Filter::header(&format!("^x-for: {value}$")).unwrap();
            let upstream = TestUpstream::new("alice", Behavior::Refuses);
            let mut claim = claim(
                "alice",
                Mode::Steal,
                Some(filter),
                Arc::new(ToUpstream(upstream)),
            );
            claim.on_notice = log.handler("alice");
            fixture
                .port
                .claims()
                .claim(claim, OnConflict::Abort)
                .unwrap()
        })
        .collect();
    let responses = fixture
        .exchange("GET / HTTP/1.1\r\nx-for: two\r\n\r\n")
        .await;
    assert_eq!(bodies(&responses), ["application GET /"]);
    assert_eq!(log[0].all(), []);
    assert_eq!(log[1].all().len(), 1);
    drop(guards);
}

#[tokio::test]
async fn conflicts_name_the_holder() {
    let blue = || Some(Filter::header("^team: blue$").unwrap());
    let red = || Some(Filter::header("^team: red$").unwrap());
    // The existing claim, the new claim, and the expected conflict.
    let cases = [
        (blue(), Mode::Steal, red(), Mode::Steal, None),
        (
            blue(),
            Mode::Steal,
            blue(),
            Mode::Steal,
            Some("the same requests"),
        ),
        (None, Mode::Steal, blue(), Mode::Steal, Some("all traffic")),
        (None, Mode::Steal, None, Mode::Steal, Some("all traffic")),
        (
            blue(),
            Mode::Steal,
            None,
            Mode::Steal,
            Some("some requests"),
        ),
        (None, Mode::Mirror, None, Mode::Steal, None),
        (blue(), Mode::Steal, blue(), Mode::Mirror, None),
    ];
    for (existing, existing_mode, new, new_mode, conflict) in cases {
        let fixture = TestPort::new(Behavior::Responds);
        let text = format!("{existing:?} {existing_mode:?}, then {new:?} {new_mode:?}");
        let (_alice, _guard) = fixture.claim("alice", Behavior::Responds, existing_mode, existing);
        let bob = TestUpstream::new("bob", Behavior::Responds);
        let new = claim("bob", new_mode, new, Arc::new(ToUpstream(bob)));
        let result = fixture.port.claims().claim(new, OnConflict::Abort);
        match conflict {
            None => assert!(result.is_ok(), "{text}"),
            Some(what) => {
                let message = result.unwrap_err().to_string();
                let expected = format!("alice already takes {what} of this port");
                assert!(message.starts_with(&expected), "{text}: {message}");
            }
        }
    }
}

#[tokio::test]
async fn on_conflict_override_and_continue_are_applied() {
    let fixture = TestPort::new(Behavior::Responds);
    let (_alice, alices) = fixture.session("alice", Behavior::Responds);
    let same = || Some(Filter::header("^x-for: alice$").unwrap());
    let bob = TestUpstream::new("bob", Behavior::Responds);
    let carol = TestUpstream::new("carol", Behavior::Responds);
    let claims = fixture.port.claims();
    let bobs = claim("bob", Mode::Steal, same(), Arc::new(ToUpstream(bob)));
    let _bobs = claims.claim(bobs, OnConflict::Continue).unwrap();
    assert_eq!(
        bodies(&fixture.exchange(NEXT).await),
        ["alice GET /2"],
        "the earlier session has precedence"
    );
    let carols = claim("carol", Mode::Steal, same(), Arc::new(ToUpstream(carol)));
    let carols = claims.claim(carols, OnConflict::Override).unwrap();
    assert_eq!(alices.overridden().await, "carol");
    assert_eq!(alices.earlier_sessions(), [], "carol came later");
    assert_eq!(bodies(&fixture.exchange(NEXT).await), ["carol GET /2"]);
    drop(alices);
    assert_eq!(bodies(&fixture.exchange(NEXT).await), ["carol GET /2"]);
    drop(carols);
    assert_eq!(
        bodies(&fixture.exchange(NEXT).await),
        ["application GET /2"],
        "bob was overridden too"
    );
}

/// The result of a future that is ready immediately.
async fn ready_now<T>(future: impl Future<Output = T>) -> Option<T> {
    timeout(Duration::ZERO, future).await.ok()
}

/// A session that may be unreachable.
struct Disconnecting(bool);

impl Destination for Disconnecting {
    fn open<'a>(&'a self, _: &'a ConnectionMeta) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async { Err(io::ErrorKind::NotConnected.into()) })
    }

    fn unreachable(&self) -> Option<Unreachable> {
        let expires_in = Duration::from_millis(89_100);
        self.0.then_some(Unreachable { expires_in })
    }
}

#[tokio::test]
async fn an_unreachable_session_loses_its_claim_only_to_its_own_user() {
    let to = |is_unreachable| Arc::new(Disconnecting(is_unreachable));
    let new_claim = |holder: &str, owner: Option<&str>, to: Arc<Disconnecting>| Claim {
        owner: owner.map(str::to_owned),
        ..claim(holder, Mode::Steal, None, to)
    };
    let alice = Some("alice's machine");
    // The holder's owner, whether it is unreachable, the requester's owner, what to do on a conflict, and whether the
    // holder loses its claim.
    let cases = [
        (alice, true, alice, OnConflict::Abort, true),
        (alice, true, alice, OnConflict::Continue, true),
        (alice, false, alice, OnConflict::Abort, false),
        (alice, true, Some("bob's"), OnConflict::Abort, false),
        (alice, true, Some("bob's"), OnConflict::Continue, false),
        (alice, true, None, OnConflict::Abort, false),
        (None, true, None, OnConflict::Abort, false),
    ];
    for (holders, is_unreachable, requesters, on_conflict, expected) in cases {
        let text = format!("{holders:?} {is_unreachable}, then {requesters:?} {on_conflict:?}");
        let claims = Arc::<Claims>::default();
        let first = claims.claim(
            new_claim("first", holders, to(is_unreachable)),
            OnConflict::Abort,
        );
        let first = first.unwrap();
        let second = claims.claim(new_claim("second", requesters, to(false)), on_conflict);
        let lost = ready_now(first.overridden()).await;
        assert_eq!(lost.is_some(), expected, "{text}");
        if expected {
            assert_eq!(second.unwrap().earlier_sessions(), [], "{text}");
            continue;
        }
        let message = match second {
            Ok(second) => {
                let earlier_session = EarlierSession {
                    holder: "first".to_owned(),
                    traffic: ClaimedTraffic::WholePort,
                };
                assert_eq!(second.earlier_sessions(), [earlier_session], "{text}");
                continue;
            }
            Err(refusal) => refusal.to_string(),
        };
        let unreachable = ", has lost the connection, and keeps it for up to 90 s more";
        assert!(
            message.starts_with("first already takes all traffic"),
            "{message}"
        );
        assert_eq!(
            message.contains(unreachable),
            is_unreachable,
            "{text}: {message}"
        );
    }
}

#[tokio::test]
async fn earlier_sessions_are_reported_to_later_ones() {
    let fixture = TestPort::new(Behavior::Responds);
    let (_alice, alices) = fixture.session("alice", Behavior::Responds);
    let (_bob, bobs) = fixture.session("bob", Behavior::Responds);
    let (_mirror, _mirrors) = fixture.claim("mirror", Behavior::Responds, Mode::Mirror, None);
    let carol = TestUpstream::new("carol", Behavior::Responds);
    let whole = claim("carol", Mode::Steal, None, Arc::new(ToUpstream(carol)));
    let carols = fixture.port.claims().claim(whole, OnConflict::Continue);
    let carols = carols.unwrap();
    let dave = TestUpstream::new("dave", Behavior::Responds);
    let whole = claim("dave", Mode::Steal, None, Arc::new(ToUpstream(dave)));
    let daves = fixture.port.claims().claim(whole, OnConflict::Continue);
    let daves = daves.unwrap();
    let earlier_session = |holder: &str, traffic| EarlierSession {
        holder: holder.to_owned(),
        traffic,
    };
    let some = |holder| earlier_session(holder, ClaimedTraffic::SomeRequests);
    assert_eq!(alices.earlier_sessions(), []);
    assert_eq!(carols.earlier_sessions(), [some("alice"), some("bob")]);
    let all = earlier_session("carol", ClaimedTraffic::WholePort);
    assert_eq!(
        daves.earlier_sessions(),
        [some("alice"), some("bob"), all.clone()]
    );

    let previous = daves.earlier_sessions();
    let change = daves.earlier_sessions_changed(&previous);
    tokio::pin!(change);
    assert_eq!(ready_now(change.as_mut()).await, None);
    drop(alices);
    assert_eq!(change.await, [some("bob"), all]);
    drop((bobs, carols));
    assert_eq!(daves.earlier_sessions_changed(&previous).await, []);
    assert_eq!(bodies(&fixture.exchange(NEXT).await), ["dave GET /2"]);
}

#[tokio::test(start_paused = true)]
async fn claims_are_ordered_by_age() {
    let fixture = TestPort::new(Behavior::Responds);
    let guards = [("new", 0), ("young", 60), ("old", 3600)].map(|(name, age)| {
        let upstream = TestUpstream::new(name, Behavior::Responds);
        let whole = Claim {
            age: Duration::from_secs(age),
            ..claim(name, Mode::Steal, None, Arc::new(ToUpstream(upstream)))
        };
        let guard = fixture.port.claims().claim(whole, OnConflict::Continue);
        guard.unwrap()
    });
    let names = |guard: &ClaimGuard| -> Vec<String> {
        let earlier_sessions = guard.earlier_sessions().into_iter();
        earlier_sessions
            .map(|earlier_sessions| earlier_sessions.holder)
            .collect()
    };
    let [new, young, old] = guards;
    assert_eq!(names(&new), ["old", "young"]);
    assert_eq!(names(&young), ["old"]);
    assert_eq!(names(&old), [""; 0]);
    for (guard, name) in [(old, "old"), (young, "young"), (new, "new")] {
        assert_eq!(
            bodies(&fixture.exchange(NEXT).await),
            [format!("{name} GET /2")],
            "the oldest claim has precedence"
        );
        drop(guard);
    }
}

#[tokio::test]
async fn the_oldest_matching_claim_gets_the_request() {
    let fixture = TestPort::new(Behavior::Responds);
    let path = |pattern: &str| Some(Filter::path(pattern).unwrap());
    let (_alice, alices) = fixture.claim("alice", Behavior::Responds, Mode::Steal, path("^/a"));
    let (_bob, _bobs) = fixture.claim("bob", Behavior::Responds, Mode::Steal, path("b$"));
    let request = "GET /ab HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_eq!(bodies(&fixture.exchange(request).await), ["alice GET /ab"]);
    drop(alices);
    assert_eq!(bodies(&fixture.exchange(request).await), ["bob GET /ab"]);
}

/// A thousand idle connections must not need more than a few megabytes.
#[tokio::test]
async fn an_idle_connection_is_small() {
    let fixture = TestPort::new(Behavior::Responds);
    let (client, served) = tokio::io::duplex(64);
    let serving = fixture.port.serve(Box::new(served), meta());
    let size = std::mem::size_of_val(&serving);
    assert!(size < 2 * 1024, "{size} bytes");
    drop((serving, client));
}

#[tokio::test]
async fn ten_thousand_connections_are_served() {
    let fixture = TestPort::new(Behavior::Responds);
    let (_alice, _guard) = fixture.session("alice", Behavior::Responds);
    let mut clients: Vec<_> = (0..10_000).map(|_| fixture.connect()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        let session = if index % 2 == 0 { "alice" } else { "x" };
        let request = format!("GET /{index} HTTP/1.1\r\nX-For: {session}\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
    }
    for (index, client) in clients.iter_mut().enumerate() {
        let who = if index % 2 == 0 {
            "alice"
        } else {
            "application"
        };
        read_until(client, &format!("{who} GET /{index} ")).await;
    }
}
