use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::exact_check::check;
use super::fixture::{Behavior, TestPort, bodies};

/// Fragments of valid and invalid requests.
const FRAGMENTS: &[&str] = &[
    "GET / HTTP/1.1\r\n",
    "GET /a%20b?c=d HTTP/1.1\r\n",
    "POST / HTTP/1.1\r\n",
    "HEAD / HTTP/1.0\r\n",
    "CONNECT host:1 HTTP/1.1\r\n",
    "get / HTTP/1.1\r\n",
    "GET / HTTP/1.1\n",
    "GET /\r\n",
    "Host: example\r\n",
    "hOsT:example\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 5, 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding : chunked\r\n",
    "Upgrade: websocket\r\nConnection: upgrade\r\n",
    "Expect: 100-continue\r\n",
    " folded\r\n",
    "\r\n",
    "\n",
    "\r",
    "\0",
    "hello",
    "5\r\nhello\r\n",
    "5;x=y\r\nhello\r\n",
    "5 \r\nhello\r\n",
    "0\r\n\r\n",
    "0\r\nTrailer: x\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\n",
    "\u{16}\u{3}\u{1}",
];

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let fragment = prop_oneof![
        9 => select(FRAGMENTS).prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..20),
    ];
    vec(fragment, 0..12).prop_map(|fragments| fragments.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_application_receives_the_bytes_of_the_client(bytes in bytes(), pieces in vec(1_usize..40, 1..4)) {
        check(&bytes, &pieces);
    }
}

#[test]
fn the_corpus_is_forwarded_unchanged() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/exact");
    let mut seen = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        for piece in [1, 2, 3, 7, usize::MAX] {
            check(&bytes, &[piece]);
        }
        seen += 1;
    }
    assert!(seen > 20, "the corpus has {seen} files");
}

/// A request for a session, with its number in the path.
fn numbered(number: usize, who: &str, shape: usize) -> String {
    let head = format!("/{number} HTTP/1.1\r\nX-For: {who}\r\n");
    match shape {
        0 => format!("GET {head}\r\n"),
        1 => format!("POST {head}Content-Length: 4\r\n\r\nbody"),
        2 => format!("POST {head}Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nT: x\r\n\r\n"),
        _ => format!("\r\nPUT {head}Content-Length: 0\r\n\r\n"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn upstreams_get_their_requests_and_clients_get_responses_in_order(
        requests in vec((select(&["application", "alice", "bob"][..]), 0_usize..4), 0..12),
        piece in 1_usize..60,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let fixture = TestPort::new(Behavior::Responds);
            let (alice, _alices) = fixture.session("alice", Behavior::Responds);
            let (bob, _bobs) = fixture.session("bob", Behavior::Responds);
            let texts: Vec<String> = requests
                .iter()
                .enumerate()
                .map(|(number, (who, shape))| numbered(number, who, *shape))
                .collect();
            let mut client = fixture.connect();
            for part in texts.concat().as_bytes().chunks(piece) {
                client.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
            client.shutdown().await.unwrap();
            let mut responses = String::new();
            client.read_to_string(&mut responses).await.unwrap();
            let seen: Vec<(&str, &str)> = bodies(&responses)
                .into_iter()
                .map(|body| (body.split(' ').next().unwrap(), body.split(' ').nth(2).unwrap()))
                .collect();
            let paths: Vec<String> = (0..requests.len()).map(|number| format!("/{number}")).collect();
            let expected: Vec<(&str, &str)> = requests.iter().map(|(who, _)| *who).zip(paths.iter().map(String::as_str)).collect();
            assert_eq!(seen, expected);
            for upstream in [&fixture.application, &alice, &bob] {
                let theirs: String = texts
                    .iter()
                    .zip(&requests)
                    .filter(|(_, (who, _))| *who == upstream.name)
                    .map(|(text, _)| text.as_str())
                    .collect();
                assert_eq!(upstream.received(), theirs, "{}", upstream.name);
            }
        });
    }
}
