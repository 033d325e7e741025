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
    /// Requests with a header that matches, in the form `name: value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "PatternText::json_schema", extend("examples" = ["^x-user: alice$"]))]
    pub header_filter: Option<PatternText>,

    /// Requests whose path, or path with query, matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "PatternText::json_schema", extend("examples" = ["^/api/", "^(?!/health)"]))]
    pub path_filter: Option<PatternText>,

    /// Requests with this method.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null, "examples" = ["POST"], "x-check" = "method"))]
    pub method_filter: Option<String>,

    /// Requests whose body matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        schema_with = "BodyFilter::json_schema",
        extend("examples" = [{"body": "json", "query": "$.order.customer", "matches": "^alice$"}])
    )]
    pub body_filter: Option<BodyFilter>,

    /// Requests that match all of these filters. Each is `header`, `path`, `method`, or `body` with `query` and
    /// `matches`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        schema_with = "filter_list",
        extend("examples" = [[{"path": "^/orders"}, {"header": "^x-user: alice$"}]])
    )]
    pub all_of: Option<List<HttpFilterItem>>,

    /// Requests that match at least one of these filters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        schema_with = "filter_list",
        extend("examples" = [[{"method": "POST"}, {"body": "json", "query": "$.id", "matches": "^7"}]])
    )]
    pub any_of: Option<List<HttpFilterItem>>,

    /// The ports to which the filter applies. The default is all ports. Traffic of other ports is not filtered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "List::<Port>::json_schema", extend("examples" = [[80, 8080]]))]
    pub ports: Option<List<Port>>,
}

/// Requests whose body matches
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = short_forms::body_filter)]
pub struct BodyFilter {
    /// The format of the body.
    pub body: BodyKind,

    /// The values to find in it: a JSONPath query, in which `typeof(…)` returns the type of a value.
    pub query: QueryText,

    /// The pattern that one of the found values must match. Values that are not text are compared as JSON.
    pub matches: PatternText,
}

/// The format of the body
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

/// An empty list would match everything or nothing, which is a mistake.
fn filter_list(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = List::<HttpFilterItem>::json_schema(generator);
    let list = schema.get_mut("anyOf").and_then(|forms| forms.get_mut(1));
    if let Some(list) = list.and_then(serde_json::Value::as_object_mut) {
        list.insert("minItems".to_owned(), 1.into());
    }
    schema
}
