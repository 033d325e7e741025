//! Property tests: traffic of real peers is observed completely, and invalid bytes do no harm.

use std::sync::Arc;

use bytes::Bytes;
use h2::{RecvStream, client, server};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};

use super::super::http::HttpObserver;
use super::*;

/// A request and its response, as they are sent.
#[derive(Debug, Clone)]
struct Conversation {
    method: &'static str,
    path: String,
    headers: HeaderMap,
    body: usize,
    status: u16,
    response_headers: HeaderMap,
    response_body: usize,
    has_trailers: bool,
}

impl Conversation {
    fn summary(&self) -> String {
        let Self {
            method,
            path,
            body,
            status,
            response_body,
            ..
        } = self;
        format!("{method} {path} {status} {body} {response_body}")
    }
}

/// The sizes of the tables of both ends, and of the pieces in which bytes are forwarded.
#[derive(Debug, Clone, Copy)]
struct Limits {
    client_table: u32,
    server_table: u32,
    piece: usize,
}

fn limits() -> impl Strategy<Value = Limits> {
    let table = || select(vec![0, 60, 256, 4096, 65_536]);
    let piece = select(vec![1, 9, 100, 4096]);
    (table(), table(), piece).prop_map(|(client_table, server_table, piece)| Limits {
        client_table,
        server_table,
        piece,
    })
}

fn conversation() -> impl Strategy<Value = Conversation> {
    let method = select(vec!["GET", "POST", "DELETE", "PURGE"]);
    let status = select(vec![200, 204, 302, 404, 418, 500, 503]);
    let request = (
        method,
        "/[a-z0-9._~!&=:@%/-]{0,150}",
        headers(),
        0..3000_usize,
    );
    let response = (status, headers(), 0..3000_usize, any::<bool>());
    (request, response).prop_map(
        |(
            (method, path, headers, body),
            (status, response_headers, response_body, has_trailers),
        )| Conversation {
            method,
            path,
            headers,
            body,
            status,
            response_headers,
            // A 204 response must not have content.
            response_body: if status == 204 { 0 } else { response_body },
            has_trailers,
        },
    )
}

/// Few names, so that the table is used; arbitrary values. Sometimes the headers are longer than a frame.
fn headers() -> impl Strategy<Value = HeaderMap> {
    let name = prop_oneof![
        select(vec!["cookie", "user-agent", "etag", "x-request-id"]).prop_map(str::to_owned),
        "x-[a-z0-9-]{1,8}",
    ];
    let byte = prop_oneof![4 => 0x20..=0x7e_u8, 1 => 0x80..=0xff_u8];
    let value = prop_oneof![
        vec(byte, 0..40),
        select(vec![b"once".to_vec(), b"again".to_vec()]),
    ];
    let long = ("x-long".to_owned(), vec![b'~'; 11_000], false);
    let long = prop_oneof![8 => Just(None), 1 => Just(Some(long))];
    let header = (name, value, any::<bool>());
    (vec(header, 0..6), long).prop_map(|(headers, long)| {
        let headers = headers
            .into_iter()
            .chain(long)
            .map(|(name, value, is_secret)| {
                let mut value = HeaderValue::from_bytes(&value).unwrap();
                value.set_sensitive(is_secret);
                (HeaderName::from_bytes(name.as_bytes()).unwrap(), value)
            });
        headers.collect()
    })
}

/// Forwards bytes as the session does, and observes them.
async fn forward(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    piece: usize,
    observe: impl Fn(&[u8]),
) {
    let mut buffer = vec![0; piece];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        observe(&buffer[..length]);
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// Reads a body to its end.
async fn read_all(body: &mut RecvStream) {
    while let Some(data) = body.data().await {
        let length = data.unwrap().len();
        body.flow_control().release_capacity(length).unwrap();
    }
}

async fn serve(stream: DuplexStream, table: u32, all: Vec<Conversation>) {
    let mut builder = server::Builder::new();
    builder.header_table_size(table);
    let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
    let mut all = all.into_iter();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let conversation = all.next().unwrap();
        tokio::spawn(async move {
            read_all(&mut request.into_body()).await;
            let mut response = Response::new(());
            *response.status_mut() = conversation.status.try_into().unwrap();
            *response.headers_mut() = conversation.response_headers;
            let ends = conversation.response_body == 0 && !conversation.has_trailers;
            let mut body = respond.send_response(response, ends).unwrap();
            if conversation.response_body > 0 {
                let bytes = vec![b'x'; conversation.response_body].into();
                body.send_data(bytes, !conversation.has_trailers).unwrap();
            }
            if conversation.has_trailers {
                body.send_trailers(conversation.headers).unwrap();
            }
        });
    }
}

