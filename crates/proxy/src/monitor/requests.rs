//! Requests and their answers in the bytes of a connection, of whichever HTTP it speaks.

use std::time::Instant;

use super::http1::{self, Exchange};
use super::http2::{self, PREFACE};

/// So much of a program that speaks first is kept until it is known what is spoken.
const LONGEST_GREETING: usize = 1024;

/// Both directions of a connection.
#[derive(Debug)]
pub(super) enum Observer {
    /// The client has not said enough.
    New {
        requests: Vec<u8>,
        responses: Vec<u8>,
    },
    Http1(Box<http1::Observer>),
    Http2(Box<http2::Observer>),
}

impl Default for Observer {
    fn default() -> Self {
        Self::New {
            requests: Vec::new(),
            responses: Vec::new(),
        }
    }
}

impl Observer {
    /// Bytes of the client.
    pub(super) fn request(&mut self, bytes: &[u8], now: Instant) -> Vec<Exchange> {
        match self {
            Self::New { requests, .. } => {
                if requests.is_empty() && !PREFACE.starts_with(bytes.get(..1).unwrap_or_default()) {
                    return self.begin(Self::Http1(Box::default()), bytes, now);
                }
                requests.extend_from_slice(bytes);
                let said = std::mem::take(requests);
                let common = said.len().min(PREFACE.len());
                match (
                    said.get(..common) == PREFACE.get(..common),
                    said.get(PREFACE.len()..),
                ) {
                    (false, _) => self.begin(Self::Http1(Box::default()), &said, now),
                    (true, Some(rest)) => self.begin(Self::Http2(Box::default()), rest, now),
                    (true, None) => {
                        if let Self::New { requests, .. } = self {
                            *requests = said;
                        }
                        Vec::new()
                    }
                }
            }
            Self::Http1(observer) => observer.request(bytes, now),
            Self::Http2(observer) => observer.request(bytes, now),
        }
    }

    /// Bytes of the program.
    pub(super) fn response(&mut self, bytes: &[u8], now: Instant) -> Vec<Exchange> {
        match self {
            Self::New { responses, .. } => {
                responses.extend_from_slice(bytes);
                if responses.len() <= LONGEST_GREETING {
                    return Vec::new();
                }
                self.begin(Self::Http1(Box::default()), &[], now)
            }
            Self::Http1(observer) => observer.response(bytes, now),
            Self::Http2(observer) => observer.response(bytes, now),
        }
    }

    /// Nothing more comes: what was asked is told with what is known.
    pub(super) fn end(&mut self, now: Instant) -> Vec<Exchange> {
        match self {
            Self::New { .. } => Vec::new(),
            Self::Http1(observer) => observer.end(now),
            Self::Http2(observer) => observer.end(now),
        }
    }

    /// It is known what is spoken.
    fn begin(&mut self, known: Self, requests: &[u8], now: Instant) -> Vec<Exchange> {
        let Self::New { responses, .. } = std::mem::replace(self, known) else {
            return Vec::new();
        };
        let mut finished = self.request(requests, now);
        finished.extend(self.response(&responses, now));
        finished
    }
}
