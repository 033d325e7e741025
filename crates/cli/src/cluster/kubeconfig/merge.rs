//! Adds the contexts of a hub to the text of a kubeconfig, and keeps everything else.
//!
//! The text is read as a tree, not as the types of a library, so that what others have written stays. Comments are lost, as with
//! kubectl.

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::cluster::address::HubAddress;
use crate::cluster::credential::API_VERSION;

const INSTALL_HINT: &str = "Install standin, and log in with `standin cluster login`: its contexts need `standin cluster credential`.";

/// What the kubeconfig gets.
#[derive(Debug)]
pub(super) struct Entries<'hub> {
    pub(super) hub: &'hub HubAddress,
    pub(super) clusters: Vec<String>,
    /// In PEM.
    pub(super) authorities: Option<&'hub str>,
    pub(super) plugin: Plugin,
}

/// The program that clients run for a credential.
#[derive(Debug)]
pub(super) struct Plugin {
    pub(super) command: String,
}

/// Contexts and clusters have the same name, and their user that of the hub.
pub(super) fn context_name(hub: &HubAddress, cluster: &str) -> String {
    format!("{}/{cluster}", hub.name())
}

pub(super) fn merge(text: &str, entries: &Entries<'_>) -> Result<String> {
    let mut root = parse(text)?;
    root.entry("apiVersion").or_insert_with(|| json!("v1"));
    root.entry("kind").or_insert_with(|| json!("Config"));
    for cluster in &entries.clusters {
        let name = context_name(entries.hub, cluster);
        let entry = entry(&mut root, "clusters", &name, "cluster")?;
        set_cluster(entry, cluster, entries);
        let entry = self::entry(&mut root, "contexts", &name, "context")?;
        // A namespace that the user has set stays.
        entry.insert("cluster".to_owned(), json!(name));
        entry.insert("user".to_owned(), json!(entries.hub.name()));
    }
    let user = entry(&mut root, "users", &entries.hub.name(), "user")?;
    user.clear();
    user.insert("exec".to_owned(), exec(entries));
    Ok(serde_saphyr::to_string(&Value::Object(root))?)
}

fn parse(text: &str) -> Result<Map<String, Value>> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    let root: Option<Map<String, Value>> = serde_saphyr::from_str(text).context(
        "the kubeconfig is not one YAML document with an object; `kubectl config view` shows what there is",
    )?;
    Ok(root.unwrap_or_default())
}

fn set_cluster(entry: &mut Map<String, Value>, cluster: &str, entries: &Entries<'_>) {
    for key in [
        "certificate-authority",
        "certificate-authority-data",
        "insecure-skip-tls-verify",
    ] {
        entry.remove(key);
    }
    let server = format!("{}{}{cluster}", entries.hub.url(), api::hub::path::PROXY);
    entry.insert("server".to_owned(), json!(server));
    if let Some(authorities) = entries.authorities {
        let data = STANDARD.encode(authorities);
        entry.insert("certificate-authority-data".to_owned(), json!(data));
    }
}

fn exec(entries: &Entries<'_>) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "command": entries.plugin.command,
        "args": ["cluster", "credential", "--hub", entries.hub.url()],
        "installHint": INSTALL_HINT,
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": false,
    })
}

