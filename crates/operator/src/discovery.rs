//! The discovery documents, from which clients learn the operator's resources.

use api::{GROUP, GROUP_VERSION, VERSION};
use http::header::ACCEPT;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use crate::response::{ApiResponse, json as json_response, with_type};

/// A resource that the operator serves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resource {
    pub(crate) plural: &'static str,
    singular: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) namespaced: bool,
    pub(crate) verbs: &'static [&'static str],
}

pub(crate) const RESOURCES: [Resource; 3] = [
    Resource {
        plural: "mirrordoperators",
        singular: "mirrordoperator",
        kind: api::MirrordOperator::KIND,
        namespaced: false,
        verbs: &["get", "list"],
    },
    Resource {
        plural: "sessions",
        singular: "session",
        kind: api::session::Session::KIND,
        namespaced: false,
        verbs: &["delete", "get", "list"],
    },
    Resource {
        plural: "targets",
        singular: "target",
        kind: api::Target::KIND,
        namespaced: true,
        verbs: &["get", "list"],
    },
];

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// All groups: aggregated discovery for clients that accept it, else the list of groups.
pub(crate) fn groups(headers: &HeaderMap) -> ApiResponse {
    let aggregated = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|range| {
            let parts: Vec<&str> = range.split(';').map(str::trim).collect();
            [
                "application/json",
                "g=apidiscovery.k8s.io",
                "v=v2",
                "as=APIGroupDiscoveryList",
            ]
            .iter()
            .all(|part| parts.contains(part))
        });
    if aggregated {
        return with_type(StatusCode::OK, AGGREGATED, &aggregated_document());
    }
    json_response(&json!({"apiVersion": "v1", "kind": "APIGroupList", "groups": [group_fields()]}))
}

pub(crate) fn group() -> ApiResponse {
    let mut document = group_fields();
    document["apiVersion"] = "v1".into();
    document["kind"] = "APIGroup".into();
    json_response(&document)
}

pub(crate) fn resources() -> ApiResponse {
    json_response(&resources_document())
}

fn group_fields() -> Value {
    let version = json!({"groupVersion": GROUP_VERSION, "version": VERSION});
    json!({"name": GROUP, "versions": [version], "preferredVersion": version})
}

fn resources_document() -> Value {
    let resources = RESOURCES.map(|resource| {
        json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": resource.verbs,
        })
    });
    json!({
        "apiVersion": "v1",
        "kind": "APIResourceList",
        "groupVersion": GROUP_VERSION,
        "resources": resources,
    })
}

fn aggregated_document() -> Value {
    let resources = RESOURCES.map(|resource| {
        json!({
            "resource": resource.plural,
            "responseKind": {"group": GROUP, "version": VERSION, "kind": resource.kind},
            "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": resource.singular,
            "verbs": resource.verbs,
        })
    });
    let version = json!({"version": VERSION, "freshness": "Current", "resources": resources});
    json!({
        "apiVersion": "apidiscovery.k8s.io/v2",
        "kind": "APIGroupDiscoveryList",
        "metadata": {},
        "items": [{"metadata": {"name": GROUP}, "versions": [version]}],
    })
}

#[cfg(test)]
mod tests {
    use crate::golden;

    use super::*;

    #[test]
    fn documents_match_the_golden_files() {
        golden::check("discovery_resources.json", &resources_document());
        golden::check("discovery_aggregated.json", &aggregated_document());
    }
}
