use serde_json::json;

use super::*;
use crate::http1::head::parse_request;

fn header(pattern: &str) -> Filter {
    Filter::header(pattern).unwrap()
}

fn path(pattern: &str) -> Filter {
    Filter::path(pattern).unwrap()
}

fn body(query: &str, pattern: &str) -> Filter {
    Filter::json_body(query, pattern).unwrap()
}

fn match_head(filter: &Filter, head: &str) -> Verdict {
    parse_request(head.as_bytes(), |head, _| {
        filter.match_head(&RequestView::http1(head))
    })
    .unwrap()
}

#[test]
fn request_heads_are_matched() {
    let get = "GET /api/items?user=7 HTTP/1.1\r\nHost: api.example\r\nUser-Agent: curl/8\r\nX-Team:blue\r\n\r\n";
    let probe = "GET /healthz HTTP/1.1\r\nHost: api.example\r\nUser-Agent: kube-probe/1.29\r\n\r\n";
    let proxied = "POST http://api.example/api HTTP/1.1\r\nHost: api.example\r\n\r\n";
    let cases = [
        (header("host: api\\..+"), get, true),
        (header("^x-team: blue$"), get, true),
        (header("^X-TEAM: BLUE$"), get, true),
        (header("^x-team: green$"), get, false),
        (header("^x-team:blue$"), get, false),
        (header("^User-Agent: (?!kube-probe)"), get, true),
        (header("^User-Agent: (?!kube-probe)"), probe, false),
        (path("^/api/items$"), get, true),
        (path("user=7$"), get, true),
        (path("^/API"), get, true),
        (path("^(?!/health)"), get, true),
        (path("^(?!/health)"), probe, false),
        (path("^/api$"), proxied, true),
        (Filter::method("get"), get, true),
        (Filter::method("POST"), get, false),
        (
            Filter::all_of(vec![header("x-team"), path("api")]).unwrap(),
            get,
            true,
        ),
        (
            Filter::all_of(vec![header("x-team"), path("nowhere")]).unwrap(),
            get,
            false,
        ),
        (
            Filter::any_of(vec![header("nothing"), path("api")]).unwrap(),
            get,
            true,
        ),
        (
            Filter::any_of(vec![header("nothing"), path("nowhere")]).unwrap(),
            get,
            false,
        ),
    ];
    for (filter, head, expected) in cases {
        assert_eq!(
            match_head(&filter, head),
            expected.into(),
            "{filter:?} on {head:?}"
        );
    }
}

#[test]
fn a_body_is_only_needed_when_the_result_depends_on_it() {
    let head = "POST /buildings HTTP/1.1\r\nHost: a\r\n\r\n";
    let books = || body("$.books[*]", "^1$");
    let cases = [
        (books(), Verdict::NeedsBody),
        (
            Filter::AllOf(vec![books(), path("build")]),
            Verdict::NeedsBody,
        ),
        (
            Filter::AllOf(vec![books(), path("other")]),
            Verdict::NoMatch,
        ),
        (Filter::AnyOf(vec![books(), path("build")]), Verdict::Match),
        (
            Filter::AnyOf(vec![books(), path("other")]),
            Verdict::NeedsBody,
        ),
    ];
    for (filter, expected) in cases {
        assert_eq!(match_head(&filter, head), expected, "{filter:?}");
    }
}

#[test]
fn json_bodies_are_matched() {
    let library = json!({"library": {"books": [34555, 1233, "text"]}, "deep": [{"id": "x7"}]});
    let cases = [
        (body("$.library.books[*]", "^\\d{3,4}$"), true),
        (body("$.library.books[*]", "^TEXT$"), true),
        (body("$.library.books[*]", "^9"), false),
        (
            body("$.library.books[?typeof(@) == 'number']", "555$"),
            true,
        ),
        (
            body("$.library.books[?(typeof(@) == 'string')]", "555$"),
            false,
        ),
        (body("$..id", "^x\\d$"), true),
        (body("$.nothing", ""), false),
    ];
    for (filter, expected) in cases {
        let matched = parse_request(b"POST / HTTP/1.1\r\n\r\n", |head, _| {
            let request = RequestView::http1(head);
            assert!(!filter.matches(&request, None), "without a body");
            filter.matches(&request, Some(&library))
        });
        assert_eq!(matched, Ok(expected), "{filter:?}");
    }
}

#[test]
fn the_host_is_matched_in_both_versions() {
    let (parts, ()) = http::Request::builder()
        .uri("http://api.example/path?query")
        .header("x-team", "blue")
        .body(())
        .unwrap()
        .into_parts();
    let view = RequestView::http2(&parts);
    assert_eq!(header("^host: api").match_head(&view), Verdict::Match);
    assert_eq!(header("^x-team: blue$").match_head(&view), Verdict::Match);
    assert_eq!(path("^/path$").match_head(&view), Verdict::Match);
    assert_eq!(path("^/path\\?query$").match_head(&view), Verdict::Match);
}

/// Without the backtracking limit the first pattern would need exponential time, and this test would not end.
#[test]
fn a_pattern_that_exceeds_the_backtracking_limit_does_not_match() {
    let long = "a".repeat(40_000);
    let head = format!("GET /{long} HTTP/1.1\r\nX-Long: {long}!\r\nX-Team: blue\r\n\r\n");
    for filter in [
        header("^x-long: (?=(a+)+$)b"),
        path("^/(?:(a|aa)+)\\1b$"),
        // The same pattern without look-around is matched by a linear engine.
        header("^x-long: (a+)+$"),
    ] {
        assert_eq!(match_head(&filter, &head), Verdict::NoMatch, "{filter:?}");
    }
}

#[test]
fn errors_name_the_rejected_filter() {
    let cases = [
        (Filter::header("(unclosed"), "(unclosed"),
        (Filter::json_body("no query", ""), "no query"),
        (Filter::json_body("$..a..b..c", ""), "$..a..b..c"),
        (Filter::all_of(vec![]), "all_of"),
        (Filter::any_of(vec![]), "any_of"),
    ];
    for (filter, named) in cases {
        let message = filter.unwrap_err().to_string();
        assert!(message.contains(named), "{message:?} names {named:?}");
    }
}
