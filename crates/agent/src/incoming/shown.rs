//! Filters in words, for people who are not the session's: short, of one line, and without what looks like a secret.

use protocol::rpc::{HttpFilter, HttpFilters, JsonFilter, http_filter};

/// The most characters of a pattern.
const LONGEST_PATTERN: usize = 80;
/// The most characters of all.
const LONGEST: usize = 400;
/// A header with such a name holds what others must not know.
const SECRETIVE: [&str; 9] = [
    "auth",
    "cookie",
    "token",
    "secret",
    "key",
    "pass",
    "credential",
    "bearer",
    "jwt",
];
const HIDDEN: &str = "(hidden)";

/// Whether people see what a filter looks for, or only where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patterns {
    Shown,
    Hidden,
}

pub(super) fn in_words(filter: &HttpFilter, patterns: Patterns) -> String {
    shortened(&words(filter, patterns), LONGEST)
}

fn words(filter: &HttpFilter, patterns: Patterns) -> String {
    match &filter.filter {
        None => String::new(),
        Some(http_filter::Filter::Header(pattern)) => header(pattern, patterns),
        Some(http_filter::Filter::Path(path)) => format!("path {}", pattern(path, patterns)),
        Some(http_filter::Filter::Method(method)) => format!("method {}", plain(method)),
        Some(http_filter::Filter::Body(JsonFilter { query, matches })) => {
            format!("body {} {}", plain(query), pattern(matches, patterns))
        }
        Some(http_filter::Filter::AllOf(filters)) => list(filters, " and ", patterns),
        Some(http_filter::Filter::AnyOf(filters)) => list(filters, " or ", patterns),
    }
}

fn list(filters: &HttpFilters, between: &str, patterns: Patterns) -> String {
    let parts = filters.filters.iter().map(|filter| {
        let is_list = matches!(
            filter.filter,
            Some(http_filter::Filter::AllOf(_) | http_filter::Filter::AnyOf(_))
        );
        match is_list {
            true => format!("({})", words(filter, patterns)),
            false => words(filter, patterns),
        }
    });
    parts.collect::<Vec<_>>().join(between)
}

/// A pattern of `name: value`. The name is no secret, where it can be told from the value.
fn header(wanted: &str, patterns: Patterns) -> String {
    let (name, value) = match wanted.split_once(':') {
        Some((name, value)) => (name, Some(value)),
        None => (wanted, None),
    };
    let has = |text: &str, words: &[&str]| {
        let text = text.to_ascii_lowercase();
        words.iter().any(|word| text.contains(word))
    };
    let is_secret =
        has(name, &SECRETIVE) || value.is_some_and(|value| has(value, &["bearer", "basic "]));
    match (value, is_secret || patterns == Patterns::Hidden) {
        (_, false) => format!("header {}", plain(wanted)),
        (Some(_), true) => format!("header {}: {HIDDEN}", plain(name)),
        (None, true) => format!("header {HIDDEN}"),
    }
}

fn pattern(wanted: &str, patterns: Patterns) -> String {
    match patterns {
        Patterns::Shown => plain(wanted),
        Patterns::Hidden => HIDDEN.to_owned(),
    }
}

/// A terminal obeys characters that a pattern may have.
fn plain(text: &str) -> String {
    let visible = |character: char| match character.is_control() {
        true => char::REPLACEMENT_CHARACTER,
        false => character,
    };
    let text: String = text.chars().map(visible).collect();
    shortened(&text, LONGEST_PATTERN)
}

fn shortened(text: &str, longest: usize) -> String {
    match text.chars().count() > longest {
        true => text.chars().take(longest - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(filter: http_filter::Filter) -> HttpFilter {
        HttpFilter {
            filter: Some(filter),
        }
    }

    fn header_of(pattern: &str) -> HttpFilter {
        of(http_filter::Filter::Header(pattern.to_owned()))
    }

    fn all_of(filters: Vec<HttpFilter>) -> HttpFilter {
        of(http_filter::Filter::AllOf(HttpFilters { filters }))
    }

    #[test]
    fn filters_are_told_in_words() {
        let path = of(http_filter::Filter::Path("^/cart".to_owned()));
        let method = of(http_filter::Filter::Method("POST".to_owned()));
        let body = of(http_filter::Filter::Body(JsonFilter {
            query: "$.user".to_owned(),
            matches: "anna".to_owned(),
        }));
        let filters = vec![path, body];
        let any = of(http_filter::Filter::AnyOf(HttpFilters { filters }));
        let filter = all_of(vec![header_of("^x-user: anna$"), method, any]);
        assert_eq!(
            in_words(&filter, Patterns::Shown),
            "header ^x-user: anna$ and method POST and (path ^/cart or body $.user anna)"
        );
        assert_eq!(
            in_words(&filter, Patterns::Hidden),
            "header ^x-user: (hidden) and method POST and (path (hidden) or body $.user (hidden))"
        );
    }

    #[test]
    fn what_looks_like_a_secret_is_not_told() {
        for (pattern, expected) in [
            (
                "Authorization: Bearer abc",
                "header Authorization: (hidden)",
            ),
            ("^cookie: .*id=abc", "header ^cookie: (hidden)"),
            ("x-api-key: abc", "header x-api-key: (hidden)"),
            ("(?i)x-user: Bearer abc", "header (?i)x-user: (hidden)"),
            ("auth.*abc", "header (hidden)"),
            ("x-user: anna", "header x-user: anna"),
        ] {
            assert_eq!(in_words(&header_of(pattern), Patterns::Shown), expected);
        }
        // Without a name that can be told from the value, all of it may be one.
        let hidden = in_words(&header_of("abc"), Patterns::Hidden);
        assert_eq!(hidden, "header (hidden)");
    }

    #[test]
    fn what_is_told_is_short_and_of_one_line() {
        let long = in_words(&header_of(&"a".repeat(5000)), Patterns::Shown);
        assert_eq!(long.chars().count(), "header ".len() + LONGEST_PATTERN);
        let many = all_of(vec![header_of("x-user: anna"); 1000]);
        let many = in_words(&many, Patterns::Shown);
        assert_eq!(many.chars().count(), LONGEST);
        let odd = in_words(&header_of("a\u{1b}[2J\nb"), Patterns::Shown);
        assert_eq!(odd, "header a\u{fffd}[2J\u{fffd}b");
    }
}
