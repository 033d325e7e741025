//! Permissions of users, administrators, other operators, clients in the network, and the operator itself.

use anyhow::{Context as _, Result, ensure};
use api::session::SessionId;
use e2e::{TestNamespace, until};

use super::{CHART, Operator, TARGET};

pub(super) fn another_operator_is_refused(operator: &Operator) -> Result<()> {
    let refused = operator.helm(&["install", "another", CHART]);
    let text = format!(
        "{:#}",
        refused.err().context("a second operator was installed")?
    );
    ensure!(
        text.contains("already that is not of this release"),
        "{text}"
    );
    Ok(())
}

pub(super) fn forged_sessions_are_refused(operator: &Operator) -> Result<()> {
    let forged = "apiVersion: mirrord.metalbear.co/v1alpha\nkind: MirrordClusterSession\nmetadata: {name: \
                  session-00000000000000aa}\nspec: {owner: {userId: '', username: '', hostname: '', k8sUsername: \
                  admin}, namespace: default, target: deployment/web, resumeWindowSecs: 60, clientCertificate: ''}\n";
    let refused = operator
        .namespace
        .apply(forged)
        .err()
        .context("a forged session was accepted")?;
    let text = format!("{refused:#}");
    ensure!(
        text.contains("only the operator makes and changes sessions"),
        "{text}"
    );
    Ok(())
}

/// The operator may create Jobs in all namespaces, for sessions without a target, but only Jobs of agents.
pub(super) fn the_operator_creates_no_jobs_but_agents(
    operator: &Operator,
    shop: &TestNamespace,
) -> Result<()> {
    let account = format!(
        "--as=system:serviceaccount:{}:mirrord-operator",
        operator.namespace.name
    );
    let image = "--image=registry.lab/tools:1";
    let refused = shop.kubectl(&["create", "job", "other", image, &account]);
    let refused = format!("{:#}", refused.err().context("a Job was created")?);
    let text = "only agents without a target, which have no rights";
    ensure!(refused.contains(text), "{refused}");
    // It may not delete the Jobs of others.
    shop.kubectl(&["create", "job", "ours", image])?;
    let refused = shop.kubectl(&["delete", "job", "ours", &account]);
    let refused = format!("{:#}", refused.err().context("a Job was removed")?);
    ensure!(refused.contains(text), "{refused}");
    shop.kubectl(&["delete", "job", "ours"]).map(drop)
}

/// A pod without the front proxy's certificate is rejected, although its headers claim to be an administrator.
pub(super) async fn only_the_api_server_is_served(operator: &Operator) -> Result<()> {
    let namespace = &operator.namespace;
    namespace.client_pod("client").await?;
    let url = format!(
        "https://mirrord-operator.{}.svc/apis/operator.metalbear.co/v1/mirrordoperators/operator",
        namespace.name
    );
    let curl = [
        "curl",
        "-sSk",
        "-H",
        "X-Remote-User: admin",
        "-H",
        "X-Remote-Group: system:masters",
        &url,
    ];
    // The nameserver learns of the Service by a watch, with some delay, and with a long delay after an API server restart.
    let response = until("the operator to respond to a pod", async || {
        namespace.run("client", &curl).await.map(Some)
    })
    .await?;
    ensure!(response.contains("\"code\":401"), "{response}");
    ensure!(!response.contains("operator_version"), "{response}");
    Ok(())
}

