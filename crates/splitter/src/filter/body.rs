//! A filter on JSON bodies.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use serde_json_path::JsonPath;
use serde_json_path::functions::{NodesType, ValueType};

use super::pattern::{Pattern, PatternMatch};
use crate::Error;

/// Each descendant segment (`..`) multiplies the work by the depth of the document, so their number is limited.
const MAX_DESCENDANT_SEGMENTS: usize = 2;

/// Matches the results of a JSONPath query on a JSON body.
#[derive(Clone)]
pub struct JsonBody {
    query: Arc<JsonPath>,
    text: Arc<str>,
    pattern: Pattern,
}

impl JsonBody {
    /// `query` is a JSONPath, `pattern` a regular expression for its results. Results that are not strings are matched as
    /// JSON text.
    pub fn new(query: &str, pattern: &str) -> Result<Self, Error> {
        if query.matches("..").count() > MAX_DESCENDANT_SEGMENTS {
            return Err(Error::QueryTooExpensive {
                query: query.to_owned(),
            });
        }
        let path = JsonPath::parse(query).map_err(|source| Error::Query {
            query: query.to_owned(),
            source: Box::new(source),
        })?;
        Ok(Self {
            query: Arc::new(path),
            text: query.into(),
            pattern: Pattern::new(pattern)?,
        })
    }

    pub(super) fn is_match(&self, body: &Value) -> bool {
        for found in self.query.query(body).iter() {
            let result = match found {
                Value::String(text) => self.pattern.is_match(text),
                other => self.pattern.is_match(&other.to_string()),
            };
            if result != PatternMatch::NoMatch {
                return result == PatternMatch::Match;
            }
        }
        false
    }
}

impl fmt::Debug for JsonBody {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ~ {:?}", self.text, self.pattern)
    }
}

impl PartialEq for JsonBody {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.pattern == other.pattern
    }
}

/// The common type of all nodes, for queries such as `$.books[?typeof(@) == 'number']`.
#[serde_json_path::function(name = "typeof")]
fn type_of(nodes: NodesType<'_>) -> ValueType<'_> {
    let mut names = nodes.iter().map(|value| match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    });
    match names.next() {
        Some(first) if names.all(|name| name == first) => ValueType::Value(first.into()),
        _ => ValueType::Nothing,
    }
}
