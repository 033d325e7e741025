use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderValue};
use splitter::{Filter, Mode, Notice, OnConflict};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::fixture::{Behavior, TestPort, TestUpstream, ToTest, ToUpstream, bodies, claim};
use super::http2_fixture::{
    Http2TestPort, Http2Upstream, ReceivedStream, name, read, request, send_all,
};

const GET: &str = "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n";
const BLUE: &str = "POST /2 HTTP/1.1\r\nTeam: blue\r\nContent-Length: 2\r\n\r\nok";

#[tokio::test]
async fn a_mirror_gets_everything_and_its_responses_are_discarded() {
    let fixture = TestPort::new(Behavior::Responds);
    let (alice, _alices) = fixture.claim("alice", Behavior::Responds, Mode::Mirror, None);
    let both = GET.to_owned() + BLUE;
    let responses = fixture.exchange(&both).await;
    assert_eq!(
        bodies(&responses),
        ["application GET /1", "application POST /2 ok"]
    );
    assert_eq!(fixture.application.received(), both);
    alice.wait_until_received(&both).await;
}

#[tokio::test]
async fn a_mirror_with_a_filter_gets_matching_requests() {
    let fixture = TestPort::new(Behavior::Responds);
    let blue = Filter::header("^team: blue$").unwrap();
    let (alice, _alices) = fixture.claim("alice", Behavior::Responds, Mode::Mirror, Some(blue));
    let responses = fixture.exchange(&[GET, BLUE, GET, BLUE].concat()).await;
    assert_eq!(bodies(&responses).len(), 4);
    alice.wait_until_received(&[BLUE, BLUE].concat()).await;
}

#[tokio::test]
async fn stolen_requests_are_mirrored_as_well() {
    let fixture = TestPort::new(Behavior::Responds);
    let (mirror, _guard) = fixture.claim("mirror", Behavior::Silent, Mode::Mirror, None);
    let blue = Filter::header("^team: blue$").unwrap();
    let (_alice, _alices) = fixture.claim("alice", Behavior::Responds, Mode::Steal, Some(blue));
    let both = GET.to_owned() + BLUE;
    let responses = fixture.exchange(&both).await;
    assert_eq!(
        bodies(&responses),
        ["application GET /1", "alice POST /2 ok"]
    );
    mirror.wait_until_received(&both).await;
}

#[tokio::test]
async fn a_dead_or_slow_mirror_does_not_slow_clients() {
    for behavior in [Behavior::Stalls, Behavior::Refuses, Behavior::Closes] {
        let fixture = TestPort::with(Behavior::SpeaksFirst, |settings| {
            settings.mirror_limit = 256 * 1024;
        });
        let (_alice, _alices) = fixture.claim("alice", behavior, Mode::Mirror, None);
        let client = fixture.connect();
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
        if behavior == Behavior::Stalls {
            let holder = "alice";
            while fixture.notices().is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            assert_eq!(fixture.notices(), [(holder, Notice::MirrorDropped)]);
        }
    }
}

