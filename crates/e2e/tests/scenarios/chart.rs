//! The operator's chart: installation beside foreign objects, upgrade and removal.
//!
//! What rendering alone can show is tested in `xtask/tests/charts`.

use std::fs;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::{LazyEnvironment, Needs, Scenario, TestNamespace, scenario, until};
use lab::standind;
use libtest_mimic::Trial;

use super::support::load_agent_image;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/standin-operator");
/// The first version of the chart.
const FIRST_VERSION: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/fixtures/charts/standin-operator-0.1.0.tgz"
);
const API_SERVICE: &str = "v1.operator.metalbear.co";
const TROUBLESHOOTING: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/troubleshooting.md"
));

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![
        scenario(
            environment,
            "a_chart_is_upgraded_from_its_first_version",
            Needs::Lab,
            upgraded_from_the_first_version,
        ),
        scenario(
            environment,
            "a_chart_does_not_replace_a_foreign_operator",
            Needs::Lab,
            does_not_replace_a_foreign_operator,
        ),
        scenario(
            environment,
            "a_chart_is_removed_while_its_operator_is_down_and_has_a_session",
            Needs::Lab,
            removed_while_the_operator_is_down,
        ),
    ]
}

async fn upgraded_from_the_first_version(scenario: &Scenario<'_>) -> Result<()> {
    let release = Release::new(scenario).await?;
    let namespace = &release.namespace;
    let groups = ["--set", "userRole.groups={a,b}"];
    release.install(
        FIRST_VERSION,
        &[&groups[..], &["--wait", "--timeout=180s"]].concat(),
    )?;
    release.wait_until_available()?;
    let certificates = release.certificates()?;
    let before = release.objects()?;
    ensure!(
        before
            .iter()
            .any(|name| name.ends_with("mirrord-operator-user-a")),
        "the fixture is not the first version: {before:?}"
    );

    let mut upgrade = vec!["upgrade", "standin", CHART, "--wait", "--timeout=180s"];
    upgrade.extend(groups);
    release.helm(&upgrade)?;
    release.wait_until_available()?;
    ensure!(
        namespace
            .kubectl(&["get", "mirrordoperators", "operator", "--output=name"])?
            .contains("operator"),
        "the operator does not respond"
    );
    let after = release.objects()?;
    ensure!(
        !after
            .iter()
            .any(|name| name.ends_with("mirrord-operator-user-a")),
        "an object of the first version is left: {after:?}"
    );
    // New certificates would end every session.
    ensure!(
        release.certificates()? == certificates,
        "the operator has lost its certificates"
    );
    check_user_roles(&release).await?;
    release.uninstall()
}

/// A user who is bound in one namespace may have sessions there and nowhere else; a viewer may have none.
async fn check_user_roles(release: &Release) -> Result<()> {
    let namespace = &release.namespace;
    namespace.kubectl(&[
        "create",
        "rolebinding",
        "sessions",
        "--clusterrole=mirrord-operator-user",
        "--user=anna",
    ])?;
    let viewers = format!("viewers-{}", namespace.name);
    namespace.kubectl(&[
        "create",
        "clusterrolebinding",
        &viewers,
        "--clusterrole=mirrord-operator-viewer",
        "--user=anna",
    ])?;
    // The API server needs a moment to see new bindings.
    let checked = until("anna to have the expected permissions", async || {
        let wrong = unexpected_permissions(namespace)?;
        ensure!(wrong.is_empty(), "{wrong:?}");
        Ok(Some(()))
    });
    let checked = checked.await;
    namespace.kubectl(&["delete", "clusterrolebinding", &viewers])?;
    checked
}