/// Sends all requests at once, and waits for the ends of all responses.
async fn request_all(stream: DuplexStream, table: u32, all: &[Conversation]) {
    let mut builder = client::Builder::new();
    builder.header_table_size(table);
    let (mut client, connection) = builder.handshake::<_, Bytes>(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut responses = Vec::new();
    for conversation in all {
        let request = Request::builder()
            .method(conversation.method)
            .uri(format!("http://shop{}", conversation.path));
        let mut request = request.body(()).unwrap();
        *request.headers_mut() = conversation.headers.clone();
        client = client.ready().await.unwrap();
        let (response, mut body) = client
            .send_request(request, conversation.body == 0)
            .unwrap();
        if conversation.body > 0 {
            body.send_data(vec![b'y'; conversation.body].into(), true)
                .unwrap();
        }
        responses.push(response);
    }
    for response in responses {
        let mut body = response.await.unwrap().into_body();
        read_all(&mut body).await;
        body.trailers().await.unwrap();
    }
    connection.abort();
}

/// The observed exchanges of two real peers.
async fn observed(all: &[Conversation], limits: Limits) -> Vec<String> {
    let (client, from_client) = tokio::io::duplex(limits.piece.max(64));
    let (to_server, server) = tokio::io::duplex(limits.piece.max(64));
    let observer = Arc::new(Mutex::new((HttpObserver::default(), Vec::new())));
    let (client_reads, client_writes) = tokio::io::split(from_client);
    let (server_reads, server_writes) = tokio::io::split(to_server);
    let shared = Arc::clone(&observer);
    tokio::spawn(forward(
        client_reads,
        server_writes,
        limits.piece,
        move |bytes| {
            let (observer, seen) = &mut *shared.lock();
            seen.extend(observer.request(bytes, Instant::now()));
        },
    ));
    let shared = Arc::clone(&observer);
    tokio::spawn(forward(
        server_reads,
        client_writes,
        limits.piece,
        move |bytes| {
            let (observer, seen) = &mut *shared.lock();
            seen.extend(observer.response(bytes, Instant::now()));
        },
    ));
    tokio::spawn(serve(server, limits.server_table, all.to_vec()));
    request_all(client, limits.client_table, all).await;
    let (_, seen) = &mut *observer.lock();
    seen.iter().map(super::tests::summary).collect()
}

/// A frame of any kind, mostly of the kinds that are parsed.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![6 => select(vec![DATA, HEADERS, RESET, PROMISE, CONTINUATION]), 1 => any::<u8>()];
    let payload = vec(any::<u8>(), 0..120);
    (kind, any::<u8>(), 0..4_u32, payload).prop_map(|(kind, flags, stream, payload)| {
        super::tests::frame(kind, flags, stream, &payload)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn traffic_of_real_peers_is_observed(all in vec(conversation(), 1..12), limits in limits()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut seen = runtime.block_on(observed(&all, limits));
        let mut expected: Vec<String> = all.iter().map(Conversation::summary).collect();
        seen.sort();
        expected.sort();
        prop_assert_eq!(seen, expected);
    }
}

proptest! {
    #[test]
    fn invalid_frames_do_no_harm(frames in vec(frame(), 0..30), responses in vec(frame(), 0..30), piece in 1..400_usize) {
        let now = Instant::now();
        let mut observer = HttpObserver::default();
        let requests = [PREFACE.to_vec(), frames.concat()].concat();
        let mut reported = 0;
        for piece in requests.chunks(piece) {
            reported += observer.request(piece, now).len();
        }
        for piece in responses.concat().chunks(piece) {
            reported += observer.response(piece, now).len();
        }
        reported += observer.end(now).len();
        prop_assert!(reported <= frames.len());
    }

    #[test]
    fn invalid_header_blocks_do_no_harm(blocks in vec(vec(any::<u8>(), 0..300), 0..20)) {
        let mut decoder = Decoder::default();
        for block in &blocks {
            if decoder.decode(block).is_none() {
                break;
            }
            decoder.check_table();
        }
    }
}
