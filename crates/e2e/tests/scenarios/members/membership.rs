//! The members as the Primary shows them: credentials that are missing, renewed or removed, and changes of the configuration.

use anyhow::{Context as _, Result, ensure};
use e2e::{OwnClusters, until};
use serde_json::{Value, json};

use super::credential;
use super::operator::{Operator, member_of};

/// East uses a token, and west a certificate whose Secret does not exist yet.
pub(super) fn hub_values(clusters: &OwnClusters, token: &str) -> Result<Value> {
    let member = |name: &str, method: &str| -> Result<Value> {
        let cluster = clusters.lab().cluster(name)?;
        let (authority, _) = cluster.authority()?;
        Ok(json!({
            "authType": method,
            "server": cluster.api_server(),
            "caData": credential::base64(authority.as_bytes()),
        }))
    };
    let mut east = member("east", "bearerToken")?;
    east["bearerToken"] = json!(token);
    Ok(json!({"operator": {"multiCluster": {
        "enabled": true,
        "clusterName": "hub",
        "defaultCluster": "east",
        "managementOnly": true,
        "clusters": {"east": east, "west": member("west", "mtls")?},
    }}}))
}

/// East connects at once. West has no credential; its Secret is found without a restart when it is created.
pub(super) async fn members_are_shown(
    hub: &Operator,
    west: &Operator,
    clusters: &OwnClusters,
) -> Result<()> {
    let object = until("the first member to be connected", async || {
        let object = hub.object()?;
        Ok(member_of(&object, "east")["connected"]
            .is_object()
            .then_some(object))
    })
    .await?;
    let features = object["spec"]["supported_features"].to_string();
    ensure!(features.contains("MultiClusterPrimary"), "{features}");
    let error = member_of(&object, "west")["error"].to_string();
    ensure!(
        error.contains("mirrord-cluster-west does not exist"),
        "{error}"
    );
    a_certificate_of_another_name_is_shown(hub, west, clusters).await?;
    create_certificate(hub, west, clusters)?;
    until("the second member to be connected", async || {
        let object = hub.object()?;
        Ok(member_of(&object, "west")["connected"]["operator_version"]
            .is_string()
            .then_some(()))
    })
    .await
}

/// A certificate whose name the member's chart does not expect, although its administrator has bound it to the roles.
async fn a_certificate_of_another_name_is_shown(
    hub: &Operator,
    west: &Operator,
    clusters: &OwnClusters,
) -> Result<()> {
    let roles = ["mirrord-operator-envoy", "mirrord-operator-envoy-remote"];
    for role in roles {
        let (binding, role) = (format!("other-{role}"), format!("--clusterrole={role}"));
        let binding = [
            "create",
            "clusterrolebinding",
            &binding,
            &role,
            "--user=other",
        ];
        west.namespace.kubectl(&binding)?;
    }
    certificate_secret(hub, &credential::certificate(clusters, "west", "other")?)?;
    until("the member to be shown with its refusal", async || {
        let error = member_of(&hub.object()?, "west")["error"].to_string();
        let is_shown = error.contains("the member refuses sessions of this operator");
        ensure!(is_shown, "{error}");
        Ok(Some(()))
    })
    .await?;
    for role in roles {
        let binding = format!("other-{role}");
        west.namespace
            .kubectl(&["delete", "clusterrolebinding", &binding])?;
    }
    Ok(())
}

pub(super) fn create_certificate(
    hub: &Operator,
    west: &Operator,
    clusters: &OwnClusters,
) -> Result<()> {
    let account = format!(
        "system:serviceaccount:{}:mirrord-operator-envoy",
        west.namespace.name
    );
    certificate_secret(hub, &credential::certificate(clusters, "west", &account)?)
}

/// Creates the Secret of a member that authenticates the hub by a certificate.
pub(super) fn certificate_secret(hub: &Operator, (chain, key): &(String, String)) -> Result<()> {
    let indented = |pem: &str| {
        pem.lines()
            .map(|line| format!("    {line}\n"))
            .collect::<String>()
    };
    hub.namespace.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: mirrord-cluster-west\n  labels: \
         {{operator.metalbear.co/remote-cluster-credentials: \"true\"}}\nstringData:\n  tls.crt: |\n{}  tls.key: |\n{}",
        indented(chain),
        indented(key)
    ))
}