/// The permissions of anna that differ from the expected ones.
fn unexpected_permissions(namespace: &TestNamespace) -> Result<Vec<String>> {
    let own = namespace.name.as_str();
    let mut wrong = Vec::new();
    for (verb, resource, scope, expected) in [
        ("proxy", "targets/deployment.web", own, "yes"),
        ("list", "targets", own, "yes"),
        ("proxy", "targets/deployment.web", "kube-system", "no"),
        ("list", "targets", "kube-system", "no"),
        ("get", "mirrordoperators/operator", "", "yes"),
        ("list", "sessions", "", "yes"),
        ("delete", "sessions", "", "no"),
    ] {
        let (kind, name) = resource.split_once('/').unwrap_or((resource, ""));
        let separator = if name.is_empty() { "" } else { "/" };
        let full_name = format!("{kind}.operator.metalbear.co{separator}{name}");
        let mut command = namespace.cluster.client.kubectl();
        command.args(["auth", "can-i", verb, &full_name, "--as=anna"]);
        if !scope.is_empty() {
            command.args(["--namespace", scope]);
        }
        // kubectl fails for "no", so only its output counts.
        let output = command.output()?;
        let allowed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if allowed != expected {
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            wrong.push(format!(
                "{verb} {resource} in {scope:?}: {allowed} {stderr}"
            ));
        }
    }
    Ok(wrong)
}

