//! Whether a filter selects requests, or matches all of them.
//!
//! A filter can match every request in many ways (`.*`, `^/`, `x|`, `^(?!nothing)`), so its text says little. It is matched
//! against a fixed set of different requests instead. They have in common only what all requests have in common: a host, a
//! user agent, and a path that begins with a slash.

use http::Request;
use http::request::Parts;
use serde_json::{Value, json};

use super::{Filter, RequestView};

/// The method, the address and the headers of a request.
type Sample = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

#[rustfmt::skip] // A table is read by its columns.
const SAMPLES: [Sample; 9] = [
    ("GET",     "http://10.1.2.3:8080/",                  &[("user-agent", "Go-http-client/1.1")]),
    ("GET",     "http://shop.example/index.html",         &[("user-agent", "Mozilla/5.0 (X11)"), ("accept", "text/html")]),
    ("HEAD",    "http://[fd00::7]/a/b/c/d.png",           &[("user-agent", "curl/8.5.0"), ("accept", "*/*")]),
    ("POST",    "http://cart.shop.svc/shop.Cart/AddItem", &[("user-agent", "grpc-java/1.60"), ("te", "trailers")]),
    ("POST",    "http://API/v1/orders?id=7&all",          &[("user-agent", "python-requests/2.31"), ("x-user", "0")]),
    ("PUT",     "http://localhost/%7Eada/x%20y",          &[("user-agent", "axios"), ("cookie", "id=1; theme=dark")]),
    ("PATCH",   "http://a/0",                             &[("user-agent", "okhttp/4"), ("authorization", "Basic eDp5")]),
    ("DELETE",  "http://b:1/_internal-task.v2",           &[("user-agent", "-"), ("traceparent", "00-1-2-01")]),
    ("OPTIONS", "http://c.d/?",                           &[("user-agent", "7"), ("origin", "null")]),
];

impl Filter {
    /// Whether the filter matches every request of a fixed set of different requests. Such a filter selects nothing.
    ///
    /// A part for JSON bodies counts as matching if it matches all of several different bodies.
    pub fn matches_everything(&self) -> bool {
        let bodies = bodies();
        samples().all(|sample| {
            let request = RequestView::http2(&sample);
            bodies.iter().all(|body| self.matches(&request, Some(body)))
        })
    }
}

fn samples() -> impl Iterator<Item = Parts> {
    SAMPLES.iter().filter_map(|(method, uri, headers)| {
        let request = Request::builder().method(*method).uri(*uri);
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        Some(request.body(()).ok()?.into_parts().0)
    })
}

fn bodies() -> [Value; 3] {
    [
        json!({"id": 7, "user": {"name": "ada"}}),
        json!([{"sku": "x-1", "price": 0.5}, null]),
        json!({"ok": true, "items": [1, 2]}),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(pattern: &str) -> Filter {
        Filter::header(pattern).unwrap()
    }

    fn path(pattern: &str) -> Filter {
        Filter::path(pattern).unwrap()
    }

    fn body(query: &str, pattern: &str) -> Filter {
        Filter::json_body(query, pattern).unwrap()
    }

    fn any_of(filters: Vec<Filter>) -> Filter {
        Filter::any_of(filters).unwrap()
    }

    fn all_of(filters: Vec<Filter>) -> Filter {
        Filter::all_of(filters).unwrap()
    }

    #[test]
    fn all_samples_are_requests() {
        assert_eq!(samples().count(), SAMPLES.len());
    }

    #[test]
    fn filters_that_match_everything_are_recognized() {
        let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
        for filter in [
            header(".*"),
            header(""),
            header("^"),
            header("x|"),
            header("x-user: ada|"),
            header("x-user: ada|host: "),
            header("^host: .+$"),
            header("^user-agent: "),
            header("^(?!x-nothing)"),
            header("(?s)."),
            path(".*"),
            path("^/"),
            path("/"),
            path("x|"),
            path("^(?!/healthz)"),
            path("^/.*$|^$"),
            any_of(methods.map(Filter::method).into()),
            body("$", ".*"),
            body("$..*", ""),
            any_of(vec![header("x-user: ada"), path(".")]),
            any_of(vec![Filter::method("GET"), path("^/"), body("$", "1")]),
            all_of(vec![header(".*"), path("^/"), body("$", "")]),
            all_of(vec![any_of(vec![path("^/cart"), path("")]), header("host")]),
        ] {
            assert!(filter.matches_everything(), "{filter:?}");
        }
    }

    #[test]
    fn filters_that_select_requests_are_not() {
        for filter in [
            header("x-user: ada"),
            header("^x-user: "),
            header("^accept: "),
            header("^host: shop\\.example$"),
            path("^/api"),
            path("^/[a-z]+$"),
            path("\\?"),
            Filter::method("GET"),
            body("$.user.name", "ada"),
            body("$.id", ""),
            any_of(vec![header("x-user: ada"), path("^/api")]),
            all_of(vec![header(".*"), path("^/cart")]),
            all_of(vec![path("^/"), body("$.id", "7")]),
        ] {
            assert!(!filter.matches_everything(), "{filter:?}");
        }
    }
}
