//! The page, which is built into the program.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};

use super::{Shared, dev};

/// Names and contents of the files.
const PAGE: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/page.rs"));
const INDEX: &str = "index.html";
const MISSING: &str = include_str!("assets/missing.html");

pub(super) fn is_missing() -> bool {
    PAGE.is_empty()
}

pub(super) async fn serve(State(shared): State<Shared>, request: Request<Body>) -> Response {
    if let Some(server) = &shared.dev {
        return dev::forward(server, request).await;
    }
    find(request.uri())
}

fn find(uri: &Uri) -> Response {
    let name = uri.path().trim_start_matches('/');
    let name = if name.is_empty() { INDEX } else { name };
    if is_missing() && name == INDEX {
        let kind = [(CONTENT_TYPE, "text/html; charset=utf-8")];
        return (kind, MISSING).into_response();
    }
    let Some((name, bytes)) = PAGE.iter().find(|(other, _)| *other == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    // The names of assets contain a hash of their content; that of the page does not.
    let cache_control = if name.starts_with("assets/") {
        "private, max-age=31536000, immutable"
    } else {
        "no-store"
    };
    let headers = [(CONTENT_TYPE, kind(name)), (CACHE_CONTROL, cache_control)];
    (headers, *bytes).into_response()
}

fn kind(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}
