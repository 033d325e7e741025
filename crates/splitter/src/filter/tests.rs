use serde_json::json;

use super::*;
use crate::http1::head::read_request;

fn header(pattern: &str) -> Filter {
    Filter::header(pattern).unwrap()
}

fn path(pattern: &str) -> Filter {
    Filter::path(pattern).unwrap()
}

fn body(query: &str, pattern: &str) -> Filter {
    Filter::json_body(query, pattern).unwrap()
}

fn judge(filter: &Filter, head: &str) -> Judgement {
    read_request(head.as_bytes(), |head, _| {
        filter.judge(&RequestView::http1(head))
    })
    .unwrap()
}

#[test]
fn heads_are_judged() {
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
            judge(&filter, head),
            expected.into(),
            "{filter:?} on {head:?}"
        );
    }
}

#[test]
fn a_body_is_asked_for_only_when_it_decides() {
    let head = "POST /buildings HTTP/1.1\r\nHost: a\r\n\r\n";
    let books = || body("$.books[*]", "^1$");
    let cases = [
        (books(), Judgement::NeedsBody),
        (
            Filter::AllOf(vec![books(), path("build")]),
            Judgement::NeedsBody,
        ),
        (
            Filter::AllOf(vec![books(), path("other")]),
            Judgement::NotWanted,
        ),
        (
            Filter::AnyOf(vec![books(), path("build")]),
            Judgement::Wanted,
        ),
        (
            Filter::AnyOf(vec![books(), path("other")]),
            Judgement::NeedsBody,
        ),
    ];
    for (filter, expected) in cases {
        assert_eq!(judge(&filter, head), expected, "{filter:?}");
    }
}

#[test]
fn bodies_are_judged() {
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
        let seen = read_request(b"POST / HTTP/1.1\r\n\r\n", |head, _| {
            let request = RequestView::http1(head);
            assert!(!filter.wants(&request, None), "without a body");
            filter.wants(&request, Some(&library))
        });
        assert_eq!(seen, Ok(expected), "{filter:?}");
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
    assert_eq!(header("^host: api").judge(&view), Judgement::Wanted);
    assert_eq!(header("^x-team: blue$").judge(&view), Judgement::Wanted);
    assert_eq!(path("^/path$").judge(&view), Judgement::Wanted);
    assert_eq!(path("^/path\\?query$").judge(&view), Judgement::Wanted);
}

/// Without its bound, the first pattern would need more steps than there are atoms: this test would not end.
#[test]
fn a_pattern_that_explodes_is_given_up() {
    let long = "a".repeat(40_000);
    let head = format!("GET /{long} HTTP/1.1\r\nX-Long: {long}!\r\nX-Team: blue\r\n\r\n");
    for filter in [
        header("^x-long: (?=(a+)+$)b"),
        path("^/(?:(a|aa)+)\\1b$"),
        // The same danger in an expression that needs no looking around has a linear engine.
        header("^x-long: (a+)+$"),
    ] {
        assert_eq!(judge(&filter, &head), Judgement::NotWanted, "{filter:?}");
    }
}

#[test]
fn what_cannot_be_used_is_said() {
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
