//! What the chart says about members, without any cluster: it renders, and it refuses.

use std::env;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use e2e::Story;
use lab::binaries::Binaries;
use lab::{Paths, Progress};
use serde_json::{Value, json};

use super::CHART;

/// What looks like a certificate and like a key. The chart leaves reading them to the operator.
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

/// A place in the values, what is there instead, and what the chart says. Without a value, the key is taken away.
const WRONG: &[(&str, Option<&str>, &str)] = &[
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
        "`operator.multiCluster.clusters` names no cluster",
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
        "`operator.multiCluster.clusters.east.authType` is `password`; it can be bearerToken, eks or mtls",
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
        "operator/multiCluster/clusters/east/caData",
        None,
        "`operator.multiCluster.clusters.east.caData` is missing",
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
    // One with a password.
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

pub(super) async fn refuses_what_cannot_be(_story: &Story<'_>) -> Result<()> {
    let good = rendered(&primary(), &[])?;
    ensure!(
        good.status.success(),
        "{}",
        String::from_utf8_lossy(&good.stderr)
    );
    for (place, value, expected) in WRONG {
        let mut values = primary();
        change(&mut values, place, *value)?;
        let refused = rendered(&values, &[])?;
        let said = String::from_utf8_lossy(&refused.stderr);
        ensure!(
            !refused.status.success(),
            "{place} = {value:?} was accepted"
        );
        ensure!(said.contains(expected), "{place} = {value:?}: {said}");
    }
    Ok(())
}

fn change(values: &mut Value, place: &str, value: Option<&str>) -> Result<()> {
    let (parent, key) = place.rsplit_once('/').context("no key")?;
    let parent = values
        .pointer_mut(&format!("/{parent}"))
        .context("no such place")?;
    let parent = parent.as_object_mut().context("no object")?;
    match value {
        Some(value) => parent.insert(key.to_owned(), serde_json::from_str(value)?),
        None => parent.remove(key),
    };
    Ok(())
}

/// Rights are compared with files, so that a change of them is seen.
pub(super) async fn grants_what_it_says(_story: &Story<'_>) -> Result<()> {
    let member = json!({"operator": {"multiClusterMember": true}});
    let by_group =
        json!({"operator": {"multiClusterMember": true, "multiClusterMemberIamGroup": "envoys"}});
    let rights = ["envoy-serviceaccount", "envoy-clusterrole"];
    golden("member", &member, &rights)?;
    golden("member-by-iam-group", &by_group, &rights)?;
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
    let asking = json!({"operator": {
        "multiClusterMember": true,
        "multiClusterMemberUserAuthorization": true,
        "multiClusterMemberUserPrefix": "hub:",
        "multiClusterMemberGroupPrefix": "hub-",
    }});
    let arguments = String::from_utf8(rendered(&asking, &["operator-deployment"])?.stdout)?;
    for argument in [
        "- --member-user-authorization\n",
        "- \"--member-user-prefix=hub:\"\n",
        "- \"--member-group-prefix=hub-\"\n",
    ] {
        ensure!(arguments.contains(argument), "{argument}: {arguments}");
    }
    // Whoever vouches for a user never becomes the user.
    for values in [&member, &by_group, &asking, &primary()] {
        let all = String::from_utf8(rendered(values, &[])?.stdout)?;
        ensure!(
            !all.contains("impersonate"),
            "somebody may impersonate: {all}"
        );
    }
    let policy = rendered(&by_group, &["session-validatingadmissionpolicy"])?;
    let policy = String::from_utf8(policy.stdout)?;
    ensure!(
        policy.contains("|| 'envoys' in request.userInfo.groups"),
        "{policy}"
    );
    let alone = String::from_utf8(rendered(&json!({}), &[])?.stdout)?;
    ensure!(
        !alone.contains("name: mirrord-operator-envoy"),
        "an operator alone has rights of a member"
    );
    Ok(())
}

/// With `UPDATE_GOLDEN` set, the file is written instead.
fn golden(name: &str, values: &Value, templates: &[&str]) -> Result<()> {
    let output = rendered(values, templates)?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // These are on every object, and change with each version.
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
        "{} is not this any more; UPDATE_GOLDEN=1 writes it:\n{text}",
        path.display()
    );
    Ok(())
}