/// Anna may use one deployment, and eve may only read targets.
pub(super) async fn users_need_permissions(
    operator: &Operator,
    shop: &TestNamespace,
) -> Result<()> {
    for name in ["anna", "eve"] {
        shop.kubectl(&["create", "serviceaccount", name])?;
    }
    let account = |name: &str| format!("system:serviceaccount:{}:{name}", shop.name);
    let user = format!("--user={}", account("anna"));
    shop.kubectl(&[
        "create",
        "role",
        "sessions",
        "--verb=proxy",
        "--resource=targets.operator.metalbear.co",
        "--resource-name=deployment.web",
    ])?;
    shop.kubectl(&[
        "create",
        "rolebinding",
        "sessions",
        "--role=sessions",
        &user,
    ])?;
    // For the path without `proxy` the API server checks only `get`, so the operator's own check must refuse.
    shop.kubectl(&[
        "create",
        "role",
        "viewer",
        "--verb=get",
        "--resource=targets.operator.metalbear.co",
    ])?;
    let eve = format!("--user={}", account("eve"));
    shop.kubectl(&["create", "rolebinding", "viewer", "--role=viewer", &eve])?;
    // The API server learns of new permissions by a watch, with some delay.
    for (name, verb) in [("anna", "proxy"), ("eve", "get")] {
        let account = format!("--as={}", account(name));
        let arguments = ["auth", "can-i", verb, TARGET, &account];
        until("a permission to take effect", async || {
            Ok(Some(shop.kubectl(&arguments)?))
        })
        .await?;
    }
    let path = format!(
        "/apis/operator.metalbear.co/v1/namespaces/{}/targets/deployment.web?connect=true",
        shop.name
    );
    let refused = operator.connect_response(shop, "eve", &path).await?;
    ensure!(
        refused.contains("may not have a session with deployment/web"),
        "{refused}"
    );
    ensure!(
        refused.contains("resourceNames: [deployment.web], verbs: [proxy]"),
        "{refused}"
    );
    // Anna passes this check, and fails at the next one, because the session id is missing.
    let path = path.replace("/v1/namespaces", "/v1/proxy/namespaces");
    let response = operator.connect_response(shop, "anna", &path).await?;
    ensure!(response.contains("x-session-id"), "{response}");
    // Labels could select any pods, so a permission for one target does not include label targets.
    let by_labels = format!(
        "{}&label_target=app%3Dweb",
        path.replace("deployment.web", "label")
    );
    let refused = operator.connect_response(shop, "anna", &by_labels).await?;
    ensure!(refused.contains("forbidden"), "{refused}");
    // For the path without `proxy` the API server checks only `get`.
    let plain = by_labels.replace("/v1/proxy/namespaces", "/v1/namespaces");
    let refused = operator.connect_response(shop, "eve", &plain).await?;
    ensure!(
        refused.contains("they take the right to all targets"),
        "{refused}"
    );
    let elsewhere = path.replace("deployment.web", "service.web");
    let refused = operator.connect_response(shop, "anna", &elsewhere).await?;
    ensure!(refused.contains("forbidden"), "{refused}");
    Ok(())
}

/// Not even an administrator, who has all permissions for the object, may change a session, nor the operator its spec.
pub(super) fn sessions_are_not_changed(
    operator: &Operator,
    shop: &TestNamespace,
    id: SessionId,
) -> Result<()> {
    let listed = shop.kubectl(&["get", "mirrordclustersessions", "--output=name"])?;
    let session = listed.lines().find(|name| name.ends_with(&id.to_string()));
    let session = session.with_context(|| format!("no object in {listed}"))?;
    let account = format!(
        "--as=system:serviceaccount:{}:mirrord-operator",
        operator.namespace.name
    );
    let spec = r#"{"spec": {"target": "deployment/other"}}"#;
    let others = "only the operator makes and changes sessions";
    let immutable = "the spec of a session never changes";
    let cases: [(&str, &[&str], &str); 3] = [
        (spec, &[], immutable),
        (spec, &[&account], immutable),
        (r#"{"metadata": {"finalizers": []}}"#, &[], others),
    ];
    for (change, flags, expected) in cases {
        let patch = ["patch", session, "--type=merge", "--patch", change];
        let refused = shop.kubectl(&[&patch, flags].concat()).err();
        let refused = refused.with_context(|| format!("{change} was accepted"))?;
        let text = format!("{refused:#}");
        ensure!(text.contains(expected), "{text}");
    }
    Ok(())
}
