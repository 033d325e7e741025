//! HTTP responses in the formats of the Kubernetes API: objects, lists, tables, and refusals as `Status`.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, WARNING};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::{Value, json};

pub(crate) type ApiResponse = Response<Full<Bytes>>;

const JSON: &str = "application/json";

/// The reason why a request is refused, which is sent as a Kubernetes `Status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: StatusCode,
    reason: &'static str,
    pub(crate) message: String,
}

impl Refusal {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", message)
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "Conflict", message)
    }

    pub(crate) fn gone(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Gone", message)
    }

    /// Gone as well, because the session expired and not because a user ended it.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    pub(crate) fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
    }

    pub(crate) fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailable",
            message,
        )
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    pub(crate) fn response(&self) -> ApiResponse {
        let status = json!({
            "apiVersion": "v1",
            "kind": "Status",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        with_type(self.code, JSON, &status)
    }
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) description: &'static str,
    /// Shown only with `-o wide`.
    pub(crate) wide: bool,
}

/// An object that the operator can list.
pub(crate) trait ListedObject: Serialize {
    const KIND: &str;
    const COLUMNS: &[Column];

    fn metadata(&self) -> &ObjectMeta;
    fn cells(&self) -> Vec<Value>;
}

/// The format in which a client requests objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseFormat {
    Object,
    /// For users: kubectl prints the rows.
    Table,
    /// For generic controllers that do not know the kind.
    MetadataOnly,
}

impl ResponseFormat {
    /// The first format that the client accepts and the operator supports.
    pub(crate) fn accepted(headers: &HeaderMap) -> Self {
        let accepted = headers.get_all(ACCEPT).iter();
        accepted
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .find_map(Self::of_media_range)
            .unwrap_or(Self::Object)
    }

    fn of_media_range(range: &str) -> Option<Self> {
        let mut parts = range.split(';').map(str::trim);
        if !matches!(parts.next()?, JSON | "application/*" | "*/*") {
            return None;
        }
        let parameters: Vec<&str> = parts.collect();
        let is_meta = parameters.contains(&"g=meta.k8s.io") && parameters.contains(&"v=v1");
        match parameters.iter().find_map(|part| part.strip_prefix("as=")) {
            None => Some(Self::Object),
            Some("Table") if is_meta => Some(Self::Table),
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") if is_meta => {
                Some(Self::MetadataOnly)
            }
            Some(_) => None,
        }
    }
}

pub(crate) fn json(body: &impl Serialize) -> ApiResponse {
    with_type(StatusCode::OK, JSON, body)
}

pub(crate) fn with_type(
    code: StatusCode,
    media_type: &'static str,
    body: &impl Serialize,
) -> ApiResponse {
    // The operator's own types always serialize: their maps have strings as keys.
    let body = serde_json::to_vec(body).unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, http::HeaderValue::from_static(media_type));
    response
}

pub(crate) fn one<T: ListedObject>(object: &T, format: ResponseFormat) -> ApiResponse {
    match format {
        ResponseFormat::Object => json(object),
        ResponseFormat::Table => json(&table(std::slice::from_ref(object))),
        ResponseFormat::MetadataOnly => json(&metadata_only(object)),
    }
}

pub(crate) fn list<T: ListedObject>(objects: &[T], format: ResponseFormat) -> ApiResponse {
    list_page(objects, None, format)
}

/// A page of a list, with the token of the next page if there is one.
pub(crate) fn list_page<T: ListedObject>(
    objects: &[T],
    next: Option<&str>,
    format: ResponseFormat,
) -> ApiResponse {
    let metadata = match next {
        Some(next) => json!({"continue": next}),
        None => json!({}),
    };
    let mut list = match format {
        ResponseFormat::Object => json!({
            "apiVersion": api::GROUP_VERSION,
            "kind": format!("{}List", T::KIND),
            "items": objects,
        }),
        ResponseFormat::Table => table(objects),
        ResponseFormat::MetadataOnly => json!({
            "apiVersion": "meta.k8s.io/v1",
            "kind": "PartialObjectMetadataList",
            "items": objects.iter().map(metadata_only).collect::<Vec<_>>(),
        }),
    };
    list["metadata"] = metadata;
    json(&list)
}

/// Adds warnings to a response. kubectl prints them.
pub(crate) fn warning(mut response: ApiResponse, warnings: &[String]) -> ApiResponse {
    for text in warnings {
        let text: String = text
            .chars()
            .map(|character| match character {
                '"' => '\'',
                '\\' => '/',
                ' '..='~' => character,
                _ => '?',
            })
            .collect();
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

fn metadata_only<T: ListedObject>(object: &T) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1",
        "kind": "PartialObjectMetadata",
        "metadata": object.metadata(),
    })
}

fn table<T: ListedObject>(objects: &[T]) -> Value {
    let columns: Vec<Value> = T::COLUMNS
        .iter()
        .map(|column| {
            json!({
                "name": column.name,
                "type": column.kind,
                "format": if column.name == "Name" { "name" } else { "" },
                "description": column.description,
                "priority": i32::from(column.wide),
            })
        })
        .collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| json!({"cells": object.cells(), "object": metadata_only(object)}))
        .collect();
    json!({
        "apiVersion": "meta.k8s.io/v1",
        "kind": "Table",
        "metadata": {},
        "columnDefinitions": columns,
        "rows": rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_supported_format_is_chosen() {
        let cases = [
            ("", ResponseFormat::Object),
            ("application/json", ResponseFormat::Object),
            ("*/*", ResponseFormat::Object),
            // kubectl get
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                ResponseFormat::Table,
            ),
            (
                "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                ResponseFormat::Object,
            ),
            // The controllers of namespaces
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
                ResponseFormat::MetadataOnly,
            ),
            (
                "application/json;as=Table;v=v1;g=other.example",
                ResponseFormat::Object,
            ),
        ];
        for (accept, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            assert_eq!(ResponseFormat::accepted(&headers), expected, "{accept}");
        }
    }
}
