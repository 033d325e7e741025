//! A member, and an API server that answers as a test says.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::sync::mpsc;

use super::clusters::{Member, Method};

pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

pub(crate) fn member(method: Method) -> Member {
    Member {
        name: "east".to_owned(),
        server: http::Uri::from_static("https://east"),
        authorities: Vec::new(),
        method,
        namespace: None,
    }
}

/// The answer to each request is by its path and its query.
pub(crate) fn client(mut answer: impl FnMut(&str) -> Answer + Send + 'static) -> Client {
    let answering = tower::service_fn(move |request: Request<_>| {
        let asked = request
            .uri()
            .path_and_query()
            .map_or("", |asked| asked.as_str());
        std::future::ready(Ok::<_, io::Error>(answer(asked)))
    });
    Client::new(answering, "tools")
}

/// The answer to each request is by what is to be written, if something is.
pub(crate) fn storing(answer: impl Fn(Option<Value>) -> Answer + Send + Sync + 'static) -> Client {
    let answer = Arc::new(answer);
    let answering = tower::service_fn(move |request: Request<Body>| {
        let answer = Arc::clone(&answer);
        async move {
            let body = request.into_body().collect_bytes().await.unwrap();
            let written = (!body.is_empty()).then(|| serde_json::from_slice(&body).unwrap());
            Ok::<_, io::Error>(answer(written))
        }
    });
    Client::new(answering, "tools")
}

pub(crate) fn said(status: StatusCode, value: &Value) -> Answer {
    let body = Full::new(Bytes::from(value.to_string()));
    let body = body.map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer
}

/// An answer that begins, and then the connection is lost.
pub(crate) fn cut() -> Answer {
    let lost = io::Error::from(io::ErrorKind::ConnectionReset);
    Response::new(StreamBody::new(stream::iter([Err::<Frame<Bytes>, _>(lost)])).boxed_unsync())
}

/// An answer that says one thing after the other, each when a test does.
pub(crate) fn telling(told: mpsc::UnboundedReceiver<Value>) -> Answer {
    let told = stream::unfold(told, async |mut told| {
        let line = format!("{}\n", told.recv().await?);
        Some((Ok::<_, io::Error>(Frame::data(Bytes::from(line))), told))
    });
    Response::new(StreamBody::new(told).boxed_unsync())
}

/// An answer that goes on for ever, and says nothing.
pub(crate) fn silence() -> Answer {
    let nothing = stream::pending::<Result<Frame<Bytes>, io::Error>>();
    Response::new(StreamBody::new(nothing).boxed_unsync())
}
