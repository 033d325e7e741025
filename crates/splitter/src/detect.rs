//! What a connection speaks, told from the first bytes of its client.

use crate::http1::head::{RequestScanner, Scan};

/// What a client of HTTP/2 sends first when it knows that the server speaks HTTP/2.
pub(crate) const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A TLS record that carries a handshake, in any version from SSL 3.0 to TLS 1.3, and in it the first message of a client.
const TLS_RECORD_LENGTH: usize = 6;

/// What a connection speaks, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Requests can be told apart.
    Http1,
    /// Requests can be told apart, and the client knows that the server speaks HTTP/2.
    Http2,
    /// A client's first message, and there are certificates to answer it with.
    Tls,
    /// Anything else: passed on as it is.
    Raw,
}

/// Judges a client's first bytes, or asks for more with `None`. It never asks for more once the bytes can no longer
/// become anything but [`Protocol::Raw`], so nobody waits for bytes that do not come.
pub fn detect(bytes: &[u8], have_certificates: bool) -> Option<Protocol> {
    if bytes.is_empty() {
        return None;
    }
    if bytes.starts_with(HTTP2_PREFACE) {
        return Some(Protocol::Http2);
    }
    if HTTP2_PREFACE.starts_with(bytes) {
        return None;
    }
    if have_certificates && looks_like_tls(bytes) {
        return (bytes.len() >= TLS_RECORD_LENGTH).then_some(Protocol::Tls);
    }
    let mut scanner = RequestScanner::default();
    match scanner.scan(bytes) {
        Scan::Malformed => Some(Protocol::Raw),
        Scan::Complete(_) => Some(Protocol::Http1),
        Scan::More => scanner.has_request_line().then_some(Protocol::Http1),
    }
}

/// Whether a server's first bytes are those of HTTP/2. It may send its settings before the client has spoken, which
/// therefore still decides.
pub(crate) fn is_http2_settings(bytes: &[u8]) -> bool {
    matches!(bytes, [0, high, low, 4, 0, 0, 0, 0, 0, ..]
        if u16::from_be_bytes([*high, *low]).is_multiple_of(6))
}

/// Whether the bytes are a client's first TLS message, as far as they go.
fn looks_like_tls(bytes: &[u8]) -> bool {
    let expected: [&dyn Fn(u8) -> bool; TLS_RECORD_LENGTH] = [
        &|kind| kind == 0x16,
        &|major| major == 3,
        &|minor| minor <= 4,
        &|_| true,
        &|_| true,
        &|message| message == 1,
    ];
    bytes
        .iter()
        .zip(expected)
        .all(|(byte, is_expected)| is_expected(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_decide() {
        let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
        let cases: &[(&[u8], bool, Option<Protocol>)] = &[
            (b"", false, None),
            (b"G", false, None),
            (b"GET /", false, None),
            (b"GET / HTTP/1.1\r", false, None),
            (b"GET / HTTP/1.1\r\n", false, Some(Protocol::Http1)),
            (b"GET / HTTP/1.0\r\n\r\n", false, Some(Protocol::Http1)),
            (b"\r\nGET / HTTP/1.1\r\n", false, Some(Protocol::Http1)),
            (
                b"PROPFIND /\xc3\xa9 HTTP/1.1\r\nHo",
                false,
                Some(Protocol::Http1),
            ),
            (b"M-SEARCH * HTTP/1.1\r\n", false, Some(Protocol::Http1)),
            (b"GET / HTTP/1.1\n", false, Some(Protocol::Raw)),
            (b"GET / HTTP/2.0\r\n", false, Some(Protocol::Raw)),
            (b"GET /\r\n", false, Some(Protocol::Raw)),
            (b"GET  /", false, Some(Protocol::Raw)),
            (b"get /", false, Some(Protocol::Raw)),
            (b"PING\r\n", false, Some(Protocol::Raw)),
            (b"*1\r\n$4\r\nPING\r\n", false, Some(Protocol::Raw)),
            (b"EHLO example.com\r\n", false, Some(Protocol::Raw)),
            (b"SSH-2.0-OpenSSH_9\r\n", false, Some(Protocol::Raw)),
            (
                b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
                false,
                Some(Protocol::Raw),
            ),
            (b"PRI", false, None),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", false, None),
            (HTTP2_PREFACE, false, Some(Protocol::Http2)),
            (b"PRI * HTTP/2.0\r\n\r\nXX", false, Some(Protocol::Raw)),
            (hello, false, Some(Protocol::Raw)),
            (hello, true, Some(Protocol::Tls)),
            (&hello[..5], true, None),
            (b"\x16\x03\x01\x02\x00\x02", true, Some(Protocol::Raw)),
            (b"\x16\x04", true, Some(Protocol::Raw)),
        ];
        for (bytes, have_certificates, expected) in cases {
            assert_eq!(
                detect(bytes, *have_certificates),
                *expected,
                "{:?}",
                String::from_utf8_lossy(bytes)
            );
        }
    }

    #[test]
    fn a_judgement_does_not_change_when_more_bytes_come() {
        let whole = b"OPTIONS /path?query HTTP/1.1\r\nHost: example\r\n\r\n";
        let judged: Vec<_> = (0..=whole.len())
            .map(|length| detect(&whole[..length], true))
            .collect();
        let first = judged.iter().position(Option::is_some).unwrap();
        assert!(
            judged[first..]
                .iter()
                .all(|one| *one == Some(Protocol::Http1))
        );
    }
}