/// The first token expires, a chart upgrade is without it, and the member stays connected.
pub(super) async fn tokens_renew_themselves(
    hub: &Operator,
    clusters: &OwnClusters,
    first: &str,
    values: &Value,
) -> Result<()> {
    until("a token that the hub has requested itself", async || {
        let stored = "--output=jsonpath={.data.east}";
        let stored = hub.namespace.kubectl(&[
            "get",
            "secret",
            "mirrord-operator-cluster-token-east",
            "--ignore-not-found",
            stored,
        ])?;
        Ok((!stored.is_empty() && stored != credential::base64(first.as_bytes())).then_some(()))
    })
    .await?;
    until("the first token to expire", async || {
        Ok(credential::is_refused(clusters, "east", first)
            .await?
            .then_some(()))
    })
    .await?;
    let mut values = values.clone();
    let entry = &mut values["operator"]["multiCluster"]["clusters"]["east"];
    let entry = entry.as_object_mut().context("no member")?;
    entry.remove("bearerToken");
    hub.helm("upgrade", &values)?;
    hub.namespace
        .kubectl(&["rollout", "restart", "deployment/mirrord-operator"])?;
    hub.wait_until_available()?;
    let object = until(
        "the member to be connected by the stored token",
        async || {
            let object = hub.object()?;
            Ok(member_of(&object, "east")["connected"]
                .is_object()
                .then_some(object))
        },
    )
    .await?;
    let east = member_of(&object, "east");
    ensure!(east["warning"].is_null(), "{east}");
    Ok(())
}

/// An administrator removes a member in the ConfigMap, and adds it again. The operator's pods stay the same.
pub(super) async fn members_change_without_a_restart(hub: &Operator, values: &Value) -> Result<()> {
    let pods = || {
        let pods = [
            "get",
            "pods",
            "--output=name",
            "--selector=app.kubernetes.io/component=operator",
        ];
        hub.namespace.kubectl(&pods)
    };
    let before = pods()?;
    for names in [&["east"][..], &["east", "west"]] {
        configure_members(hub, values, names)?;
        until(&format!("the members {names:?}"), async || {
            let object = hub.object()?;
            let members = object["status"]["connected_clusters"].as_array();
            let members = members.into_iter().flatten();
            let connected = members.filter(|member| member["connected"].is_object());
            let connected: Vec<_> = connected.map(|member| member["name"].clone()).collect();
            ensure!(connected == names, "{object}");
            Ok(Some(()))
        })
        .await?;
    }
    ensure!(pods()? == before, "the operator was restarted");
    Ok(())
}

/// Writes the ConfigMap with these members. JSON is YAML.
fn configure_members(hub: &Operator, values: &Value, names: &[&str]) -> Result<()> {
    let mut configuration = values["operator"]["multiCluster"].clone();
    let members = configuration["clusters"].take();
    let members = names.iter().map(|name| {
        let mut member = members[*name].clone();
        let entries = member.as_object_mut().context("no member")?;
        entries.remove("bearerToken");
        entries.insert("name".to_owned(), json!(name));
        Ok(member)
    });
    configuration["clusters"] = members.collect::<Result<Value>>()?;
    configuration
        .as_object_mut()
        .context("no configuration")?
        .remove("enabled");
    let patch = json!({"data": {"clusters-config.yaml": configuration.to_string()}}).to_string();
    let patch = [
        "patch",
        "configmap",
        "mirrord-operator-clusters",
        "--patch",
        &patch,
    ];
    hub.namespace.kubectl(&patch).map(drop)
}

pub(super) async fn a_removed_credential_is_shown(
    hub: &Operator,
    west: &Operator,
    clusters: &OwnClusters,
) -> Result<()> {
    hub.namespace
        .kubectl(&["delete", "secret", "mirrord-cluster-west"])?;
    until("the member to be shown without a credential", async || {
        let error = member_of(&hub.object()?, "west")["error"].to_string();
        Ok(error
            .contains("mirrord-cluster-west does not exist")
            .then_some(()))
    })
    .await?;
    create_certificate(hub, west, clusters)?;
    until("the member to be connected again", async || {
        Ok(member_of(&hub.object()?, "west")["connected"]
            .is_object()
            .then_some(()))
    })
    .await
}
