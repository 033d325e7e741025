//! The ConfigMap with `clusters-config.yaml`, which the chart or an administrator writes. It is watched, so that changes take
//! effect without a restart.

use std::env;

use error_chain::error_chain;
use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};

use super::clusters::MultiCluster;
use super::environment;
use crate::error::{Error, KubeResultExt as _, Result};

/// The key in the ConfigMap.
const FILE: &str = "clusters-config.yaml";

/// Reads the configuration at the start of the operator, which cannot work without it.
pub(crate) async fn read(client: &Client, namespace: &str, name: &str) -> Result<MultiCluster> {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let action = format!("read the ConfigMap {name}");
    let found = config_maps.get_opt(name).await.action(action)?;
    parse(name, found.as_ref()).map_err(Error::Clusters)
}

/// The configuration whenever it has changed, or why it cannot be used.
pub(crate) fn changes(
    client: &Client,
    namespace: &str,
    name: &str,
) -> impl Stream<Item = Result<MultiCluster, String>> + use<> {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let name = name.to_owned();
    watch_object(config_maps, &name)
        .default_backoff()
        .map(move |event| match event {
            Ok(found) => parse(&name, found.as_ref()),
            Err(error) => Err(format!(
                "the ConfigMap {name} cannot be watched: {}",
                error_chain(&error)
            )),
        })
}

fn parse(name: &str, found: Option<&ConfigMap>) -> Result<MultiCluster, String> {
    let Some(found) = found else {
        return Err(format!(
            "the ConfigMap {name} does not exist; create it with the key {FILE}, or name the clusters in the chart's values"
        ));
    };
    let text = found.data.as_ref().and_then(|data| data.get(FILE));
    let text = text.ok_or_else(|| format!("the ConfigMap {name} has no key {FILE}"))?;
    let variable = env::var(environment::MANAGEMENT_ONLY).ok();
    let is_management_only = is_management_only(variable.as_deref())?;
    MultiCluster::read(text, is_management_only)
        .map_err(|error| format!("the ConfigMap {name} is invalid: {error}"))
}

/// Whether the environment makes this Primary management-only, which the configuration can do as well.
fn is_management_only(variable: Option<&str>) -> Result<bool, String> {
    match variable {
        Some("true") => Ok(true),
        None | Some("" | "false") => Ok(false),
        Some(other) => Err(format!(
            "the environment variable {} is `{other}`; it can be true or false",
            environment::MANAGEMENT_ONLY
        )),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream::BoxStream;
    use serde_json::{Value, json};
    use tokio::sync::mpsc;

    use super::*;
    use crate::multicluster::stub;

    fn config_map(version: &str, text: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "clusters", "namespace": "tools", "resourceVersion": version},
            "data": {FILE: text},
        })
    }

    fn text(members: &[&str]) -> String {
        let entries = members.iter().map(|name| {
            format!("- {{name: {name}, authType: mtls, server: 'https://{name}.example.com'}}\n")
        });
        let entries: String = entries.collect();
        format!("clusterName: hub\ndefaultCluster: hub\nclusters:\n{entries}")
    }

    #[tokio::test]
    async fn changes_of_the_config_map_are_followed() {
        let (sender, events) = mpsc::unbounded_channel();
        let mut events = Some(events);
        let client = stub::client(move |path| {
            if path.contains("watch=true") {
                let events = events.take();
                return events.map_or_else(stub::pending_response, stub::streaming_response);
            }
            let list = json!({
                "apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "1"},
                "items": [config_map("1", &text(&["east"]))],
            });
            stub::json_response(http::StatusCode::OK, &list)
        });
        let mut changes: BoxStream<'_, _> = changes(&client, "tools", "clusters").boxed();
        let mut next = async || {
            let change = changes.next().await.unwrap();
            change.map(|clusters: MultiCluster| {
                let names = clusters.members.into_iter().map(|member| member.name);
                names.collect::<Vec<_>>()
            })
        };
        assert_eq!(next().await.unwrap(), ["east"]);
        let modified = |version: &str, text: &str| {
            let event = json!({"type": "MODIFIED", "object": config_map(version, text)});
            sender.send(event).unwrap();
        };
        modified("2", &text(&["east", "west"]));
        assert_eq!(next().await.unwrap(), ["east", "west"]);
        modified("3", "clusterName: hub");
        let error = next().await.unwrap_err();
        let expected = "the ConfigMap clusters is invalid: `operator.multiCluster.clusters` names";
        assert!(error.starts_with(expected), "{error}");
        modified("4", &text(&["west"]));
        assert_eq!(next().await.unwrap(), ["west"]);
    }

    #[test]
    fn errors_name_the_config_map() {
        let error = parse("clusters", None).unwrap_err();
        assert!(
            error.starts_with("the ConfigMap clusters does not exist"),
            "{error}"
        );
        let error = parse("clusters", Some(&ConfigMap::default())).unwrap_err();
        assert_eq!(
            error,
            "the ConfigMap clusters has no key clusters-config.yaml"
        );
    }

    #[test]
    fn the_environment_variable_is_true_or_false() {
        let cases = [
            (None, Ok(false)),
            (Some(""), Ok(false)),
            (Some("false"), Ok(false)),
            (Some("true"), Ok(true)),
        ];
        for (variable, expected) in cases {
            assert_eq!(is_management_only(variable), expected);
        }
        let error = is_management_only(Some("yes")).unwrap_err();
        assert_eq!(
            error,
            "the environment variable PRIMARY_MANAGEMENT_ONLY is `yes`; it can be true or false"
        );
    }
}
