//! The chart's templates for members, without a cluster: what it renders and what it refuses.

use std::env;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use e2e::Scenario;
use lab::binaries::Binaries;
use lab::{Paths, Progress};
use serde_json::{Value, json};

use super::CHART;

/// Values that look like a certificate and a key. The chart does not parse them; the operator does.
const CERTIFICATE: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==";
const KEY: &str = "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCg==";

/// `helm template` with these values.
fn rendered(values: &Value, templates: &[&str]) -> Result<Output> {
    let binaries = Binaries::ensure(&Paths::from_environment(), &Progress::to_stderr())?;
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(values.to_string().as_bytes())?;
    let mut helm = Command::new(binaries.program("helm"));
    helm.args([
        "template",
        "standin",
        CHART,
        "--namespace=standin",
        "--kube-version=1.34.0",
        "--values",
    ])
    .arg(file.path());
    for template in templates {
        helm.arg(format!("--show-only=templates/{template}.yaml"));
    }
    Ok(helm.output()?)
}

/// A Primary with a member of each kind.
fn primary() -> Value {
    let west = json!({
        "authType": "mtls", "server": "https://west", "caData": CERTIFICATE, "tlsCrt": CERTIFICATE, "tlsKey": KEY,
    });
    json!({
        "operator": {"multiCluster": {
            "enabled": true, "clusterName": "hub", "defaultCluster": "east", "managementOnly": true,
            "clusters": {
                "east": {"authType": "bearerToken", "server": "https://east:6443", "caData": CERTIFICATE, "bearerToken": "a-first-token"},
                "Team_Blue": {"authType": "eks", "server": "https://blue", "caData": CERTIFICATE, "region": "eu-north-1"},
                "west": west,
            },
        }},
        "sa": {"roleArn": "arn:aws:iam::123456789012:role/standin"},
    })
}

