use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderValue};
use splitter::{Filter, Mode, Notice, OnConflict};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::http2_stage::{Got, Http2Place, Http2Stage, name, read, request, send_all};
use super::stage::{Manner, Place, Stage, To, ToTest, bodies, claim};

const GET: &str = "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n";
const BLUE: &str = "POST /2 HTTP/1.1\r\nTeam: blue\r\nContent-Length: 2\r\n\r\nok";

#[tokio::test]
async fn a_copy_has_everything_and_its_answers_go_nowhere() {
    let stage = Stage::new(Manner::Answers);
    let (alice, _alices) = stage.claim("alice", Manner::Answers, Mode::Mirror, None);
    let both = GET.to_owned() + BLUE;
    let answers = stage.ask(&both).await;
    assert_eq!(
        bodies(&answers),
        ["application GET /1", "application POST /2 ok"]
    );
    assert_eq!(stage.application.got(), both);
    alice.wait_until_got(&both).await;
}

#[tokio::test]
async fn a_copy_with_a_filter_has_what_it_wants() {
    let stage = Stage::new(Manner::Answers);
    let blue = Filter::header("^team: blue$").unwrap();
    let (alice, _alices) = stage.claim("alice", Manner::Answers, Mode::Mirror, Some(blue));
    let answers = stage.ask(&[GET, BLUE, GET, BLUE].concat()).await;
    assert_eq!(bodies(&answers).len(), 4);
    alice.wait_until_got(&[BLUE, BLUE].concat()).await;
}

#[tokio::test]
async fn copies_are_made_beside_sessions_that_take_requests() {
    let stage = Stage::new(Manner::Answers);
    let (copy, _copies) = stage.claim("copy", Manner::Silent, Mode::Mirror, None);
    let blue = Filter::header("^team: blue$").unwrap();
    let (_alice, _alices) = stage.claim("alice", Manner::Answers, Mode::Steal, Some(blue));
    let both = GET.to_owned() + BLUE;
    let answers = stage.ask(&both).await;
    assert_eq!(bodies(&answers), ["application GET /1", "alice POST /2 ok"]);
    copy.wait_until_got(&both).await;
}

#[tokio::test]
async fn a_copy_that_is_dead_or_slow_holds_nobody_up() {
    for manner in [Manner::Stuck, Manner::Refuses, Manner::Closes] {
        let stage = Stage::with(Manner::SpeaksFirst, |settings| {
            settings.copy_limit = 256 * 1024;
        });
        let (_alice, _alices) = stage.claim("alice", manner, Mode::Mirror, None);
        let client = stage.connect();
        let (mut read, mut write) = tokio::io::split(client);
        const LENGTH: usize = 8 * 1024 * 1024;
        let writing = tokio::spawn(async move {
            write.write_all(&vec![b'x'; LENGTH]).await.unwrap();
            write.shutdown().await.unwrap();
        });
        let mut back = Vec::new();
        read.read_to_end(&mut back).await.unwrap();
        writing.await.unwrap();
        assert_eq!(back.len(), LENGTH + "220 application\r\n".len());
        if manner == Manner::Stuck {
            let holder = "alice";
            while stage.notices().is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            assert_eq!(stage.notices(), [(holder, Notice::CopyDropped)]);
        }
    }
}

