use protocol::grant::{FilesGrant, IncomingGrant, OutgoingGrant};
use protocol::rpc::{HttpFilters, IncomingMode, http_filter};

use super::*;

fn header(text: &str) -> HttpFilter {
    HttpFilter {
        filter: Some(http_filter::Filter::Header(text.to_owned())),
    }
}

fn path(text: &str) -> HttpFilter {
    HttpFilter {
        filter: Some(http_filter::Filter::Path(text.to_owned())),
    }
}

fn all_of(filters: Vec<HttpFilter>) -> HttpFilter {
    HttpFilter {
        filter: Some(http_filter::Filter::AllOf(HttpFilters { filters })),
    }
}

fn any_of(filters: Vec<HttpFilter>) -> HttpFilter {
    HttpFilter {
        filter: Some(http_filter::Filter::AnyOf(HttpFilters { filters })),
    }
}

#[test]
fn forbidden_subscriptions_are_rejected() {
    use IncomingMode::{Mirror, Steal};
    let check = |incoming: IncomingGrant, mode: IncomingMode, filter, allowed: bool| {
        let rules = Rules::parse(&Grant {
            incoming,
            ..Grant::default()
        })
        .unwrap();
        let request = SubscribeRequest {
            mode: mode.into(),
            filter,
            ..SubscribeRequest::default()
        };
        let result = rules.effective_filter(&request);
        assert_eq!(result.is_ok(), allowed, "{request:?}: {result:?}");
    };
    let nothing = IncomingGrant::default;
    let filter = || Some(header("x-user: ada"));
    check(nothing(), Steal, None, true);
    check(nothing(), Mirror, None, true);
    let no_steal = || IncomingGrant {
        no_steal: true,
        ..nothing()
    };
    check(no_steal(), Steal, filter(), false);
    check(no_steal(), Mirror, None, true);
    let with_filter = || IncomingGrant {
        no_steal_without_filter: true,
        ..nothing()
    };
    check(with_filter(), Steal, None, false);
    check(with_filter(), Steal, filter(), true);
    let no_mirror = || IncomingGrant {
        no_mirror: true,
        ..nothing()
    };
    check(no_mirror(), Mirror, None, false);
    check(no_mirror(), Steal, None, true);
    let by_user = || IncomingGrant {
        header_filters: vec!["^x-user: ".to_owned()],
        ..nothing()
    };
    check(by_user(), Steal, None, false);
    check(by_user(), Steal, filter(), true);
    // A filter that matches everything counts as none.
    for everything in [
        header(".*"),
        header("x-user: ada|"),
        path("/"),
        any_of(vec![path("^/a"), header("")]),
    ] {
        check(by_user(), Steal, Some(everything.clone()), false);
        check(with_filter(), Steal, Some(everything.clone()), false);
        check(nothing(), Steal, Some(everything.clone()), true);
        check(by_user(), Mirror, Some(everything), true);
    }
    check(by_user(), Steal, Some(path("^/cart")), true);
    check(by_user(), Mirror, None, true);
    // An incomplete filter is an error.
    check(by_user(), Steal, Some(any_of(vec![])), false);
}

/// The text of a session's filter does not matter: what a policy demands is a part of the filter on requests.
#[test]
fn a_policys_filter_is_combined_with_that_of_the_session() {
    let rules = |header_filters: &[&str]| {
        let incoming = IncomingGrant {
            header_filters: header_filters
                .iter()
                .map(|text| (*text).to_owned())
                .collect(),
            ..IncomingGrant::default()
        };
        Rules::parse(&Grant {
            incoming,
            ..Grant::default()
        })
    };
    let effective = |header_filters: &[&str], requested: HttpFilter| {
        let request = SubscribeRequest {
            filter: Some(requested),
            ..SubscribeRequest::default()
        };
        rules(header_filters)
            .unwrap()
            .effective_filter(&request)
            .unwrap()
            .unwrap()
    };
    let wide = || header("x-user: ada|x-");
    assert_eq!(effective(&[], wide()), wide());
    assert_eq!(
        effective(&["^x-user: "], wide()),
        all_of(vec![header("^x-user: "), wide()])
    );
    assert_eq!(
        effective(&["^x-user: ", "^x-team: "], path("^/cart")),
        all_of(vec![
            header("^x-user: "),
            header("^x-team: "),
            path("^/cart")
        ])
    );
    assert!(rules(&["("]).is_err());
}

