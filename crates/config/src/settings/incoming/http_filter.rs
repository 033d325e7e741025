//! `feature.network.incoming.http_filter`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::list::ListItem;
use super::super::{List, short_forms};
use super::{PatternText, Port, QueryText};

/// Which HTTP requests
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = short_forms::http_filter)]
pub struct HttpFilterSettings {
    /// Requests of which one header, written as `name: value`, has a match.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "PatternText::json_schema", extend("examples" = ["^x-user: alice$"]))]
    pub header_filter: Option<PatternText>,

    /// Requests of which the path, or the path with its query, has a match.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "PatternText::json_schema", extend("examples" = ["^/api/", "^(?!/health)"]))]
    pub path_filter: Option<PatternText>,

    /// Requests with this method.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null, "examples" = ["POST"], "x-check" = "method"))]
    pub method_filter: Option<String>,

    /// Requests of which the body has a match.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        schema_with = "BodyFilter::json_schema",
        extend("examples" = [{"body": "json", "query": "$.order.customer", "matches": "^alice$"}])
    )]
    pub body_filter: Option<BodyFilter>,

    /// Requests that all of these filters want. Each is `header`, `path`, `method`, or `body` with `query` and `matches`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        schema_with = "filter_list",
        extend("examples" = [[{"path": "^/orders"}, {"header": "^x-user: alice$"}]])
    )]
    pub all_of: Option<List<HttpFilterItem>>,

    /// Requests that at least one of these filters wants.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        schema_with = "filter_list",
        extend("examples" = [[{"method": "POST"}, {"body": "json", "query": "$.id", "matches": "^7"}]])
    )]
    pub any_of: Option<List<HttpFilterItem>>,

    /// The ports for which the filter is meant. By default all; the traffic of others is taken whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "List::<Port>::json_schema", extend("examples" = [[80, 8080]]))]
    pub ports: Option<List<Port>>,
}

/// Requests of which the body has a match
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = short_forms::body_filter)]
pub struct BodyFilter {
    /// What the body is.
    pub body: BodyKind,

    /// What to look for in it: a JSONPath query, in which `typeof(…)` tells the type of a value.
    pub query: QueryText,

    /// What one of the values that the query finds must have a match of. What is not text is compared as JSON.
    pub matches: PatternText,
}

/// What the body is
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BodyKind {
    /// A JSON document.
    Json,
}

/// One of several filters
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = short_forms::http_filter_item)]
pub struct HttpFilterItem {
    /// As `header_filter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "PatternText::json_schema")]
    pub header: Option<PatternText>,

    /// As `path_filter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "PatternText::json_schema")]
    pub path: Option<PatternText>,

    /// As `method_filter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("x-check" = "method"))]
    pub method: Option<String>,

    /// As in `body_filter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "BodyKind::json_schema")]
    pub body: Option<BodyKind>,

    /// As in `body_filter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "QueryText::json_schema")]
    pub query: Option<QueryText>,

    /// As in `body_filter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "PatternText::json_schema")]
    pub matches: Option<PatternText>,
}

impl ListItem for HttpFilterItem {
    const EXPAND: &str = "one-or-many";
}

/// A list that would want everything, or nothing, is a mistake.
fn filter_list(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = List::<HttpFilterItem>::json_schema(generator);
    let list = schema.get_mut("anyOf").and_then(|forms| forms.get_mut(1));
    if let Some(list) = list.and_then(serde_json::Value::as_object_mut) {
        list.insert("minItems".to_owned(), 1.into());
    }
    schema
}
