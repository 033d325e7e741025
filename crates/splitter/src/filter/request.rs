//! A request head as filters see it, independent of the HTTP version.

use std::cell::OnceCell;

use http::request::Parts;
use httparse::Header;

use crate::http1::head::RequestHead;

/// A request's head.
#[derive(Debug)]
pub(crate) struct RequestView<'head> {
    source: Source<'head>,
    /// All headers that are valid UTF-8, as `name: value`. Built lazily, once.
    lines: OnceCell<HeaderLines>,
}

#[derive(Debug, Clone, Copy)]
enum Source<'head> {
    Http1 {
        method: &'head str,
        target: &'head str,
        headers: &'head [Header<'head>],
    },
    Http2(&'head Parts),
}

#[derive(Debug, Default)]
struct HeaderLines {
    text: String,
    ends: Vec<usize>,
}

impl<'head> RequestView<'head> {
    pub(crate) fn http1(head: &'head RequestHead<'_, '_>) -> Self {
        Self::new(Source::Http1 {
            method: head.method,
            target: head.target,
            headers: head.headers,
        })
    }

    pub(crate) fn http2(parts: &'head Parts) -> Self {
        Self::new(Source::Http2(parts))
    }

    fn new(source: Source<'head>) -> Self {
        Self {
            source,
            lines: OnceCell::new(),
        }
    }

    pub(crate) fn method(&self) -> &str {
        match self.source {
            Source::Http1 { method, .. } => method,
            Source::Http2(parts) => parts.method.as_str(),
        }
    }

    pub(crate) fn path_and_query(&self) -> &str {
        match self.source {
            Source::Http1 { target, .. } => without_scheme_and_authority(target),
            Source::Http2(parts) => parts
                .uri
                .path_and_query()
                .map_or("/", http::uri::PathAndQuery::as_str),
        }
    }

    pub(crate) fn path(&self) -> &str {
        let all = self.path_and_query();
        all.split_once('?').map_or(all, |(path, _)| path)
    }

    /// The headers that are valid UTF-8, as `name: value`.
    pub(crate) fn header_lines(&self) -> impl Iterator<Item = &str> {
        let lines = self.lines.get_or_init(|| self.write_lines());
        let starts = std::iter::once(0).chain(lines.ends.iter().copied());
        starts
            .zip(&lines.ends)
            .map(|(start, end)| &lines.text[start..*end])
    }

    /// The first value of a header, if it is valid UTF-8.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        match self.source {
            Source::Http1 { headers, .. } => headers
                .iter()
                .find(|header| header.name.eq_ignore_ascii_case(name))
                .and_then(|header| std::str::from_utf8(header.value).ok()),
            Source::Http2(parts) => parts.headers.get(name)?.to_str().ok(),
        }
    }

    fn write_lines(&self) -> HeaderLines {
        let mut lines = HeaderLines::default();
        match self.source {
            Source::Http1 { headers, .. } => {
                for header in headers {
                    lines.push(header.name, header.value);
                }
            }
            Source::Http2(parts) => {
                // HTTP/2 has the host in a pseudo-header. A filter on `host` should work in both versions.
                if let Some(authority) = parts.uri.authority()
                    && !parts.headers.contains_key(http::header::HOST)
                {
                    lines.push("host", authority.as_str().as_bytes());
                }
                for (name, value) in &parts.headers {
                    lines.push(name.as_str(), value.as_bytes());
                }
            }
        }
        lines
    }
}

impl HeaderLines {
    fn push(&mut self, name: &str, value: &[u8]) {
        let Ok(value) = std::str::from_utf8(value) else {
            return;
        };
        self.text.push_str(name);
        self.text.push_str(": ");
        self.text.push_str(value.trim_matches([' ', '\t']));
        self.ends.push(self.text.len());
    }
}

/// The path of an absolute-form target such as `http://host/path`, which clients send to proxies.
fn without_scheme_and_authority(target: &str) -> &str {
    if target.starts_with('/') {
        return target;
    }
    let Some((_, rest)) = target.split_once("://") else {
        return target;
    };
    match rest.find(['/', '?']) {
        Some(start) if rest[start..].starts_with('/') => &rest[start..],
        _ => "/",
    }
}
