//! A member and an API server with stubbed responses, for tests.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::sync::mpsc;

use super::auth;
use super::clusters::{AuthMethod, Member};

pub(crate) type StubResponse = Response<UnsyncBoxBody<Bytes, io::Error>>;

pub(crate) fn member(method: AuthMethod) -> Member {
    Member {
        name: "east".to_owned(),
        server: http::Uri::from_static("https://east"),
        authorities: None,
        method,
        namespace: None,
    }
}

/// The administrator's Secret of that member.
pub(crate) fn token_secret(token: &str) -> Secret {
    let label = (auth::LABEL.to_owned(), "true".to_owned());
    Secret {
        metadata: ObjectMeta {
            name: Some("mirrord-cluster-east".to_owned()),
            labels: Some([label].into()),
            ..ObjectMeta::default()
        },
        data: Some(
            [(
                "bearerToken".to_owned(),
                ByteString(token.as_bytes().to_vec()),
            )]
            .into(),
        ),
        ..Secret::default()
    }
}

/// A client whose responses depend on the path and query of the request.
pub(crate) fn client(mut respond: impl FnMut(&str) -> StubResponse + Send + 'static) -> Client {
    let service = tower::service_fn(move |request: Request<_>| {
        let path_and_query = request
            .uri()
            .path_and_query()
            .map_or("", |path_and_query| path_and_query.as_str());
        std::future::ready(Ok::<_, io::Error>(respond(path_and_query)))
    });
    Client::new(service, "tools")
}

/// A client whose responses depend on the body of the request, if it has one.
pub(crate) fn storing(
    respond: impl Fn(Option<Value>) -> StubResponse + Send + Sync + 'static,
) -> Client {
    server(move |_, _, written| respond(written))
}

/// A client whose responses depend on the method of the request, its path and query, and its body, if it has one.
pub(crate) fn server(
    respond: impl Fn(&Method, &str, Option<Value>) -> StubResponse + Send + Sync + 'static,
) -> Client {
    let respond = Arc::new(respond);
    let service = tower::service_fn(move |request: Request<Body>| {
        let respond = Arc::clone(&respond);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let written = (!body.is_empty()).then(|| serde_json::from_slice(&body).unwrap());
            Ok::<_, io::Error>(respond(&head.method, &head.uri.to_string(), written))
        }
    });
    Client::new(service, "tools")
}

pub(crate) fn json_response(status: StatusCode, value: &Value) -> StubResponse {
    let body = Full::new(Bytes::from(value.to_string()));
    let body = body.map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

/// A response whose connection is reset after the head.
pub(crate) fn reset_response() -> StubResponse {
    let lost = io::Error::from(io::ErrorKind::ConnectionReset);
    Response::new(StreamBody::new(stream::iter([Err::<Frame<Bytes>, _>(lost)])).boxed_unsync())
}

/// A response that streams the values of a channel.
pub(crate) fn streaming_response(values: mpsc::UnboundedReceiver<Value>) -> StubResponse {
    let lines = stream::unfold(values, async |mut values| {
        let line = format!("{}\n", values.recv().await?);
        Some((Ok::<_, io::Error>(Frame::data(Bytes::from(line))), values))
    });
    Response::new(StreamBody::new(lines).boxed_unsync())
}

/// A response whose body never ends and has no data.
pub(crate) fn pending_response() -> StubResponse {
    let body = stream::pending::<Result<Frame<Bytes>, io::Error>>();
    Response::new(StreamBody::new(body).boxed_unsync())
}
