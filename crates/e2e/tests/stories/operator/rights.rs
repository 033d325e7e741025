//! Who may do what: users, administrators, other operators, whoever is in the network, and the operator itself.

use anyhow::{Context as _, Result, ensure};
use api::session::SessionId;
use e2e::{Stage, until};

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
        .stage
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

/// Its right to make Jobs everywhere, for sessions without a target, is no right to run anything else.
pub(super) fn the_operator_makes_no_jobs_but_agents(
    operator: &Operator,
    shop: &Stage,
) -> Result<()> {
    let account = format!(
        "--as=system:serviceaccount:{}:mirrord-operator",
        operator.stage.namespace
    );
    let image = "--image=registry.lab/tools:1";
    let refused = shop.kubectl(&["create", "job", "other", image, &account]);
    let refused = format!("{:#}", refused.err().context("a Job was made")?);
    let words = "only agents without a target, which have no rights";
    ensure!(refused.contains(words), "{refused}");
    // Nor to remove those of others.
    shop.kubectl(&["create", "job", "ours", image])?;
    let refused = shop.kubectl(&["delete", "job", "ours", &account]);
    let refused = format!("{:#}", refused.err().context("a Job was removed")?);
    ensure!(refused.contains(words), "{refused}");
    shop.kubectl(&["delete", "job", "ours"]).map(drop)
}

/// From a pod, without the front proxy's certificate, and with a header that claims to be somebody.
pub(super) async fn only_the_api_server_is_answered(operator: &Operator) -> Result<()> {
    let stage = &operator.stage;
    stage.client_pod("client").await?;
    let url = format!(
        "https://mirrord-operator.{}.svc/apis/operator.metalbear.co/v1/mirrordoperators/operator",
        stage.namespace
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
    // The nameserver hears of the Service by a watch, so a little later; after a restart of the API server, much later.
    let answer = until("the operator to answer a pod", async || {
        stage.run("client", &curl).await.map(Some)
    })
    .await?;
    ensure!(answer.contains("\"code\":401"), "{answer}");
    ensure!(!answer.contains("operator_version"), "{answer}");
    Ok(())
}

/// Anna may see everything, and use the one deployment.
pub(super) async fn users_need_rights(operator: &Operator, shop: &Stage) -> Result<()> {
    for name in ["anna", "eve"] {
        shop.kubectl(&["create", "serviceaccount", name])?;
    }
    let account = |name: &str| format!("system:serviceaccount:{}:{name}", shop.namespace);
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
    // By the plain form the API server asks for `get` only, so the operator's own question is what refuses.
    shop.kubectl(&[
        "create",
        "role",
        "looks",
        "--verb=get",
        "--resource=targets.operator.metalbear.co",
    ])?;
    let eve = format!("--user={}", account("eve"));
    shop.kubectl(&["create", "rolebinding", "looks", "--role=looks", &eve])?;
    // An API server hears of a new right by a watch, so a little later.
    for (name, verb) in [("anna", "proxy"), ("eve", "get")] {
        let account = format!("--as={}", account(name));
        let question = ["auth", "can-i", verb, TARGET, &account];
        until("a right to be known", async || {
            Ok(Some(shop.kubectl(&question)?))
        })
        .await?;
    }
    let path = format!(
        "/apis/operator.metalbear.co/v1/namespaces/{}/targets/deployment.web?connect=true",
        shop.namespace
    );
    let refused = operator.connect_as(shop, "eve", &path).await?;
    ensure!(
        refused.contains("may not have a session with deployment/web"),
        "{refused}"
    );
    ensure!(
        refused.contains("resourceNames: [deployment.web], verbs: [proxy]"),
        "{refused}"
    );
    // Anna gets past that question, and fails at the next one: she does not say which session.
    let path = path.replace("/v1/namespaces", "/v1/proxy/namespaces");
    let answered = operator.connect_as(shop, "anna", &path).await?;
    ensure!(answered.contains("x-session-id"), "{answered}");
    // Labels could choose the same pods and any others, so a right to one target is none to them.
    let by_labels = format!(
        "{}&label_target=app%3Dweb",
        path.replace("deployment.web", "label")
    );
    let refused = operator.connect_as(shop, "anna", &by_labels).await?;
    ensure!(refused.contains("forbidden"), "{refused}");
    // By the plain form the API server asks about `get` alone.
    let plain = by_labels.replace("/v1/proxy/namespaces", "/v1/namespaces");
    let refused = operator.connect_as(shop, "eve", &plain).await?;
    ensure!(
        refused.contains("they take the right to all targets"),
        "{refused}"
    );
    let elsewhere = path.replace("deployment.web", "service.web");
    let refused = operator.connect_as(shop, "anna", &elsewhere).await?;
    ensure!(refused.contains("forbidden"), "{refused}");
    Ok(())
}

/// Also not by an administrator, who has all rights on the object.
pub(super) fn sessions_are_not_changed_by_others(shop: &Stage, id: SessionId) -> Result<()> {
    let listed = shop.kubectl(&["get", "mirrordclustersessions", "--output=name"])?;
    let session = listed.lines().find(|name| name.ends_with(&id.to_string()));
    let session = session.with_context(|| format!("no object in {listed}"))?;
    for (part, change) in [
        ("spec", r#"{"spec": {"target": "deployment/other"}}"#),
        ("metadata", r#"{"metadata": {"finalizers": []}}"#),
    ] {
        let patch = ["patch", session, "--type=merge", "--patch", change];
        let refused = shop.kubectl(&patch).err();
        let refused = refused.with_context(|| format!("its {part} was changed"))?;
        let text = format!("{refused:#}");
        ensure!(
            text.contains("only the operator makes and changes sessions"),
            "{text}"
        );
    }
    Ok(())
}
