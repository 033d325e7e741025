//! A client for an API server that is not trusted, such as that of a member cluster: no response can fill the memory.
//!
//! A response is limited as a whole. A watch lasts for as long as the server wants, so each of its events is limited instead.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use kube::Client;
use kube::client::Body;

/// The limit of a response, and of an event of a watch. The objects of a page of a list, or one object, are smaller.
pub const MAX_RESPONSE_BYTES: usize = 4 * 1024 * 1024;
/// The limit of an error, which is a short text.
pub const MAX_ERROR_BYTES: usize = 64 * 1024;

/// The same client, with limits.
pub fn bounded(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let is_watch = is_watch(request.uri().query().unwrap_or_default());
            let response = client.send(request).await?;
            Ok::<_, kube::Error>(limited(response, is_watch))
        }
    });
    Client::new(service, namespace)
}

fn is_watch(query: &str) -> bool {
    query
        .split('&')
        .any(|pair| matches!(pair, "watch=true" | "watch=1"))
}

/// The body of an upgraded connection has no bytes, so that connection is not limited.
fn limited(response: Response<Body>, is_watch: bool) -> Response<Limited> {
    let limit = match response.status() {
        code if code.is_success() || code == StatusCode::SWITCHING_PROTOCOLS => MAX_RESPONSE_BYTES,
        _ => MAX_ERROR_BYTES,
    };
    let is_watch = is_watch && response.status().is_success();
    response.map(|body| Limited {
        body,
        limit,
        used: 0,
        is_watch,
    })
}

#[derive(Debug, thiserror::Error)]
#[error("the response is larger than {limit} bytes, which is the limit")]
struct TooLarge {
    limit: usize,
}

struct Limited {
    body: Body,
    limit: usize,
    /// The bytes of the response, or of the current event of a watch.
    used: usize,
    is_watch: bool,
}

impl Limited {
    fn count(&mut self, bytes: &[u8]) -> Result<(), TooLarge> {
        let limit = self.limit;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.used = self.used.saturating_add(line.len());
            if self.used > limit {
                return Err(TooLarge { limit });
            }
            if self.is_watch && line.ends_with(b"\n") {
                self.used = 0;
            }
        }
        Ok(())
    }
}

impl HttpBody for Limited {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            None => return Poll::Ready(None),
        };
        if let Some(bytes) = frame.data_ref()
            && let Err(error) = self.count(bytes)
        {
            return Poll::Ready(Some(Err(error.into())));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(is_watch: bool, limit: usize, chunks: &[&str]) -> bool {
        let mut limited = Limited {
            body: Body::empty(),
            limit,
            used: 0,
            is_watch,
        };
        let mut chunks = chunks.iter();
        chunks.all(|chunk| limited.count(chunk.as_bytes()).is_ok())
    }

    #[test]
    fn a_response_is_limited_as_a_whole_and_a_watch_by_its_events() {
        // Whether it is a watch, the chunks, and whether they fit into 4 bytes.
        let cases: [(bool, &[&str], bool); 9] = [
            (false, &["1234"], true),
            (false, &["12", "34", "5"], false),
            (false, &["123\n", "1"], false),
            (true, &["123\n", "123\n", "123\n"], true),
            (true, &["123\n123\n12", "3\n"], true),
            (true, &["12345\n"], false),
            (true, &["12", "34", "5"], false),
            (true, &["1\n1234", "5\n"], false),
            (true, &["\n\n\n\n\n\n"], true),
        ];
        for (is_watch, chunks, expected) in cases {
            assert_eq!(counted(is_watch, 4, chunks), expected, "{chunks:?}");
        }
    }

    #[test]
    fn watches_are_recognized() {
        let cases = [
            ("watch=true", true),
            ("limit=5&watch=1", true),
            ("labelSelector=watch%3Dtrue", false),
            ("watch=false", false),
            ("", false),
        ];
        for (query, expected) in cases {
            assert_eq!(is_watch(query), expected, "{query}");
        }
    }
}
