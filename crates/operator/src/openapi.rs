//! The OpenAPI documents of the served objects, in versions 2 and 3, generated from the types.

use api::{GROUP, GROUP_VERSION, VERSION};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::discovery::{RESOURCES, Resource};
use crate::response::{ApiResponse, json as json_response};

pub(crate) fn version_2() -> ApiResponse {
    json_response(&document_2())
}

/// The location of each group's document. Clients cache a document by its hash.
pub(crate) fn version_3() -> ApiResponse {
    let text = document_3().to_string();
    let hash = format!("{:x}", Sha256::digest(text));
    let path = format!("apis/{GROUP_VERSION}");
    let url = format!("/openapi/v3/{path}?hash={hash}");
    json_response(&json!({"paths": {path: {"serverRelativeURL": url}}}))
}

pub(crate) fn version_3_of_group() -> ApiResponse {
    json_response(&document_3())
}

fn document_2() -> Value {
    json!({
        "swagger": "2.0",
        "info": info(),
        "paths": paths(|name| json!({
            "description": "OK",
            "schema": {"$ref": format!("#/definitions/{name}")},
        })),
        "definitions": schemas("#/definitions/"),
    })
}

fn document_3() -> Value {
    json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": paths(|name| json!({
            "description": "OK",
            "content": {"application/json": {"schema": {"$ref": format!("#/components/schemas/{name}")}}},
        })),
        "components": {"schemas": schemas("#/components/schemas/")},
    })
}

fn info() -> Value {
    json!({"title": "Standin operator", "version": env!("CARGO_PKG_VERSION")})
}

fn schemas(reference: &str) -> Map<String, Value> {
    let mut schemas = Map::new();
    for resource in RESOURCES {
        let schema = match resource.kind {
            api::MirrordOperator::KIND => schema_of::<api::MirrordOperator>(),
            api::Target::KIND => schema_of::<api::Target>(),
            _ => schema_of::<api::session::Session>(),
        };
        let name = schema_name(resource.kind);
        let kind_of = |kind: &str| json!([{"group": GROUP, "version": VERSION, "kind": kind}]);
        let mut one = schema;
        one["x-kubernetes-group-version-kind"] = kind_of(resource.kind);
        let list_kind = format!("{}List", resource.kind);
        let list = json!({
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": {"type": "object"},
                "items": {"type": "array", "items": {"$ref": format!("{reference}{name}")}},
            },
            "x-kubernetes-group-version-kind": kind_of(&list_kind),
        });
        schemas.insert(schema_name(&list_kind), list);
        schemas.insert(name, one);
    }
    schemas
}

/// The name of a schema, which begins with the reversed group, as in Kubernetes.
fn schema_name(kind: &str) -> String {
    format!("co.metalbear.operator.{VERSION}.{kind}")
}

fn schema_of<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::openapi3();
    settings.inline_subschemas = true;
    let mut schema = settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value();
    simplify(&mut schema);
    schema
}

/// Removes keywords that are not part of both versions of OpenAPI.
fn simplify(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for unknown in ["$schema", "title", "nullable"] {
                // A property may have such a name; a keyword's value is never an object.
                if fields.get(unknown).is_some_and(|value| !value.is_object()) {
                    fields.remove(unknown);
                }
            }
            fields.values_mut().for_each(simplify);
        }
        Value::Array(items) => items.iter_mut().for_each(simplify),
        _ => {}
    }
}

fn paths(response: impl Fn(&str) -> Value) -> Map<String, Value> {
    let mut paths = Map::new();
    for resource in RESOURCES {
        let base = format!("/apis/{GROUP_VERSION}");
        let collection = match resource.namespaced {
            true => format!("{base}/namespaces/{{namespace}}/{}", resource.plural),
            false => format!("{base}/{}", resource.plural),
        };
        let list_name = schema_name(&format!("{}List", resource.kind));
        let list = operation(&resource, "list", &response(&list_name));
        if resource.namespaced {
            let everywhere = format!("{base}/{}", resource.plural);
            let mut all = list.clone();
            all["operationId"] = format!("listAll{}", resource.kind).into();
            paths.insert(everywhere, json!({"get": all}));
        }
        paths.insert(collection.clone(), json!({"get": list}));
        let one = operation(&resource, "get", &response(&schema_name(resource.kind)));
        let mut operations = json!({"get": one});
        if resource.verbs.contains(&"delete") {
            let ended = json!({"description": "OK"});
            operations["delete"] = operation(&resource, "delete", &ended);
        }
        paths.insert(format!("{collection}/{{name}}"), operations);
    }
    paths
}

fn operation(resource: &Resource, verb: &str, response: &Value) -> Value {
    json!({
        "operationId": format!("{verb}{}", resource.kind),
        "responses": {"200": response},
        "x-kubernetes-action": verb,
        "x-kubernetes-group-version-kind": {"group": GROUP, "version": VERSION, "kind": resource.kind},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    #[test]
    fn documents_match_the_golden_files() {
        golden::check("openapi_v2.json", &document_2());
        golden::check("openapi_v3.json", &document_3());
    }

    #[test]
    fn all_references_resolve() {
        for document in [document_2(), document_3()] {
            let text = document.to_string();
            for part in text.split("\"$ref\":\"#").skip(1) {
                let pointer = part.split('"').next().unwrap();
                assert!(document.pointer(pointer).is_some(), "{pointer}");
            }
        }
    }
}
