//! Serves the page from a development server.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Forwards the request to the development server, without the token.
pub(super) async fn forward(server: &str, request: Request<Body>) -> Response {
    fetch(server, request.uri()).await.unwrap_or_else(|error| {
        let text =
            format!("{server} does not respond ({error:#}): run `npm run dev` in web/monitor\n");
        (StatusCode::BAD_GATEWAY, text).into_response()
    })
}

async fn fetch(server: &str, uri: &Uri) -> anyhow::Result<Response> {
    let server: Uri = server.parse()?;
    let host = server
        .authority()
        .map_or("localhost:5173", |host| host.as_str());
    let stream = TcpStream::connect(host).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let query = uri.query().filter(|query| !query.contains("token="));
    let path = match query {
        Some(query) => format!("{}?{query}", uri.path()),
        None => uri.path().to_owned(),
    };
    let request = axum::http::Request::get(path).header(HOST, host);
    let response = sender.send_request(request.body(Body::empty())?).await?;
    let (parts, body) = response.into_parts();
    let kind = parts.headers.get(CONTENT_TYPE).cloned();
    let body = body.collect().await?.to_bytes();
    let mut response = (parts.status, body).into_response();
    if let Some(kind) = kind {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    Ok(response)
}