/// Both the APIService and the resource definitions may belong to another installation.
async fn does_not_replace_a_foreign_operator(scenario: &Scenario<'_>) -> Result<()> {
    let release = Release::new(scenario).await?;
    let namespace = &release.namespace;
    let api = format!(
        "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: {API_SERVICE}}}\nspec: {{group: \
         operator.metalbear.co, version: v1, groupPriorityMinimum: 1000, versionPriority: 15, service: {{name: other, \
         namespace: {}}}, insecureSkipTLSVerify: true}}\n",
        namespace.name
    );
    let definition = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: \
                      mirrordpolicies.policies.mirrord.metalbear.co}\nspec: {group: policies.mirrord.metalbear.co, scope: \
                      Namespaced, names: {plural: mirrordpolicies, kind: MirrordPolicy}, versions: [{name: v1alpha, \
                      served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}\n";
    for (manifest, name) in [
        (api.as_str(), "apiservice/v1.operator.metalbear.co"),
        (
            definition,
            "customresourcedefinition/mirrordpolicies.policies.mirrord.metalbear.co",
        ),
    ] {
        namespace.apply(manifest)?;
        let refused = release.install(CHART, &[]);
        let left = release.objects()?;
        namespace.kubectl(&["delete", name])?;
        let message = format!(
            "{:#}",
            refused.err().context("it was installed over another one")?
        );
        let (kind, object) = name.split_once('/').context("no kind")?;
        for text in [
            "already that is not of this release (installed without Helm)",
            object,
        ] {
            ensure!(
                message.contains(text),
                "{kind}: {text} is not in: {message}"
            );
        }
        let installed = left.iter().any(|name| name.contains("mirrord-operator"));
        ensure!(!installed, "something was installed: {left:?}");
    }
    let result = takes_over_objects_of_a_lost_release(&release);
    release.remove_everything()?;
    result
}

/// The namespace was deleted with the release in it. Its objects outside of the namespace remain, and name the release.
fn takes_over_objects_of_a_lost_release(release: &Release) -> Result<()> {
    let namespace = &release.namespace;
    let all = release.helm(&["template", "gone", CHART, "--kube-version=1.30.0"])?;
    // No APIService: one without a server would break namespace deletion for the whole cluster.
    let cluster_wide = [
        "CustomResourceDefinition",
        "ClusterRole",
        "ClusterRoleBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ];
    let remains = |document: &&str| {
        let kind = document
            .lines()
            .find_map(|line| line.strip_prefix("kind: "));
        kind.is_some_and(|kind| cluster_wide.contains(&kind))
            || document.contains("namespace: kube-system")
    };
    let left: Vec<&str> = all.split("\n---\n").filter(remains).collect();
    ensure!(left.len() > 10, "{} objects", left.len());
    // One of these objects is in kube-system, and the others are cluster-wide.
    let left = left.join("\n---\n");
    namespace.cluster.client.apply("kube-system", &left)?;
    // Helm adds this label to every object that it creates.
    for name in release.objects()? {
        if name.starts_with("customresourcedefinition") {
            namespace.kubectl(&["label", &name, "app.kubernetes.io/managed-by=Helm"])?;
        }
    }
    for command in takeover_commands("gone", &namespace.name)? {
        namespace.kubectl(&command.split_whitespace().collect::<Vec<_>>())?;
    }
    let refused = release.install(CHART, &["--dry-run=server"]);
    let refused = format!("{:#}", refused.err().context("it was not refused")?);
    let owner = format!("(release gone in namespace {})", namespace.name);
    ensure!(refused.contains(&owner), "{refused}");
    for command in takeover_commands("standin", &namespace.name)? {
        namespace.kubectl(&command.split_whitespace().collect::<Vec<_>>())?;
    }
    // Helm checks the owner of every object, also in a dry run.
    release.install(CHART, &["--dry-run=server"])
}

/// The takeover commands of the troubleshooting page for a release, without `kubectl`.
fn takeover_commands(name: &str, namespace: &str) -> Result<Vec<String>> {
    let (_, block) = TROUBLESHOOTING
        .split_once("```sh\nkubectl annotate ")
        .context("the page has no takeover commands")?;
    let (block, _) = block
        .split_once("```")
        .context("the block of commands has no end")?;
    let block = format!("annotate {}", block.replace("\\\n", " "))
        .replace("release-name=standin", &format!("release-name={name}"))
        .replace(
            "release-namespace=standin",
            &format!("release-namespace={namespace}"),
        );
    let commands = block.lines().filter(|line| !line.trim().is_empty());
    let commands = commands.map(|line| line.trim_start_matches("kubectl ").to_owned());
    Ok(commands.collect())
}

/// The operator's pods are gone, and the object of a session has a finalizer that only the operator removes.
async fn removed_while_the_operator_is_down(scenario: &Scenario<'_>) -> Result<()> {
    let release = Release::new(scenario).await?;
    let namespace = &release.namespace;
    release.install(CHART, &["--wait", "--timeout=180s"])?;
    release.wait_until_available()?;
    let shop = scenario.namespace().await?;
    shop.web().await?;
    let account = format!(
        "--as=system:serviceaccount:{}:mirrord-operator",
        namespace.name
    );
    let folder = tempfile::tempdir()?;
    let manifest = folder.path().join("session.yaml");
    fs::write(&manifest, session(&shop.name))?;
    let manifest = manifest
        .to_str()
        .context("the path of the session is not UTF-8")?;
    namespace.kubectl(&[
        "create",
        &account,
        "--as-group=system:authenticated",
        "-f",
        manifest,
    ])?;
    until("the session to have agents", async || {
        let phase = [
            "get",
            "mirrordclustersessions",
            "--output=jsonpath={.items[*].status.phase}",
        ];
        Ok((namespace.kubectl(&phase)? == "Ready").then_some(()))
    })
    .await?;

    namespace.kubectl(&["scale", "deployment/mirrord-operator", "--replicas=0"])?;
    until("the API to be unavailable", async || {
        let condition = "--output=jsonpath={.status.conditions[?(@.type==\"Available\")].status}";
        let available = namespace.kubectl(&["get", "apiservice", API_SERVICE, condition])?;
        Ok((available == "False").then_some(()))
    })
    .await?;
    release.uninstall()?;
    // An API that does not respond would block the deletion of every namespace.
    let victim = scenario.namespace().await?;
    victim.kubectl(&["delete", "namespace", &victim.name, "--timeout=60s"])?;
    until("the agents to exit by themselves", async || {
        let running =
            "--output=jsonpath={.items[*].status.ephemeralContainerStatuses[*].state.running}";
        let running = shop.kubectl(&["get", "pods", running])?;
        Ok(running.trim().is_empty().then_some(()))
    })
    .await
}

/// A session as the operator would create it, whose client never connects.
fn session(namespace: &str) -> String {
    let certificate = "00".repeat(32);
    format!(
        "apiVersion: mirrord.metalbear.co/v1alpha\nkind: MirrordClusterSession\nmetadata:\n  name: \
         session-00000000000000ab\n  finalizers: [{}]\nspec:\n  owner: {{userId: anna, username: Anna, hostname: \
         laptop, k8sUsername: anna}}\n  namespace: {namespace}\n  target: deployment/web\n  resumeWindowSecs: 60\n  \
         clientCertificate: \"{certificate}\"\n",
        api::session::FINALIZER
    )
}

/// A release of the chart in a namespace of its own.
struct Release {
    namespace: TestNamespace,
}

impl Release {
    async fn new(scenario: &Scenario<'_>) -> Result<Self> {
        load_agent_image(scenario)?;
        let namespace = scenario.namespace().await?;
        let release = Release { namespace };
        // A scenario that failed may have left objects.
        release.remove_everything()?;
        Ok(release)
    }

    /// Deletes all objects of the chart, of any release.
    fn remove_everything(&self) -> Result<()> {
        for name in self.objects()? {
            let arguments = ["delete", &name, "--ignore-not-found", "--timeout=30s"];
            let _ = self.namespace.kubectl(&arguments);
            let in_kube_system = [&arguments[..], &["--namespace=kube-system"]].concat();
            let _ = self.namespace.kubectl(&in_kube_system);
        }
        Ok(())
    }

    /// The data of the operator's Secret.
    fn certificates(&self) -> Result<String> {
        let data = "--output=jsonpath={.data}";
        let data = self
            .namespace
            .kubectl(&["get", "secret", "mirrord-operator-tls", data])?;
        ensure!(data.len() > 100, "there are no certificates: {data}");
        Ok(data)
    }

    fn install(&self, chart: &str, more: &[&str]) -> Result<()> {
        let mut arguments = vec!["install", "standin", chart];
        arguments.extend(more);
        self.helm(&arguments).map(drop)
    }

    fn helm(&self, arguments: &[&str]) -> Result<String> {
        let (repository, tag) = standind::REFERENCE.rsplit_once(':').context("no tag")?;
        let mut command = self.namespace.cluster.client.helm();
        command
            .args(["--namespace", &self.namespace.name])
            .args(arguments);
        if arguments[0] != "uninstall" {
            command.arg("--set");
            command.arg(format!("operator.image.repository={repository}"));
            command
                .arg("--set-string")
                .arg(format!("operator.image.tag={tag}"));
        }
        Ok(lab::output_of(&mut command)?)
    }

    fn wait_until_available(&self) -> Result<()> {
        let service = format!("apiservice/{API_SERVICE}");
        let condition = "--for=condition=Available";
        self.namespace
            .kubectl(&["wait", condition, &service, "--timeout=60s"])
            .map(drop)
    }

    /// The names of all objects of the chart, cluster-wide and in its namespace.
    fn objects(&self) -> Result<Vec<String>> {
        let cluster_wide = "apiservices,customresourcedefinitions,clusterroles,clusterrolebindings,\
                          validatingadmissionpolicies,validatingadmissionpolicybindings";
        let namespaced = "deployments,daemonsets,services,secrets,configmaps,leases,serviceaccounts,jobs,roles,rolebindings,\
                    poddisruptionbudgets,networkpolicies";
        let mut found = String::new();
        for kinds in [cluster_wide, namespaced] {
            found += &self.namespace.kubectl(&["get", kinds, "--output=name"])?;
        }
        found += &self.namespace.kubectl(&[
            "get",
            "rolebindings",
            "--output=name",
            "--namespace=kube-system",
        ])?;
        let ours = |name: &&str| name.contains("mirrord") || name.contains("metalbear");
        Ok(found.lines().filter(ours).map(str::to_owned).collect())
    }

    fn uninstall(&self) -> Result<()> {
        self.helm(&["uninstall", "standin", "--wait", "--timeout=180s"])?;
        let left = self.objects()?;
        ensure!(left.is_empty(), "left behind: {left:?}");
        Ok(())
    }
}