/// The object of a named entry in a list of the kubeconfig. It is created if it does not exist.
fn entry<'root>(
    root: &'root mut Map<String, Value>,
    list: &str,
    name: &str,
    key: &str,
) -> Result<&'root mut Map<String, Value>> {
    let entries = root.entry(list).or_insert(Value::Null);
    if entries.is_null() {
        *entries = json!([]);
    }
    let wrong = || format!("`{list}` in the kubeconfig is not a list of objects with names");
    let entries = entries.as_array_mut().with_context(wrong)?;
    let is_entry = |entry: &Value| entry.get("name").and_then(Value::as_str) == Some(name);
    ensure!(entries.iter().all(Value::is_object), wrong());
    let index = entries.iter().position(is_entry).unwrap_or_else(|| {
        entries.push(json!({ "name": name }));
        entries.len() - 1
    });
    let entry = entries[index].as_object_mut().with_context(wrong)?;
    let value = entry.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut().with_context(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(text: &str, clusters: &[&str]) -> Result<String> {
        let hub = "hub.example.com".parse().unwrap();
        let entries = Entries {
            hub: &hub,
            clusters: clusters.iter().map(|name| (*name).to_owned()).collect(),
            authorities: Some("PEM"),
            plugin: Plugin {
                command: "standin".to_owned(),
            },
        };
        merge(text, &entries)
    }

    #[test]
    fn a_new_file_has_only_the_hub() {
        assert_eq!(
            merged("", &["prod-eu"]).unwrap(),
            "\
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: UEVN
    server: https://hub.example.com:6443/clusters/prod-eu
  name: hub.example.com/prod-eu
contexts:
- context:
    cluster: hub.example.com/prod-eu
    user: hub.example.com
  name: hub.example.com/prod-eu
kind: Config
users:
- name: hub.example.com
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      args:
      - cluster
      - credential
      - --hub
      - https://hub.example.com:6443
      command: standin
      installHint: \"Install standin, and log in with `standin cluster login`: its contexts need `standin cluster credential`.\"
      interactiveMode: IfAvailable
      provideClusterInfo: false
"
        );
    }

    /// What others have written, with values that a careless writer would change.
    const OTHERS: &str = "\
# a comment
apiVersion: v1
kind: Config
current-context: other
preferences: {colors: true}
unknown: {key: [1, 2.5, 'yes', \"0123\", '1e3', ~]}
clusters:
- name: other
  cluster: {server: 'https://10.0.0.1', insecure-skip-tls-verify: true, proxy-url: 'http://proxy:3128'}
- name: hub.example.com/prod-eu
  cluster: {server: 'https://old', insecure-skip-tls-verify: true, proxy-url: 'http://proxy:3128'}
contexts:
- name: other
  context: {cluster: other, user: other}
- name: hub.example.com/prod-eu
  context: {cluster: old, user: old, namespace: shop}
users:
- name: other
  user: {token: '0123456789', username: 'on'}
- name: hub.example.com
  user: {token: old}
";

    #[test]
    fn everything_else_in_a_file_stays() {
        let text = merged(OTHERS, &["prod-eu", "prod-us"]).unwrap();
        let before: Value = serde_saphyr::from_str(OTHERS).unwrap();
        let after: Value = serde_saphyr::from_str(&text).unwrap();
        for key in [
            "apiVersion",
            "kind",
            "current-context",
            "preferences",
            "unknown",
        ] {
            assert_eq!(before[key], after[key], "{key}");
        }
        for list in ["clusters", "contexts", "users"] {
            assert_eq!(before[list][0], after[list][0], "{list}");
        }
        let context = &after["contexts"][1]["context"];
        let expected = json!({
            "cluster": "hub.example.com/prod-eu", "user": "hub.example.com", "namespace": "shop",
        });
        assert_eq!(*context, expected);
        let cluster = &after["clusters"][1]["cluster"];
        let expected = json!({
            "server": "https://hub.example.com:6443/clusters/prod-eu",
            "certificate-authority-data": "UEVN",
            "proxy-url": "http://proxy:3128",
        });
        assert_eq!(*cluster, expected);
        assert_eq!(after["clusters"][2]["name"], "hub.example.com/prod-us");
        let user = after["users"][1]["user"].as_object().unwrap();
        assert_eq!(user.keys().collect::<Vec<_>>(), ["exec"]);
        // A second time changes nothing.
        assert_eq!(merged(&text, &["prod-eu", "prod-us"]).unwrap(), text);
    }

    #[test]
    fn files_that_are_no_kubeconfigs_are_refused() {
        for text in [
            "text",
            "[1]",
            "clusters: text",
            "clusters: [1]",
            "clusters: [{name: hub.example.com/a, cluster: 1}]",
            "a: 1\n---\nb: 2\n",
            "a: [",
        ] {
            assert!(merged(text, &["a"]).is_err(), "{text}");
        }
        for text in ["", "\n", "# nothing\n", "clusters:\nusers: null\n"] {
            merged(text, &["a"]).unwrap();
        }
    }
}
