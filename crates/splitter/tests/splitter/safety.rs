use std::io;
use std::sync::Arc;
use std::time::Duration;

use splitter::{
    Arrival, Away, BoxFuture, BoxStream, Claim, ClaimGuard, Claims, Destination, Earlier, Filter,
    Held, Mode, Notice, OnConflict, Reason,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::stage::{Manner, Place, Stage, To, Told, arrival, bodies, claim, read_until};

const FOR_ALICE: &str = "POST /1 HTTP/1.1\r\nX-For: alice\r\nContent-Length: 4\r\n\r\nbody";
const NEXT: &str = "GET /2 HTTP/1.1\r\nX-For: alice\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn what_a_session_does_not_answer_the_application_does() {
    for (manner, reason) in [
        (Manner::Refuses, Reason::Unreachable),
        (Manner::Closes, Reason::NoAnswer),
        (Manner::Silent, Reason::TooSlow),
    ] {
        let stage = Stage::new(Manner::Answers);
        let (alice, _guard) = stage.session("alice", manner);
        let answers = stage.ask(&(FOR_ALICE.to_owned() + NEXT)).await;
        assert_eq!(
            bodies(&answers),
            ["application POST /1 body", "application GET /2"],
            "{manner:?}"
        );
        assert_eq!(stage.application.got(), FOR_ALICE.to_owned() + NEXT);
        let holder = "alice";
        assert_eq!(
            stage.notices(),
            [(holder, Notice::FellBack { reason })],
            "{manner:?}"
        );
        // Only one request pays for it; after a while the session is tried again.
        alice.set_manner(Manner::Answers);
        assert_eq!(bodies(&stage.ask(NEXT).await), ["application GET /2"]);
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(bodies(&stage.ask(NEXT).await), ["alice GET /2"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_still_comes_follows_its_request_to_the_application() {
    let stage = Stage::new(Manner::Answers);
    let (alice, _guard) = stage.session("alice", Manner::Silent);
    let mut client = stage.connect();
    let head = "POST /1 HTTP/1.1\r\nX-For: alice\r\nContent-Length: 9\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    client.write_all(b"before ").await.unwrap();
    alice.wait_until_got(&(head.to_owned() + "before ")).await;
    stage
        .application
        .wait_until_got(&(head.to_owned() + "before "))
        .await;
    client.write_all(b"it").await.unwrap();
    read_until(&mut client, "application POST /1 before it").await;
}

#[tokio::test(start_paused = true)]
async fn a_request_too_large_to_be_repeated_is_lost_and_the_next_is_not() {
    let stage = Stage::with(Manner::Answers, |settings| settings.replay_limit = 100);
    let (_alice, _guard) = stage.session("alice", Manner::Closes);
    let large = "x".repeat(200);
    let request = format!("POST / HTTP/1.1\r\nX-For: alice\r\nContent-Length: 200\r\n\r\n{large}");
    assert_eq!(bodies(&stage.ask(&request).await), Vec::<&str>::new());
    assert_eq!(bodies(&stage.ask(NEXT).await), ["application GET /2"]);
    let holder = "alice";
    let reason = Reason::NoAnswer;
    assert_eq!(stage.notices(), [(holder, Notice::Lost { reason })]);
}

#[tokio::test]
async fn a_whole_port_falls_back_too() {
    let stage = Stage::new(Manner::SpeaksFirst);
    let (_alice, _guard) = stage.claim("alice", Manner::Refuses, Mode::Steal, None);
    let mut client = stage.connect();
    read_until(&mut client, "220 application").await;
}

/// A session has the whole port and opens connections, and then fails before it has said anything.
#[tokio::test(start_paused = true)]
async fn a_whole_connection_that_is_not_answered_is_the_applications() {
    let text = "not HTTP at all\n";
    for (manner, keeps_its_turn) in [(Manner::Closes, true), (Manner::Breaks, false)] {
        let stage = Stage::new(Manner::SpeaksFirst);
        let (alice, _guard) = stage.claim("alice", manner, Mode::Steal, None);
        let mut client = stage.connect();
        client.write_all(text.as_bytes()).await.unwrap();
        read_until(&mut client, text).await;
        assert_eq!(stage.application.got(), text, "{manner:?}");
        let (holder, reason) = ("alice", Reason::NoAnswer);
        assert_eq!(stage.notices(), [(holder, Notice::FellBack { reason })]);
        // Later bytes follow the first.
        client.write_all(b"more\n").await.unwrap();
        read_until(&mut client, "more\n").await;
        // One that only closed is there.
        alice.set_manner(Manner::SpeaksFirst);
        let who = if keeps_its_turn {
            "alice"
        } else {
            "application"
        };
        read_until(&mut stage.connect(), &format!("220 {who}")).await;
    }
}

/// The client speaks first, in pieces, and the session takes them all before it breaks.
#[tokio::test(start_paused = true)]
async fn the_application_gets_all_that_a_session_took_without_a_word() {
    for (limit, is_lost) in [(64, false), (10, true)] {
        let stage = Stage::with(Manner::Silent, |settings| settings.replay_limit = limit);
        let (alice, _guard) = stage.claim("alice", Manner::BreaksAt("end"), Mode::Steal, None);
        let mut client = stage.connect();
        let mut sent = String::new();
        for piece in ["\u{1}first ", "second "] {
            client.write_all(piece.as_bytes()).await.unwrap();
            sent += piece;
            alice.wait_until_got(&sent).await;
        }
        client.write_all(b"end").await.unwrap();
        let (holder, reason) = ("alice", Reason::NoAnswer);
        if is_lost {
            assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
            assert_eq!(stage.notices(), [(holder, Notice::Lost { reason })]);
        } else {
            stage.application.wait_until_got(&(sent + "end")).await;
            assert_eq!(stage.notices(), [(holder, Notice::FellBack { reason })]);
        }
    }
}

/// In some protocols nobody answers: the client says all it has to say, and both ends close.
#[tokio::test(start_paused = true)]
async fn a_whole_connection_that_needs_no_answer_is_no_failure() {
    let stage = Stage::new(Manner::Answers);
    let (alice, _guard) = stage.claim("alice", Manner::Silent, Mode::Steal, None);
    let text = "\u{1}a line of a log\n";
    assert_eq!(stage.ask(text).await, "");
    assert_eq!((alice.got(), stage.notices()), (text.to_owned(), vec![]));
    assert_eq!(stage.application.got(), "");
}

/// Two sessions hang. One is left after a second, and the other as the port says.
#[tokio::test(start_paused = true)]
async fn each_session_has_its_own_patience() {
    let stage = Stage::new(Manner::Answers);
    let (alice, bob) = (
        Place::new("alice", Manner::Silent),
        Place::new("bob", Manner::Silent),
    );
    let mut guards = Vec::new();
    for (place, within) in [(alice, Some(Duration::from_secs(1))), (bob, None)] {
        let name = place.name;
        let filter = Filter::header(&format!("^x-for: {name}$")).unwrap();
        let mut claim = claim(name, Mode::Steal, Some(filter), Arc::new(To(place)));
        claim.answer_within = within;
        guards.push(stage.port.claims().claim(claim, OnConflict::Abort).unwrap());
    }
    for (name, seconds) in [("alice", 1), ("bob", 30)] {
        let asked = tokio::time::Instant::now();
        let request = format!("GET / HTTP/1.1\r\nX-For: {name}\r\n\r\n");
        let mut client = stage.connect();
        client.write_all(request.as_bytes()).await.unwrap();
        read_until(&mut client, "application GET /").await;
        assert_eq!(asked.elapsed().as_secs(), seconds, "{name}");
    }
}

#[tokio::test]
async fn requests_after_a_session_has_gone_are_the_applications() {
    let stage = Stage::new(Manner::Answers);
    let (_alice, guard) = stage.session("alice", Manner::Answers);
    let mut client = stage.connect();
    client.write_all(NEXT.as_bytes()).await.unwrap();
    read_until(&mut client, "alice GET /2").await;
    drop(guard);
    client.write_all(NEXT.as_bytes()).await.unwrap();
    read_until(&mut client, "application GET /2").await;
}

/// Names are for people: two sessions of one person may have the same.
#[tokio::test]
async fn only_the_session_that_failed_is_told() {
    let stage = Stage::new(Manner::Answers);
    let told = [Told::default(), Told::default()];
    let guards: Vec<_> = ["one", "two"]
        .iter()
        .zip(&told)
        .map(|(value, told)| {
            let filter = Filter::header(&format!("^x-for: {value}$")).unwrap();
            let place = Place::new("alice", Manner::Refuses);
            let mut claim = claim("alice", Mode::Steal, Some(filter), Arc::new(To(place)));
            claim.notices = told.tell("alice");
            stage.port.claims().claim(claim, OnConflict::Abort).unwrap()
        })
        .collect();
    let answers = stage.ask("GET / HTTP/1.1\r\nx-for: two\r\n\r\n").await;
    assert_eq!(bodies(&answers), ["application GET /"]);
    assert_eq!(told[0].all(), []);
    assert_eq!(told[1].all().len(), 1);
    drop(guards);
}

#[tokio::test]
async fn claims_that_conflict_name_the_holder() {
    let blue = || Some(Filter::header("^team: blue$").unwrap());
    let red = || Some(Filter::header("^team: red$").unwrap());
    // Who holds what, who asks for what, and whether that is refused.
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
    for (held, held_mode, wanted, wanted_mode, refused) in cases {
        let stage = Stage::new(Manner::Answers);
        let text = format!("{held:?} {held_mode:?}, then {wanted:?} {wanted_mode:?}");
        let (_alice, _guard) = stage.claim("alice", Manner::Answers, held_mode, held);
        let bob = Place::new("bob", Manner::Answers);
        let wanted = claim("bob", wanted_mode, wanted, Arc::new(To(bob)));
        let seen = stage.port.claims().claim(wanted, OnConflict::Abort);
        match refused {
            None => assert!(seen.is_ok(), "{text}"),
            Some(what) => {
                let message = seen.unwrap_err().to_string();
                let expected = format!("alice already takes {what} of this port");
                assert!(message.starts_with(&expected), "{text}: {message}");
            }
        }
    }
}

#[tokio::test]
async fn a_conflict_is_overridden_or_waited_out_when_asked() {
    let stage = Stage::new(Manner::Answers);
    let (_alice, alices) = stage.session("alice", Manner::Answers);
    let same = || Some(Filter::header("^x-for: alice$").unwrap());
    let bob = Place::new("bob", Manner::Answers);
    let carol = Place::new("carol", Manner::Answers);
    let claims = stage.port.claims();
    let bobs = claim("bob", Mode::Steal, same(), Arc::new(To(bob)));
    let _bobs = claims.claim(bobs, OnConflict::Continue).unwrap();
    assert_eq!(
        bodies(&stage.ask(NEXT).await),
        ["alice GET /2"],
        "who was there first"
    );
    let carols = claim("carol", Mode::Steal, same(), Arc::new(To(carol)));
    let carols = claims.claim(carols, OnConflict::Override).unwrap();
    assert_eq!(alices.overridden().await, "carol");
    assert_eq!(alices.earlier(), [], "carol came later");
    assert_eq!(bodies(&stage.ask(NEXT).await), ["carol GET /2"]);
    drop(alices);
    assert_eq!(bodies(&stage.ask(NEXT).await), ["carol GET /2"]);
    drop(carols);
    assert_eq!(
        bodies(&stage.ask(NEXT).await),
        ["application GET /2"],
        "bob was overridden too"
    );
}

/// What comes without waiting.
async fn at_once<T>(coming: impl Future<Output = T>) -> Option<T> {
    timeout(Duration::ZERO, coming).await.ok()
}

/// A destination of somebody whose connection may be lost.
struct Leaving(bool);

impl Destination for Leaving {
    fn open<'a>(&'a self, _: &'a Arrival) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async { Err(io::ErrorKind::NotConnected.into()) })
    }

    fn away(&self) -> Option<Away> {
        let keeps_for = Duration::from_millis(89_100);
        self.0.then_some(Away { keeps_for })
    }
}

#[tokio::test]
async fn what_somebody_has_who_is_away_is_his_own_alone() {
    let to = |is_away| Arc::new(Leaving(is_away));
    let ask = |holder: &str, owner: Option<&str>, to: Arc<Leaving>| Claim {
        owner: owner.map(str::to_owned),
        ..claim(holder, Mode::Steal, None, to)
    };
    let alice = Some("alice's machine");
    // Whose it is, whether he is away, who asks, and how: whether he gets it at the other's cost.
    let cases = [
        (alice, true, alice, OnConflict::Abort, true),
        (alice, true, alice, OnConflict::Continue, true),
        (alice, false, alice, OnConflict::Abort, false),
        (alice, true, Some("bob's"), OnConflict::Abort, false),
        (alice, true, Some("bob's"), OnConflict::Continue, false),
        (alice, true, None, OnConflict::Abort, false),
        (None, true, None, OnConflict::Abort, false),
    ];
    for (holders, is_away, askers, on_conflict, expected) in cases {
        let text = format!("{holders:?} {is_away}, then {askers:?} {on_conflict:?}");
        let claims = Arc::<Claims>::default();
        let first = claims.claim(ask("first", holders, to(is_away)), OnConflict::Abort);
        let first = first.unwrap();
        let second = claims.claim(ask("second", askers, to(false)), on_conflict);
        let lost = at_once(first.overridden()).await;
        assert_eq!(lost.is_some(), expected, "{text}");
        if expected {
            assert_eq!(second.unwrap().earlier(), [], "{text}");
            continue;
        }
        let words = match second {
            Ok(second) => {
                let earlier = Earlier {
                    holder: "first".to_owned(),
                    what: Held::WholePort,
                };
                assert_eq!(second.earlier(), [earlier], "{text}");
                continue;
            }
            Err(refusal) => refusal.to_string(),
        };
        let away = ", has lost the connection, and keeps it for up to 90 s more";
        assert!(
            words.starts_with("first already takes all traffic"),
            "{words}"
        );
        assert_eq!(words.contains(away), is_away, "{text}: {words}");
    }
}

#[tokio::test]
async fn who_continues_knows_who_is_served_first() {
    let stage = Stage::new(Manner::Answers);
    let (_alice, alices) = stage.session("alice", Manner::Answers);
    let (_bob, bobs) = stage.session("bob", Manner::Answers);
    let (_copy, _copies) = stage.claim("copy", Manner::Answers, Mode::Mirror, None);
    let carol = Place::new("carol", Manner::Answers);
    let whole = claim("carol", Mode::Steal, None, Arc::new(To(carol)));
    let carols = stage.port.claims().claim(whole, OnConflict::Continue);
    let carols = carols.unwrap();
    let dave = Place::new("dave", Manner::Answers);
    let whole = claim("dave", Mode::Steal, None, Arc::new(To(dave)));
    let daves = stage.port.claims().claim(whole, OnConflict::Continue);
    let daves = daves.unwrap();
    let earlier = |holder: &str, what| Earlier {
        holder: holder.to_owned(),
        what,
    };
    let some = |holder| earlier(holder, Held::SomeRequests);
    assert_eq!(alices.earlier(), []);
    assert_eq!(carols.earlier(), [some("alice"), some("bob")]);
    let all = earlier("carol", Held::WholePort);
    assert_eq!(daves.earlier(), [some("alice"), some("bob"), all.clone()]);

    let known = daves.earlier();
    let change = daves.earlier_changed(&known);
    tokio::pin!(change);
    assert_eq!(at_once(change.as_mut()).await, None);
    drop(alices);
    assert_eq!(change.await, [some("bob"), all]);
    drop((bobs, carols));
    assert_eq!(daves.earlier_changed(&known).await, []);
    assert_eq!(bodies(&stage.ask(NEXT).await), ["dave GET /2"]);
}

#[tokio::test(start_paused = true)]
async fn who_was_there_before_is_so_wherever_he_comes_from() {
    let stage = Stage::new(Manner::Answers);
    let guards = [("new", 0), ("young", 60), ("old", 3600)].map(|(name, held_for)| {
        let place = Place::new(name, Manner::Answers);
        let whole = Claim {
            held_for: Duration::from_secs(held_for),
            ..claim(name, Mode::Steal, None, Arc::new(To(place)))
        };
        let guard = stage.port.claims().claim(whole, OnConflict::Continue);
        guard.unwrap()
    });
    let names = |guard: &ClaimGuard| -> Vec<String> {
        let earlier = guard.earlier().into_iter();
        earlier.map(|earlier| earlier.holder).collect()
    };
    let [new, young, old] = guards;
    assert_eq!(names(&new), ["old", "young"]);
    assert_eq!(names(&young), ["old"]);
    assert_eq!(names(&old), [""; 0]);
    for (guard, name) in [(old, "old"), (young, "young"), (new, "new")] {
        assert_eq!(
            bodies(&stage.ask(NEXT).await),
            [format!("{name} GET /2")],
            "whoever is the oldest"
        );
        drop(guard);
    }
}

#[tokio::test]
async fn the_oldest_of_two_that_want_a_request_gets_it() {
    let stage = Stage::new(Manner::Answers);
    let path = |pattern: &str| Some(Filter::path(pattern).unwrap());
    let (_alice, alices) = stage.claim("alice", Manner::Answers, Mode::Steal, path("^/a"));
    let (_bob, _bobs) = stage.claim("bob", Manner::Answers, Mode::Steal, path("b$"));
    let request = "GET /ab HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_eq!(bodies(&stage.ask(request).await), ["alice GET /ab"]);
    drop(alices);
    assert_eq!(bodies(&stage.ask(request).await), ["bob GET /ab"]);
}

/// A thousand connections that wait must not need more than a few megabytes.
#[tokio::test]
async fn a_connection_that_waits_is_small() {
    let stage = Stage::new(Manner::Answers);
    let (client, served) = tokio::io::duplex(64);
    let serving = stage.port.serve(Box::new(served), arrival());
    let size = std::mem::size_of_val(&serving);
    assert!(size < 2 * 1024, "{size} bytes");
    drop((serving, client));
}

#[tokio::test]
async fn ten_thousand_connections_are_served() {
    let stage = Stage::new(Manner::Answers);
    let (_alice, _guard) = stage.session("alice", Manner::Answers);
    let mut clients: Vec<_> = (0..10_000).map(|_| stage.connect()).collect();
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
