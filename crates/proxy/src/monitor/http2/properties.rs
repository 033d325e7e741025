//! What a real peer writes is understood, whatever it says; and what nobody sane writes does no harm.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::{RecvStream, client, server};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};

use super::super::requests::Observer;
use super::*;

/// A request and its answer, as they are sent.
#[derive(Debug, Clone)]
struct Spoken {
    method: &'static str,
    path: String,
    headers: HeaderMap,
    body: usize,
    status: u16,
    answer_headers: HeaderMap,
    answer: usize,
    has_trailers: bool,
}

impl Spoken {
    fn shown(&self) -> String {
        let Self {
            method,
            path,
            body,
            status,
            answer,
            ..
        } = self;
        format!("{method} {path} {status} {body} {answer}")
    }
}

/// What both ends allow: the size of their tables, and how much is on the way at once.
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

fn spoken() -> impl Strategy<Value = Spoken> {
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
        |((method, path, headers, body), (status, answer_headers, answer, has_trailers))| Spoken {
            method,
            path,
            headers,
            body,
            status,
            answer_headers,
            // What has no content must have none.
            answer: if status == 204 { 0 } else { answer },
            has_trailers,
        },
    )
}

/// Names are few, so that the table is used; values are anything. Now and then a head is longer than a frame.
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

/// Passes bytes on as the session does, with a look at them.
async fn pass_on(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    piece: usize,
    see: impl Fn(&[u8]),
) {
    let mut buffer = vec![0; piece];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        see(&buffer[..length]);
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

async fn serve(stream: DuplexStream, table: u32, all: Vec<Spoken>) {
    let mut builder = server::Builder::new();
    builder.header_table_size(table);
    let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
    let mut all = all.into_iter();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let spoken = all.next().unwrap();
        tokio::spawn(async move {
            read_all(&mut request.into_body()).await;
            let mut response = Response::new(());
            *response.status_mut() = spoken.status.try_into().unwrap();
            *response.headers_mut() = spoken.answer_headers;
            let ends = spoken.answer == 0 && !spoken.has_trailers;
            let mut body = respond.send_response(response, ends).unwrap();
            if spoken.answer > 0 {
                let bytes = vec![b'x'; spoken.answer].into();
                body.send_data(bytes, !spoken.has_trailers).unwrap();
            }
            if spoken.has_trailers {
                body.send_trailers(spoken.headers).unwrap();
            }
        });
    }
}

/// Asks for all at once, and waits for the ends of all answers.
async fn ask(stream: DuplexStream, table: u32, all: &[Spoken]) {
    let mut builder = client::Builder::new();
    builder.header_table_size(table);
    let (mut client, connection) = builder.handshake::<_, Bytes>(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut answers = Vec::new();
    for spoken in all {
        let request = Request::builder()
            .method(spoken.method)
            .uri(format!("http://shop{}", spoken.path));
        let mut request = request.body(()).unwrap();
        *request.headers_mut() = spoken.headers.clone();
        client = client.ready().await.unwrap();
        let (answer, mut body) = client.send_request(request, spoken.body == 0).unwrap();
        if spoken.body > 0 {
            body.send_data(vec![b'y'; spoken.body].into(), true)
                .unwrap();
        }
        answers.push(answer);
    }
    for answer in answers {
        let mut body = answer.await.unwrap().into_body();
        read_all(&mut body).await;
        body.trailers().await.unwrap();
    }
    connection.abort();
}

/// What is seen of a conversation between two peers.
async fn seen(all: &[Spoken], limits: Limits) -> Vec<String> {
    let (client, from_client) = tokio::io::duplex(limits.piece.max(64));
    let (to_server, server) = tokio::io::duplex(limits.piece.max(64));
    let observer = Arc::new(Mutex::new((Observer::default(), Vec::new())));
    let (client_reads, client_writes) = tokio::io::split(from_client);
    let (server_reads, server_writes) = tokio::io::split(to_server);
    let see = Arc::clone(&observer);
    tokio::spawn(pass_on(
        client_reads,
        server_writes,
        limits.piece,
        move |bytes| {
            let (observer, seen) = &mut *see.lock().unwrap();
            seen.extend(observer.request(bytes, Instant::now()));
        },
    ));
    let see = Arc::clone(&observer);
    tokio::spawn(pass_on(
        server_reads,
        client_writes,
        limits.piece,
        move |bytes| {
            let (observer, seen) = &mut *see.lock().unwrap();
            seen.extend(observer.response(bytes, Instant::now()));
        },
    ));
    tokio::spawn(serve(server, limits.server_table, all.to_vec()));
    ask(client, limits.client_table, all).await;
    let (_, seen) = &mut *observer.lock().unwrap();
    seen.iter().map(super::tests::shown).collect()
}

/// A frame of any kind, mostly of those that are looked at.
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
    fn what_a_real_peer_writes_is_understood(all in vec(spoken(), 1..12), limits in limits()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut seen = runtime.block_on(seen(&all, limits));
        let mut expected: Vec<String> = all.iter().map(Spoken::shown).collect();
        seen.sort();
        expected.sort();
        prop_assert_eq!(seen, expected);
    }
}

proptest! {
    #[test]
    fn no_frames_do_harm(frames in vec(frame(), 0..30), answers in vec(frame(), 0..30), piece in 1..400_usize) {
        let now = Instant::now();
        let mut observer = Observer::default();
        let requests = [PREFACE.to_vec(), frames.concat()].concat();
        let mut told = 0;
        for piece in requests.chunks(piece) {
            told += observer.request(piece, now).len();
        }
        for piece in answers.concat().chunks(piece) {
            told += observer.response(piece, now).len();
        }
        told += observer.end(now).len();
        prop_assert!(told <= frames.len());
    }

    #[test]
    fn no_heads_do_harm(blocks in vec(vec(any::<u8>(), 0..300), 0..20)) {
        let mut decoder = Decoder::default();
        for block in &blocks {
            if decoder.read(block).is_none() {
                break;
            }
            decoder.check();
        }
    }
}
