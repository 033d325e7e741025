//! Finds HTTP requests and responses in the bytes of a connection, of HTTP/1 or HTTP/2.

use std::time::Instant;

use super::http1::{Exchange, Http1Observer};
use super::http2::{Http2Observer, PREFACE};

/// The maximum number of response bytes that are buffered until the protocol is known, for a program that sends first.
const MAX_EARLY_RESPONSE: usize = 1024;

/// Observes both directions of a connection.
#[derive(Debug)]
pub(super) enum HttpObserver {
    /// The protocol is not known yet.
    Undetected {
        requests: Vec<u8>,
        responses: Vec<u8>,
    },
    Http1(Box<Http1Observer>),
    Http2(Box<Http2Observer>),
}

impl Default for HttpObserver {
    fn default() -> Self {
        Self::Undetected {
            requests: Vec::new(),
            responses: Vec::new(),
        }
    }
}

impl HttpObserver {
    /// Observes bytes of the client.
    pub(super) fn request(&mut self, bytes: &[u8], now: Instant) -> Vec<Exchange> {
        match self {
            Self::Undetected { requests, .. } => {
                if requests.is_empty() && !PREFACE.starts_with(bytes.get(..1).unwrap_or_default()) {
                    return self.detected(Self::Http1(Box::default()), bytes, now);
                }
                requests.extend_from_slice(bytes);
                let start = std::mem::take(requests);
                let common = start.len().min(PREFACE.len());
                match (
                    start.get(..common) == PREFACE.get(..common),
                    start.get(PREFACE.len()..),
                ) {
                    (false, _) => self.detected(Self::Http1(Box::default()), &start, now),
                    (true, Some(rest)) => self.detected(Self::Http2(Box::default()), rest, now),
                    (true, None) => {
                        if let Self::Undetected { requests, .. } = self {
                            *requests = start;
                        }
                        Vec::new()
                    }
                }
            }
            Self::Http1(observer) => observer.request(bytes, now),
            Self::Http2(observer) => observer.request(bytes, now),
        }
    }

    /// Observes bytes of the program.
    pub(super) fn response(&mut self, bytes: &[u8], now: Instant) -> Vec<Exchange> {
        match self {
            Self::Undetected { responses, .. } => {
                responses.extend_from_slice(bytes);
                if responses.len() <= MAX_EARLY_RESPONSE {
                    return Vec::new();
                }
                self.detected(Self::Http1(Box::default()), &[], now)
            }
            Self::Http1(observer) => observer.response(bytes, now),
            Self::Http2(observer) => observer.response(bytes, now),
        }
    }

    /// The connection has ended. Returns unfinished exchanges as far as they are known.
    pub(super) fn end(&mut self, now: Instant) -> Vec<Exchange> {
        match self {
            Self::Undetected { .. } => Vec::new(),
            Self::Http1(observer) => observer.end(now),
            Self::Http2(observer) => observer.end(now),
        }
    }

    /// Continues with the observer of the detected protocol.
    fn detected(&mut self, observer: Self, requests: &[u8], now: Instant) -> Vec<Exchange> {
        let Self::Undetected { responses, .. } = std::mem::replace(self, observer) else {
            return Vec::new();
        };
        let mut finished = self.request(requests, now);
        finished.extend(self.response(&responses, now));
        finished
    }
}
