//! Detects the protocol of a connection from the client's first bytes.

use crate::http1::head::{RequestScanner, Scan};

/// The HTTP/2 client preface, sent with prior knowledge that the server supports HTTP/2.
pub(crate) const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The bytes that identify a TLS ClientHello: the header of a handshake record, in any version from SSL 3.0 to TLS 1.3,
/// and the type of the handshake message.
const TLS_RECORD_LENGTH: usize = 6;

/// The protocol of a connection, as far as splitting needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1, split by request.
    Http1,
    /// HTTP/2 with prior knowledge, split by stream.
    Http2,
    /// A TLS ClientHello, and the target's certificate is available.
    Tls,
    /// Any other protocol, forwarded unchanged.
    Raw,
}

/// Detects the protocol of a client's first bytes. `None` means that more bytes are needed. It is never returned once only
/// [`Protocol::Raw`] is possible, so a connection never stalls waiting for bytes that the client does not send.
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

/// Whether a server's first bytes are an HTTP/2 SETTINGS frame. A server may send it before the client has sent anything,
/// so the client's bytes still determine the protocol.
pub(crate) fn is_http2_settings(bytes: &[u8]) -> bool {
    matches!(bytes, [0, high, low, 4, 0, 0, 0, 0, 0, ..]
        if u16::from_be_bytes([*high, *low]).is_multiple_of(6))
}

/// Whether the bytes are a prefix of a TLS ClientHello.
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
    fn protocols_are_detected_from_the_first_bytes() {
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
    fn a_detected_protocol_does_not_change_with_more_bytes() {
        let whole = b"OPTIONS /path?query HTTP/1.1\r\nHost: example\r\n\r\n";
        let detected: Vec<_> = (0..=whole.len())
            .map(|length| detect(&whole[..length], true))
            .collect();
        let first = detected.iter().position(Option::is_some).unwrap();
        assert!(
            detected[first..]
                .iter()
                .all(|one| *one == Some(Protocol::Http1))
        );
    }
}
