//! Descriptions of filters for other users: short, on one line, and without values that look like secrets.

use protocol::rpc::{HttpFilter, HttpFilters, JsonFilter, http_filter};

/// The maximum number of characters of one pattern.
const MAX_PATTERN_LEN: usize = 80;
/// The maximum number of characters of a description.
const MAX_LEN: usize = 400;
/// A header whose name contains one of these words probably has a secret value.
const SECRET_NAMES: [&str; 9] = [
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

/// Whether a description shows the patterns of a filter, or only which parts of a request they match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatternVisibility {
    Shown,
    Hidden,
}

pub(super) fn describe(filter: &HttpFilter, patterns: PatternVisibility) -> String {
    truncate(&describe_nested(filter, patterns), MAX_LEN)
}

fn describe_nested(filter: &HttpFilter, patterns: PatternVisibility) -> String {
    match &filter.filter {
        None => String::new(),
        Some(http_filter::Filter::Header(pattern)) => describe_header(pattern, patterns),
        Some(http_filter::Filter::Path(path)) => {
            format!("path {}", describe_pattern(path, patterns))
        }
        Some(http_filter::Filter::Method(method)) => format!("method {}", printable(method)),
        Some(http_filter::Filter::Body(JsonFilter { query, matches })) => {
            format!(
                "body {} {}",
                printable(query),
                describe_pattern(matches, patterns)
            )
        }
        Some(http_filter::Filter::AllOf(filters)) => describe_list(filters, " and ", patterns),
        Some(http_filter::Filter::AnyOf(filters)) => describe_list(filters, " or ", patterns),
    }
}

fn describe_list(filters: &HttpFilters, separator: &str, patterns: PatternVisibility) -> String {
    let parts = filters.filters.iter().map(|filter| {
        let is_list = matches!(
            filter.filter,
            Some(http_filter::Filter::AllOf(_) | http_filter::Filter::AnyOf(_))
        );
        match is_list {
            true => format!("({})", describe_nested(filter, patterns)),
            false => describe_nested(filter, patterns),
        }
    });
    parts.collect::<Vec<_>>().join(separator)
}

/// A pattern of `name: value`. The name is shown if the pattern has a colon that separates it from the value.
fn describe_header(filter: &str, patterns: PatternVisibility) -> String {
    let (name, value) = match filter.split_once(':') {
        Some((name, value)) => (name, Some(value)),
        None => (filter, None),
    };
    let contains_any = |text: &str, words: &[&str]| {
        let text = text.to_ascii_lowercase();
        words.iter().any(|word| text.contains(word))
    };
    let is_secret = contains_any(name, &SECRET_NAMES)
        || value.is_some_and(|value| contains_any(value, &["bearer", "basic "]));
    match (value, is_secret || patterns == PatternVisibility::Hidden) {
        (_, false) => format!("header {}", printable(filter)),
        (Some(_), true) => format!("header {}: {HIDDEN}", printable(name)),
        (None, true) => format!("header {HIDDEN}"),
    }
}

fn describe_pattern(pattern: &str, patterns: PatternVisibility) -> String {
    match patterns {
        PatternVisibility::Shown => printable(pattern),
        PatternVisibility::Hidden => HIDDEN.to_owned(),
    }
}

/// Replaces control characters, which a terminal would interpret.
fn printable(text: &str) -> String {
    let visible = |character: char| match character.is_control() {
        true => char::REPLACEMENT_CHARACTER,
        false => character,
    };
    let text: String = text.chars().map(visible).collect();
    truncate(&text, MAX_PATTERN_LEN)
}

fn truncate(text: &str, max: usize) -> String {
    match text.chars().count() > max {
        true => text.chars().take(max - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter_of(filter: http_filter::Filter) -> HttpFilter {
        HttpFilter {
            filter: Some(filter),
        }
    }

    fn header_of(pattern: &str) -> HttpFilter {
        filter_of(http_filter::Filter::Header(pattern.to_owned()))
    }

    fn all_of(filters: Vec<HttpFilter>) -> HttpFilter {
        filter_of(http_filter::Filter::AllOf(HttpFilters { filters }))
    }

    #[test]
    fn a_description_has_all_parts_of_a_filter() {
        let path = filter_of(http_filter::Filter::Path("^/cart".to_owned()));
        let method = filter_of(http_filter::Filter::Method("POST".to_owned()));
        let body = filter_of(http_filter::Filter::Body(JsonFilter {
            query: "$.user".to_owned(),
            matches: "anna".to_owned(),
        }));
        let filters = vec![path, body];
        let any = filter_of(http_filter::Filter::AnyOf(HttpFilters { filters }));
        let filter = all_of(vec![header_of("^x-user: anna$"), method, any]);
        assert_eq!(
            describe(&filter, PatternVisibility::Shown),
            "header ^x-user: anna$ and method POST and (path ^/cart or body $.user anna)"
        );
        assert_eq!(
            describe(&filter, PatternVisibility::Hidden),
            "header ^x-user: (hidden) and method POST and (path (hidden) or body $.user (hidden))"
        );
    }

    #[test]
    fn values_that_look_like_secrets_are_hidden() {
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
            assert_eq!(
                describe(&header_of(pattern), PatternVisibility::Shown),
                expected
            );
        }
        // Without a colon that separates name and value, all of it may be a secret.
        let hidden = describe(&header_of("abc"), PatternVisibility::Hidden);
        assert_eq!(hidden, "header (hidden)");
    }

    #[test]
    fn a_description_is_short_and_on_one_line() {
        let long = describe(&header_of(&"a".repeat(5000)), PatternVisibility::Shown);
        assert_eq!(long.chars().count(), "header ".len() + MAX_PATTERN_LEN);
        let many = all_of(vec![header_of("x-user: anna"); 1000]);
        let many = describe(&many, PatternVisibility::Shown);
        assert_eq!(many.chars().count(), MAX_LEN);
        let odd = describe(&header_of("a\u{1b}[2J\nb"), PatternVisibility::Shown);
        assert_eq!(odd, "header a\u{fffd}[2J\u{fffd}b");
    }
}