/// The memory for a stalled session is bounded, for any number of clients.
#[tokio::test]
async fn all_mirrors_of_a_session_share_its_memory_limit() {
    let fixture = TestPort::with(Behavior::SpeaksFirst, |settings| {
        settings.session_mirror_limit = 1024 * 1024;
    });
    let (_alice, _alices) = fixture.claim("alice", Behavior::Stalls, Mode::Mirror, None);
    const CLIENTS: usize = 10;
    for _ in 0..CLIENTS {
        let (mut read, mut write) = tokio::io::split(fixture.connect());
        // Less than the limit of one mirror, and more than the upstream accepts without reading.
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
    // Four or five clients reach the limit. The mirrors of the others are dropped.
    while fixture.notices().len() < CLIENTS - 5 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn stream_mirrors_get_matching_streams_with_trailers_and_resets() {
    let (application, alice) = (
        Http2Upstream::new("application"),
        Http2Upstream::new("alice"),
    );
    let filter = Filter::header("^x-for: alice$").unwrap();
    let fixture = Http2TestPort::of(application, alice, Mode::Mirror, filter, |_| {});
    let mut client = fixture.connect().await;
    for (path, session) in [("/1", "other"), ("/2", "alice"), ("/3", "alice")] {
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
    // A request without a body, and one that the client cancels.
    let (response, _) = client.send_request(request("/4", "alice"), true).unwrap();
    read(response.await.unwrap().into_body()).await;
    let (response, mut send) = client.send_request(request("/5", "alice"), false).unwrap();
    send_all(&mut send, Bytes::from_static(b"half")).await;
    let mut response = response.await.unwrap();
    response.body_mut().data().await.unwrap().unwrap();
    let half = |streams: &Vec<ReceivedStream>| {
        streams
            .iter()
            .any(|received| received.path == "/5" && received.body == b"half")
    };
    fixture.alice.wait_until(half).await;
    send.send_reset(Reason::CANCEL);
    fixture
        .alice
        .wait_until(|streams| {
            streams.len() == 4 && streams.iter().all(|received| received.end.is_some())
        })
        .await;
    let mut received = fixture.alice.streams.borrow().clone();
    received.sort_by(|one, other| one.path.cmp(&other.path));
    for (received, path) in received.iter().zip(["/2", "/3"]) {
        assert_eq!((received.path.as_str(), received.end), (path, Some(Ok(()))));
        assert_eq!(received.body, b"some body");
        assert_eq!(received.trailers.as_ref().unwrap()["x-checksum"], "7");
    }
    assert_eq!(
        (received[2].body.as_slice(), received[2].end),
        (&b""[..], Some(Ok(())))
    );
    assert_eq!(received[3].end, Some(Err(Reason::CANCEL)));
    assert_eq!(fixture.application.streams.borrow().len(), 5);
    assert_eq!(fixture.alice.opened(), 1, "all on one connection");
}

/// The filter needs the body, so it is read before the mirrors are selected.
#[tokio::test]
async fn a_stream_mirror_selected_by_body_gets_the_whole_body() {
    let (application, alice) = (
        Http2Upstream::new("application"),
        Http2Upstream::new("alice"),
    );
    let filter = Filter::json_body("$.user", "^alice$").unwrap();
    let fixture = Http2TestPort::of(application, alice, Mode::Mirror, filter, |_| {});
    let mut client = fixture.connect().await;
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
    let is_whole = |streams: &Vec<ReceivedStream>| {
        streams
            .first()
            .is_some_and(|received| received.end.is_some())
    };
    fixture.alice.wait_until(is_whole).await;
    let received = fixture.alice.streams.borrow().clone();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].body, b"{\"user\":\"alice\"}");
}

#[tokio::test]
async fn stalled_stream_mirrors_are_dropped_and_do_not_slow_clients() {
    let application = Http2Upstream::new("application");
    let filter = || Filter::header("^x-for: alice$").unwrap();
    let unused = Filter::header("^x-for: other$").unwrap();
    let upstream = Http2Upstream::new("unused");
    let mut fixture = Http2TestPort::of(application, upstream, Mode::Mirror, unused, |settings| {
        settings.mirror_limit = 256 * 1024;
    });
    // Its mirrors make no progress: it does not complete the HTTP/2 handshake.
    let stuck = TestUpstream::new("alice", Behavior::Stalls);
    fixture.claim_to("alice", Arc::new(ToUpstream(stuck)), Mode::Mirror, filter());
    let mut client = fixture.connect().await;
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
    while fixture.notices.all().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    assert_eq!(
        fixture.notices.all(),
        [(holder, Notice::MirrorDropped)],
        "one notice per client"
    );
}

/// Longer than every timeout. Time is paused, so it advances when all tasks are idle.
const FOR_EVER: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::test(start_paused = true)]
async fn a_mirror_without_a_response_ends_after_the_drain_timeout() {
    let fixture = TestPort::new(Behavior::Responds);
    let (to_test, mut mirrors) = ToTest::new();
    let all = claim("alice", Mode::Mirror, None, to_test);
    let _alices = fixture.port.claims().claim(all, OnConflict::Abort).unwrap();
    assert_eq!(bodies(&fixture.exchange(GET).await), ["application GET /1"]);
    let mut mirror = mirrors.recv().await.unwrap();
    let mut received = String::new();
    mirror.read_to_string(&mut received).await.unwrap();
    assert_eq!(received, GET);
    // It may respond until the drain timeout.
    mirror.write_all(b"HTTP/1.1 ").await.unwrap();
    let gone = async {
        while mirror.write_all(b"...").await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    };
    timeout(FOR_EVER, gone).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stream_mirror_without_a_response_ends_after_the_drain_timeout() {
    let application = Http2Upstream::new("application");
    let filter = Filter::header("^x-for: alice$").unwrap();
    let alice = Http2Upstream::new("alice");
    let fixture = Http2TestPort::of(application, alice, Mode::Mirror, filter, |_| {});
    let mut client = fixture.connect().await;
    let sent = client.send_request(request("/ignored", "alice"), true);
    let response = sent.unwrap().0.await.unwrap();
    assert_eq!(name(&response), "application");
    let is_reset = |streams: &Vec<ReceivedStream>| {
        let received = streams.first();
        received.is_some_and(|received| received.end == Some(Err(Reason::CANCEL)))
    };
    let ended = fixture.alice.wait_until(is_reset);
    timeout(FOR_EVER, ended).await.unwrap();
}
