use super::super::http::HttpObserver;
use super::*;

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Encodes headers as literals, which do not change the table.
fn headers(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in pairs {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.bytes());
        }
    }
    block
}

fn request(stream: u32, method: &str, path: &str, flags: u8) -> Vec<u8> {
    let block = headers(&[(":method", method), (":path", path), (":authority", "shop")]);
    frame(HEADERS, flags | END_HEADERS, stream, &block)
}

fn response(stream: u32, status: &str, flags: u8) -> Vec<u8> {
    let block = headers(&[(":status", status), ("content-type", "text/plain")]);
    frame(HEADERS, flags | END_HEADERS, stream, &block)
}

/// Feeds a conversation in pieces of each size, and checks the observed exchanges.
#[track_caller]
fn check(requests: &[Vec<u8>], responses: &[Vec<u8>], expected: &[&str]) {
    let requests = [&[PREFACE.to_vec()], requests].concat().concat();
    let responses = responses.concat();
    let now = Instant::now();
    for size in 1..=requests.len().max(responses.len()) {
        let mut observer = HttpObserver::default();
        let mut seen = Vec::new();
        for piece in requests.chunks(size) {
            seen.extend(observer.request(piece, now));
        }
        for piece in responses.chunks(size) {
            seen.extend(observer.response(piece, now));
        }
        seen.extend(observer.end(now));
        let seen: Vec<String> = seen.iter().map(summary).collect();
        assert_eq!(seen, expected, "in pieces of {size}");
    }
}

pub(super) fn summary(exchange: &Exchange) -> String {
    let status = exchange
        .status
        .map_or("-".to_owned(), |status| status.to_string());
    let Exchange {
        method,
        path,
        received,
        sent,
        ..
    } = exchange;
    format!("{method} {path} {status} {received} {sent}")
}

const SETTINGS: u8 = 4;

#[test]
fn requests_are_reported_in_the_order_of_their_responses() {
    check(
        &[
            frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
            request(1, "GET", "/slow", END_STREAM),
            request(3, "POST", "/orders", 0),
            frame(DATA, END_STREAM, 3, b"four"),
            request(5, "GET", "/cancelled", END_STREAM),
            frame(RESET, 0, 5, &[0, 0, 0, 8]),
            request(7, "GET", "/never", END_STREAM),
        ],
        &[
            frame(SETTINGS, 0, 0, &[]),
            response(3, "103", 0),
            response(3, "201", 0),
            frame(DATA, PADDED | END_STREAM, 3, b"\x02ok\0\0"),
            response(1, "200", 0),
            frame(DATA, 0, 1, b"12345"),
            frame(
                HEADERS,
                END_STREAM | END_HEADERS,
                1,
                &headers(&[("grpc-status", "0")]),
            ),
        ],
        &[
            "GET /cancelled - 0 0",
            "POST /orders 201 4 2",
            "GET /slow 200 0 5",
            "GET /never - 0 0",
        ],
    );
}

#[test]
fn header_blocks_may_be_split_and_padded() {
    let block = headers(&[(":method", "GET"), (":path", "/long")]);
    let (first, rest) = block.split_at(7);
    let padded = [&[3, 0, 0, 0, 0, 16], first, &[0, 0, 0]].concat();
    let promise = [&[0, 0, 0, 2], headers(&[(":path", "/pushed")]).as_slice()].concat();
    check(
        &[
            frame(HEADERS, PADDED | PRIORITY | END_STREAM, 1, &padded),
            frame(CONTINUATION, END_HEADERS, 1, rest),
        ],
        &[
            frame(PROMISE, END_HEADERS, 1, &promise),
            response(1, "404", END_STREAM),
        ],
        &["GET /long 404 0 0"],
    );
}

#[test]
fn invalid_frames_are_not_reported() {
    // Another frame in the middle of a header block.
    check(
        &[
            frame(HEADERS, 0, 1, &headers(&[(":method", "GET")])),
            request(3, "GET", "/", END_STREAM),
        ],
        &[response(3, "200", END_STREAM)],
        &[],
    );
    check(&[frame(HEADERS, END_HEADERS, 1, &[0x80])], &[], &[]);
}

#[test]
fn a_long_response_is_reported_once_before_its_end() {
    let start = Instant::now();
    let mut observer = HttpObserver::default();
    // The program may send its settings before the client does.
    assert!(
        observer
            .response(&frame(SETTINGS, 0, 0, &[]), start)
            .is_empty()
    );
    let first = [PREFACE, &request(1, "GET", "/events", END_STREAM)].concat();
    assert!(observer.request(&first, start).is_empty());
    let later = start + Duration::from_millis(5);
    assert!(observer.response(&response(1, "200", 0), later).is_empty());
    assert!(
        observer
            .response(&frame(DATA, 0, 1, b"one"), later)
            .is_empty()
    );
    let reported = observer.response(&frame(DATA, 0, 1, b"two"), later + LONG_EXCHANGE);
    let reported: Vec<_> = reported
        .iter()
        .map(|exchange| (summary(exchange), exchange.latency))
        .collect();
    assert_eq!(
        reported,
        [("GET /events 200 0 6".to_owned(), Duration::from_millis(5))]
    );
    assert!(observer.end(later + LONG_EXCHANGE).is_empty());
}

#[test]
fn a_request_that_is_answered_early_is_reported_with_its_whole_body() {
    let now = Instant::now();
    let mut observer = HttpObserver::default();
    observer.request(
        &[PREFACE.to_vec(), request(1, "POST", "/orders", 0)].concat(),
        now,
    );
    let responses = [response(1, "200", 0), frame(DATA, END_STREAM, 1, b"ok")].concat();
    assert_eq!(observer.response(&responses, now), []);
    let seen = observer.request(&frame(DATA, END_STREAM, 1, b"one=two"), now);
    let seen: Vec<String> = seen.iter().map(summary).collect();
    assert_eq!(seen, ["POST /orders 200 7 2"]);
}