/// A path in the values, its invalid value, and the chart's error. Without a value the key is removed.
const INVALID: &[(&str, Option<&str>, &str)] = &[
    (
        "operator/multiCluster/clusterName",
        None,
        "`operator.multiCluster.clusterName` is missing",
    ),
    (
        "operator/multiCluster/clusterName",
        Some("\"Hub\""),
        "`operator.multiCluster.clusterName` must be a name of small letters",
    ),
    (
        "operator/multiCluster/clusters",
        None,
        "`operator.multiCluster.clusterName` is set, and `operator.multiCluster.clusters` names no cluster",
    ),
    (
        "operator/multiCluster/defaultCluster",
        None,
        "`operator.multiCluster.defaultCluster` is missing",
    ),
    (
        "operator/multiCluster/defaultCluster",
        Some("\"north\""),
        "`operator.multiCluster.defaultCluster` is north, which is neither",
    ),
    (
        "operator/multiCluster/defaultCluster",
        Some("\"hub\""),
        "`operator.multiCluster.defaultCluster` is hub, which has no targets because managementOnly",
    ),
    (
        "operator/multiCluster/clusters/west/isDefault",
        Some("true"),
        "`operator.multiCluster.defaultCluster` is east, and clusters.west.isDefault is set",
    ),
    (
        "operator/multiCluster/clusters/east/authType",
        None,
        "`operator.multiCluster.clusters.east.authType` is missing",
    ),
    (
        "operator/multiCluster/clusters/east/authType",
        Some("\"password\""),
        "`operator.multiCluster.clusters.east.authType` is `password`; it can be bearerToken, eks, mtls or tunnel",
    ),
    (
        "operator/multiCluster/clusters/east/server",
        None,
        "`operator.multiCluster.clusters.east.server` is missing",
    ),
    (
        "operator/multiCluster/clusters/east/server",
        Some("\"http://east\""),
        "`operator.multiCluster.clusters.east.server` must begin with https",
    ),
    (
        "operator/multiCluster/clusters/east/server",
        Some("\"https://\""),
        "`operator.multiCluster.clusters.east.server` names no host",
    ),
    (
        "operator/multiCluster/clusters/east/server",
        Some("\"https://:6443\""),
        "`operator.multiCluster.clusters.east.server` names no host",
    ),
    (
        "operator/multiCluster/clusters/Team_Blue/caData",
        None,
        "`operator.multiCluster.clusters.Team_Blue.caData` is missing",
    ),
    (
        "operator/multiCluster/clusters/east/caData",
        Some("\"YQ==\""),
        "`operator.multiCluster.clusters.east.caData` is not base64 of certificates",
    ),
    (
        "operator/multiCluster/clusters/east/region",
        Some("\"x\""),
        "`operator.multiCluster.clusters.east.region` is not for `authType: bearerToken`",
    ),
    (
        "operator/multiCluster/clusters/east/password",
        Some("\"x\""),
        "password",
    ),
    (
        "operator/multiCluster/clusters/east",
        Some(r#"{"authType": "tunnel", "server": "https://hub/clusters/west"}"#),
        "`operator.multiCluster.clusters.east.server` has a path",
    ),
    (
        "operator/multiCluster/clusters/east",
        Some(r#"{"authType": "tunnel", "server": "https://hub:6443", "region": "x"}"#),
        "`operator.multiCluster.clusters.east.region` is not for `authType: tunnel`",
    ),
    (
        "operator/multiCluster/clusters/Team_Blue/region",
        None,
        "`operator.multiCluster.clusters.Team_Blue.region` is missing",
    ),
    (
        "operator/multiCluster/clusters/Team_Blue/bearerToken",
        Some("\"x\""),
        "`operator.multiCluster.clusters.Team_Blue.bearerToken` is not for `authType: eks`",
    ),
    (
        "operator/multiCluster/clusters/Team_Blue/authType",
        Some("\"mtls\""),
        "`operator.multiCluster.clusters.Team_Blue` must be a name of small letters",
    ),
    (
        "operator/multiCluster/clusters/west/tlsKey",
        None,
        "`operator.multiCluster.clusters.west.tlsKey` is missing",
    ),
    (
        "operator/multiCluster/clusters/west/tlsCrt",
        None,
        "`operator.multiCluster.clusters.west.tlsCrt` is missing",
    ),
    (
        "operator/multiCluster/clusters/west/tlsCrt",
        Some("\"YQ==\""),
        "`operator.multiCluster.clusters.west.tlsCrt` is not base64 of a certificate",
    ),
    (
        "operator/multiCluster/clusters/west/tlsKey",
        Some("\"?\""),
        "`operator.multiCluster.clusters.west.tlsKey` is not base64 of a key",
    ),
    // An encrypted key.
    (
        "operator/multiCluster/clusters/west/tlsKey",
        Some("\"LS0tLS1CRUdJTiBFTkNSWVBURUQgUFJJVkFURSBLRVktLS0tLQo=\""),
        "`operator.multiCluster.clusters.west.tlsKey` is not base64 of a key",
    ),
    (
        "operator/multiCluster/clusters/hub",
        Some(r#"{"authType": "mtls"}"#),
        "`operator.multiCluster.clusters.hub` has the same name as `hub`",
    ),
    ("sa/roleArn", None, "`sa.roleArn` is missing"),
    (
        "operator/multiCluster/onUnreachable",
        Some("\"wait\""),
        "/operator/multiCluster/onUnreachable",
    ),
    (
        "operator/multiClusterMemberUserAuthorization",
        Some("true"),
        "`operator.multiClusterMemberUserAuthorization` is set, and `operator.multiClusterMember` is not",
    ),
    (
        "operator/multiClusterMemberUserPrefix",
        Some("\"hub:\""),
        "`operator.multiClusterMemberUserPrefix` is set, and `operator.multiClusterMemberUserAuthorization` is not",
    ),
    (
        "operator/multiClusterMemberGroupPrefix",
        Some("\"hub:\""),
        "`operator.multiClusterMemberGroupPrefix` is set, and `operator.multiClusterMemberUserAuthorization` is not",
    ),
    (
        "operator/multiClusterMemberIamGroup",
        Some("\"envoys\""),
        "`operator.multiClusterMemberIamGroup` is set, and `operator.multiClusterMember` is not",
    ),
];

pub(super) async fn refuses_invalid_values(_scenario: &Scenario<'_>) -> Result<()> {
    let good = rendered(&primary(), &[])?;
    ensure!(
        good.status.success(),
        "{}",
        String::from_utf8_lossy(&good.stderr)
    );
    for (path, value, expected) in INVALID {
        let mut values = primary();
        set_value(&mut values, path, *value)?;
        let refused = rendered(&values, &[])?;
        let stderr = String::from_utf8_lossy(&refused.stderr);
        ensure!(!refused.status.success(), "{path} = {value:?} was accepted");
        ensure!(stderr.contains(expected), "{path} = {value:?}: {stderr}");
    }
    Ok(())
}

fn set_value(values: &mut Value, path: &str, value: Option<&str>) -> Result<()> {
    let (parent, key) = path.rsplit_once('/').context("no key")?;
    let parent = values
        .pointer_mut(&format!("/{parent}"))
        .context("no such path")?;
    let parent = parent.as_object_mut().context("no object")?;
    match value {
        Some(value) => parent.insert(key.to_owned(), serde_json::from_str(value)?),
        None => parent.remove(key),
    };
    Ok(())
}

/// Compares the permissions with golden files, so that every change is reviewed.
pub(super) async fn grants_exactly_the_expected_permissions(
    _scenario: &Scenario<'_>,
) -> Result<()> {
    let member = json!({"operator": {"multiClusterMember": true}});
    let by_group =
        json!({"operator": {"multiClusterMember": true, "multiClusterMemberIamGroup": "envoys"}});
    let permissions = ["envoy-serviceaccount", "envoy-clusterrole"];
    golden("member", &member, &permissions)?;
    golden("member-by-iam-group", &by_group, &permissions)?;
    golden(
        "primary",
        &primary(),
        &[
            "envoy-clusterrole",
            "multicluster-role",
            "multicluster-configmap",
        ],
    )?;
    let config = String::from_utf8(rendered(&primary(), &["multicluster-configmap"])?.stdout)?;
    for secret in ["a-first-token", KEY] {
        ensure!(
            !config.contains(&format!(" {secret}")),
            "a secret is in the ConfigMap:\n{config}"
        );
    }
    let with_authorization = json!({"operator": {
        "multiClusterMember": true,
        "multiClusterMemberUserAuthorization": true,
        "multiClusterMemberUserPrefix": "hub:",
        "multiClusterMemberGroupPrefix": "hub-",
    }});
    let arguments =
        String::from_utf8(rendered(&with_authorization, &["operator-deployment"])?.stdout)?;
    for argument in [
        "- --member-user-authorization\n",
        "- \"--member-user-prefix=hub:\"\n",
        "- \"--member-group-prefix=hub-\"\n",
    ] {
        ensure!(arguments.contains(argument), "{argument}: {arguments}");
    }
    // An operator that names the user of a session must not be able to impersonate users.
    for values in [&member, &by_group, &with_authorization, &primary()] {
        let all = String::from_utf8(rendered(values, &[])?.stdout)?;
        ensure!(
            !all.contains("impersonate"),
            "a role allows impersonation: {all}"
        );
    }
    let policy = rendered(&by_group, &["session-validatingadmissionpolicy"])?;
    let policy = String::from_utf8(policy.stdout)?;
    ensure!(
        policy.contains("|| 'envoys' in request.userInfo.groups"),
        "{policy}"
    );
    // Only an operator with members behind a hub has a token for hubs.
    let mut behind_hub = primary();
    let tunnel = r#"{"authType": "tunnel", "server": "https://hub:6443"}"#;
    set_value(
        &mut behind_hub,
        "operator/multiCluster/clusters/west",
        Some(tunnel),
    )?;
    for (values, expected) in [(&primary(), false), (&behind_hub, true)] {
        let deployment = rendered(values, &["operator-deployment"])?;
        let deployment = String::from_utf8(deployment.stdout)?;
        let has_token = deployment.contains("{path: token, audience: standin-hub}");
        ensure!(has_token == expected, "{deployment}");
    }
    let standalone = String::from_utf8(rendered(&json!({}), &[])?.stdout)?;
    ensure!(
        !standalone.contains("name: mirrord-operator-envoy"),
        "an operator without members has a member's permissions"
    );
    Ok(())
}

/// Compares the rendered templates with a golden file. With `UPDATE_GOLDEN` set, writes the file first.
fn golden(name: &str, values: &Value, templates: &[&str]) -> Result<()> {
    let output = rendered(values, templates)?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // These labels are on every object, and change with each version.
    let is_label = |line: &&str| {
        line.starts_with("    app.kubernetes.io/") || line.starts_with("    helm.sh/chart")
    };
    let text = String::from_utf8(output.stdout)?;
    let text: String = text
        .lines()
        .filter(|line| !is_label(line))
        .map(|line| format!("{line}\n"))
        .collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/members/{name}.yaml"));
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().context("no folder")?)?;
        fs::write(&path, &text)?;
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    ensure!(
        text == expected,
        "{} differs; UPDATE_GOLDEN=1 writes it:\n{text}",
        path.display()
    );
    Ok(())
}
