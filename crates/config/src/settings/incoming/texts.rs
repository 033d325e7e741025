//! Validated texts.

use std::borrow::Cow;
use std::time::Duration;

use fancy_regex::RegexBuilder;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json_path::JsonPath;

/// The memory limit of a compiled expression at the target.
const MAX_COMPILED_SIZE: usize = 1024 * 1024;
/// Each search through everything below a value multiplies the work by the depth of the document.
const MAX_DESCENDANT_SEARCHES: usize = 2;

/// A regular expression that may look around.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PatternText(String);

/// A JSONPath query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct QueryText(String);

/// A time, as text with its unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Timeout {
    text: String,
    duration: Duration,
}

impl PatternText {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl QueryText {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Timeout {
    pub fn duration(&self) -> Duration {
        self.duration
    }
}

impl TryFrom<String> for PatternText {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        check_pattern(&text)?;
        Ok(Self(text))
    }
}

impl TryFrom<String> for QueryText {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        check_query(&text)?;
        Ok(Self(text))
    }
}

impl TryFrom<String> for Timeout {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let duration = check_time(&text).ok_or("not a time")?;
        Ok(Self { text, duration })
    }
}

impl From<PatternText> for String {
    fn from(pattern: PatternText) -> Self {
        pattern.0
    }
}

impl From<QueryText> for String {
    fn from(query: QueryText) -> Self {
        query.0
    }
}

impl From<Timeout> for String {
    fn from(timeout: Timeout) -> Self {
        timeout.text
    }
}

/// A short message about an invalid pattern of a filter.
pub(crate) fn check_pattern(text: &str) -> Result<(), String> {
    let built = RegexBuilder::new(text)
        .case_insensitive(true)
        .delegate_size_limit(MAX_COMPILED_SIZE)
        .build();
    match built {
        Ok(_) => Ok(()),
        Err(error) => {
            let message = error.to_string();
            let reason = message.lines().last().unwrap_or_default();
            let reason = reason.trim_start_matches("error: ");
            Err(reason.trim_start_matches("Parsing error at ").to_owned())
        }
    }
}

/// A short message about an invalid JSONPath query.
pub(crate) fn check_query(text: &str) -> Result<(), String> {
    if text.matches("..").count() > MAX_DESCENDANT_SEARCHES {
        return Err(format!(
            "`..` is used more than {MAX_DESCENDANT_SEARCHES} times, which could take very long"
        ));
    }
    // The target also has the function `typeof`, which has the same parameter and result types as `value`.
    let standard = text.replace("typeof(", "value(");
    JsonPath::parse(&standard)
        .map(|_| ())
        .map_err(|error| error.message().to_owned())
}

/// Whether a text can be a method of HTTP.
pub(crate) fn check_method(text: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_token)
}

/// Parses a number with its unit. Timeouts below a millisecond or of days are invalid.
pub(crate) fn check_time(text: &str) -> Option<Duration> {
    let digits = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let milliseconds = match unit.trim() {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return None,
    };
    let milliseconds = number.checked_mul(milliseconds)?;
    (1..=u64::from(u32::MAX))
        .contains(&milliseconds)
        .then(|| Duration::from_millis(milliseconds))
}

impl JsonSchema for PatternText {
    fn schema_name() -> Cow<'static, str> {
        "PatternText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "x-check": "pattern" })
    }
}

impl JsonSchema for QueryText {
    fn schema_name() -> Cow<'static, str> {
        "QueryText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "x-check": "query" })
    }
}

impl JsonSchema for Timeout {
    fn schema_name() -> Cow<'static, str> {
        "Timeout".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "x-check": "time" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, expected) in [
            ("500ms", Some(500)),
            ("10s", Some(10_000)),
            ("2 m", Some(120_000)),
            ("10", None),
            ("0s", None),
            ("s", None),
            ("-1s", None),
            ("1h", None),
            ("99999999999999999999s", None),
        ] {
            let expected = expected.map(Duration::from_millis);
            assert_eq!(check_time(text), expected, "{text}");
        }
    }

    #[test]
    fn patterns_may_look_around_and_queries_know_types() {
        assert!(check_pattern("^user-agent: (?!kube-probe)").is_ok());
        assert!(check_pattern("(").is_err());
        assert!(check_query("$.books[?(typeof(@) == 'number')]").is_ok());
        assert!(check_query("$.library.books[*]").is_ok());
        for query in ["", "books", "$..a..b..c", "$["] {
            assert!(check_query(query).is_err(), "{query}");
        }
        assert!(check_method("get"));
        assert!(!check_method("GET /"));
    }
}