#[test]
fn addresses_are_allowed_and_forbidden() {
    let check = |only: &[&[&str]], none_of: &[&str], transport, address: &str, allowed: bool| {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let rules = Rules::parse(&Grant {
            outgoing: OutgoingGrant {
                only: only.iter().map(|only| texts(only)).collect(),
                none_of: texts(none_of),
            },
            ..Grant::default()
        })
        .unwrap();
        let result = rules.allow_address(transport, address.parse().unwrap());
        assert_eq!(result.is_ok(), allowed, "{only:?} {none_of:?} {address}");
    };
    use Transport::{Tcp, Udp};
    check(&[], &[], Tcp, "10.1.2.3:80", true);
    check(&[], &["10.0.0.0/8"], Tcp, "10.1.2.3:80", false);
    check(&[], &["10.0.0.0/8"], Tcp, "[::ffff:10.1.2.3]:80", false);
    check(&[], &["10.0.0.0/8"], Tcp, "11.1.2.3:80", true);
    check(&[], &["0.0.0.0/0"], Tcp, "[::1]:80", true);
    check(&[], &["tcp://10.1.2.3:80"], Tcp, "10.1.2.3:80", false);
    check(&[], &["tcp://10.1.2.3:80"], Udp, "10.1.2.3:80", true);
    check(&[], &[":5432"], Tcp, "10.1.2.3:5432", false);
    check(&[], &[":5432"], Tcp, "10.1.2.3:5433", true);
    check(&[], &["[fd00::/8]:53"], Udp, "[fd00::1]:53", false);
    check(&[], &["fd00::1"], Udp, "[fd00::1]:53", false);
    check(&[&["10.0.0.0/8"]], &[], Tcp, "10.1.2.3:80", true);
    check(&[&["10.0.0.0/8"]], &[], Tcp, "11.1.2.3:80", false);
    // Two policies must both allow it.
    check(
        &[&["10.0.0.0/8"], &[":443"]],
        &[],
        Tcp,
        "10.1.2.3:80",
        false,
    );
    check(
        &[&["10.0.0.0/8"], &[":443"]],
        &[],
        Tcp,
        "10.1.2.3:443",
        true,
    );
}

#[test]
fn variables_are_hidden_by_pattern() {
    let rules = Rules::parse(&Grant {
        hidden_variables: vec!["DB_*".to_owned(), "*SECRET*".to_owned(), "HOME".to_owned()],
        ..Grant::default()
    })
    .unwrap();
    for (name, expected) in [
        ("DB_USER", true),
        ("DB_", true),
        ("MY_DB_USER", false),
        ("A_SECRET_B", true),
        ("HOME", true),
        ("HOMES", false),
    ] {
        assert_eq!(rules.hides_variable(name.as_bytes()), expected, "{name}");
    }
    assert!(rules.hides_environments());
    assert!(!Rules::default().hides_environments());
}

#[test]
fn malformed_rules_are_errors() {
    let outgoing = |text: &str| Grant {
        outgoing: OutgoingGrant {
            none_of: vec![text.to_owned()],
            ..OutgoingGrant::default()
        },
        ..Grant::default()
    };
    for text in ["", "db.shop", "sctp://10.0.0.1", "10.0.0.0/33", "1.2.3.4:x"] {
        assert!(Rules::parse(&outgoing(text)).is_err(), "{text}");
    }
    let files = Grant {
        files: FilesGrant {
            hidden: vec!["(".to_owned()],
            ..FilesGrant::default()
        },
        ..Grant::default()
    };
    assert!(Rules::parse(&files).is_err());
}