/// What waits for a session that is stuck is bounded, however many clients there are.
#[tokio::test]
async fn all_copies_of_a_session_share_its_memory() {
    let stage = Stage::with(Manner::SpeaksFirst, |settings| {
        settings.copies_limit = 1024 * 1024;
    });
    let (_alice, _alices) = stage.claim("alice", Manner::Stuck, Mode::Mirror, None);
    const CLIENTS: usize = 10;
    for _ in 0..CLIENTS {
        let (mut read, mut write) = tokio::io::split(stage.connect());
        // Less than one copy may have, and more than a place takes before it reads.
        let text = vec![b'x'; 256 * 1024];
        let length = text.len() + "220 application\r\n".len();
        let writing = tokio::spawn(async move {
            write.write_all(&text).await.unwrap();
            write.shutdown().await.unwrap();
        });
        let mut back = Vec::new();
        read.read_to_end(&mut back).await.unwrap();
        writing.await.unwrap();
        assert_eq!(back.len(), length);
    }
    // Four or five clients fill it; what the others sent was not kept.
    while stage.notices().len() < CLIENTS - 5 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_copy_of_streams_has_what_it_wants_with_trailers_and_resets() {
    let (application, alice) = (Http2Place::new("application"), Http2Place::new("alice"));
    let filter = Filter::header("^x-for: alice$").unwrap();
    let stage = Http2Stage::of(application, alice, Mode::Mirror, filter, |_| {});
    let mut client = stage.connect().await;
    for (path, session) in [("/1", "nobody"), ("/2", "alice"), ("/3", "alice")] {
        let (response, mut send) = client.send_request(request(path, session), false).unwrap();
        send_all(&mut send, Bytes::from_static(b"some ")).await;
        send_all(&mut send, Bytes::from_static(b"body")).await;
        let mut trailers = HeaderMap::new();
        trailers.insert("x-checksum", HeaderValue::from_static("7"));
        send.send_trailers(trailers).unwrap();
        let response = response.await.unwrap();
        assert_eq!(name(&response), "application");
        assert_eq!(read(response.into_body()).await.0, b"some body");
    }
    // A request without a body, and one that its client gives up.
    let (response, _) = client.send_request(request("/4", "alice"), true).unwrap();
    read(response.await.unwrap().into_body()).await;
    let (response, mut send) = client.send_request(request("/5", "alice"), false).unwrap();
    send_all(&mut send, Bytes::from_static(b"half")).await;
    let mut response = response.await.unwrap();
    response.body_mut().data().await.unwrap().unwrap();
    let half = |streams: &Vec<Got>| {
        streams
            .iter()
            .any(|got| got.path == "/5" && got.body == b"half")
    };
    stage.alice.wait_until(half).await;
    send.send_reset(Reason::CANCEL);
    stage
        .alice
        .wait_until(|streams| streams.len() == 4 && streams.iter().all(|got| got.end.is_some()))
        .await;
    let mut got = stage.alice.streams.borrow().clone();
    got.sort_by(|one, other| one.path.cmp(&other.path));
    for (got, path) in got.iter().zip(["/2", "/3"]) {
        assert_eq!((got.path.as_str(), got.end), (path, Some(Ok(()))));
        assert_eq!(got.body, b"some body");
        assert_eq!(got.trailers.as_ref().unwrap()["x-checksum"], "7");
    }
    assert_eq!(
        (got[2].body.as_slice(), got[2].end),
        (&b""[..], Some(Ok(())))
    );
    assert_eq!(got[3].end, Some(Err(Reason::CANCEL)));
    assert_eq!(stage.application.streams.borrow().len(), 5);
    assert_eq!(stage.alice.opened(), 1, "all on one connection");
}

/// The body decides, so it has been read before it is known who gets a copy.
#[tokio::test]
async fn a_copy_of_streams_chosen_by_body_has_all_of_it() {
    let (application, alice) = (Http2Place::new("application"), Http2Place::new("alice"));
    let filter = Filter::json_body("$.user", "^alice$").unwrap();
    let stage = Http2Stage::of(application, alice, Mode::Mirror, filter, |_| {});
    let mut client = stage.connect().await;
    for user in ["bob", "alice"] {
        let body = format!("{{\"user\":\"{user}\"}}");
        let (response, mut send) = client.send_request(request("/", "x"), false).unwrap();
        send_all(&mut send, Bytes::from(body.clone())).await;
        send.send_data(Bytes::new(), true).unwrap();
        assert_eq!(
            read(response.await.unwrap().into_body()).await.0,
            body.as_bytes()
        );
    }
    let is_whole = |streams: &Vec<Got>| streams.first().is_some_and(|got| got.end.is_some());
    stage.alice.wait_until(is_whole).await;
    let got = stage.alice.streams.borrow().clone();
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].body, b"{\"user\":\"alice\"}");
}

#[tokio::test]
async fn copies_of_streams_that_are_not_taken_end_and_hold_nobody_up() {
    let application = Http2Place::new("application");
    let filter = || Filter::header("^x-for: alice$").unwrap();
    let unused = Filter::header("^x-for: nobody$").unwrap();
    let place = Http2Place::new("unused");
    let mut stage = Http2Stage::of(application, place, Mode::Mirror, unused, |settings| {
        settings.copy_limit = 256 * 1024;
    });
    // Its copies never get anywhere: it does not even greet.
    let stuck = Place::new("alice", Manner::Stuck);
    stage.claim_to("alice", Arc::new(To(stuck)), Mode::Mirror, filter());
    let mut client = stage.connect().await;
    for _ in 0..3 {
        let (response, mut send) = client.send_request(request("/", "alice"), false).unwrap();
        const LENGTH: usize = 1024 * 1024;
        let sending = tokio::spawn(async move {
            send_all(&mut send, vec![b'x'; LENGTH].into()).await;
            send.send_data(Bytes::new(), true).unwrap();
        });
        let (back, _) = read(response.await.unwrap().into_body()).await;
        assert_eq!(back.len(), LENGTH);
        sending.await.unwrap();
    }
    let holder = "alice";
    while stage.notices.all().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    assert_eq!(
        stage.notices.all(),
        [(holder, Notice::CopyDropped)],
        "said once for a client"
    );
}

/// Longer than anybody waits, where time passes by itself when nothing else happens.
const FOR_EVER: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::test(start_paused = true)]
async fn a_copy_that_is_never_answered_ends_some_time_after_its_original() {
    let stage = Stage::new(Manner::Answers);
    let (to_test, mut copies) = ToTest::new();
    let all = claim("alice", Mode::Mirror, None, to_test);
    let _alices = stage.port.claims().claim(all, OnConflict::Abort).unwrap();
    assert_eq!(bodies(&stage.ask(GET).await), ["application GET /1"]);
    let mut copy = copies.recv().await.unwrap();
    let mut got = String::new();
    copy.read_to_string(&mut got).await.unwrap();
    assert_eq!(got, GET);
    // It may still answer, and at some time nobody is there any more.
    copy.write_all(b"HTTP/1.1 ").await.unwrap();
    let gone = async {
        while copy.write_all(b"...").await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    };
    timeout(FOR_EVER, gone).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_a_stream_that_is_never_answered_ends_some_time_after_its_original() {
    let application = Http2Place::new("application");
    let filter = Filter::header("^x-for: alice$").unwrap();
    let alice = Http2Place::new("alice");
    let stage = Http2Stage::of(application, alice, Mode::Mirror, filter, |_| {});
    let mut client = stage.connect().await;
    let asked = client.send_request(request("/ignored", "alice"), true);
    let response = asked.unwrap().0.await.unwrap();
    assert_eq!(name(&response), "application");
    let is_reset = |streams: &Vec<Got>| {
        let got = streams.first();
        got.is_some_and(|got| got.end == Some(Err(Reason::CANCEL)))
    };
    let ended = stage.alice.wait_until(is_reset);
    timeout(FOR_EVER, ended).await.unwrap();
}
