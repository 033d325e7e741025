//! The operator's chart over its life: beside strangers, from version to version, and to its end.
//!
//! What rendering alone can show is tested in `xtask/tests/charts`.

use std::fs;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::{LaterWorld, Needs, Stage, Story, tell, until};
use lab::standind;
use libtest_mimic::Trial;

use super::surroundings::load_agent_image;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/standin-operator");
/// The chart as it was first.
const FIRST: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/fixtures/charts/standin-operator-0.1.0.tgz"
);
const API_SERVICE: &str = "v1.operator.metalbear.co";
const TROUBLESHOOTING: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/troubleshooting.md"
));

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![
        tell(
            world,
            "a_chart_is_upgraded_from_its_first_version",
            Needs::Lab,
            upgraded_from_the_first_version,
        ),
        tell(
            world,
            "a_chart_does_not_take_the_place_of_a_foreign_operator",
            Needs::Lab,
            beside_a_foreign_operator,
        ),
        tell(
            world,
            "a_chart_is_removed_while_its_operator_is_down_and_has_a_session",
            Needs::Lab,
            removed_while_the_operator_is_down,
        ),
    ]
}

async fn upgraded_from_the_first_version(story: &Story<'_>) -> Result<()> {
    let release = Release::new(story).await?;
    let stage = &release.stage;
    let groups = ["--set", "userRole.groups={a,b}"];
    release.install(
        FIRST,
        &[&groups[..], &["--wait", "--timeout=180s"]].concat(),
    )?;
    release.wait_until_available()?;
    let certificates = release.certificates()?;
    let before = release.objects()?;
    ensure!(
        before
            .iter()
            .any(|name| name.ends_with("mirrord-operator-user-a")),
        "the first version is not what it was: {before:?}"
    );

    let mut upgrade = vec!["upgrade", "standin", CHART, "--wait", "--timeout=180s"];
    upgrade.extend(groups);
    release.helm(&upgrade)?;
    release.wait_until_available()?;
    ensure!(
        stage
            .kubectl(&["get", "mirrordoperators", "operator", "--output=name"])?
            .contains("operator"),
        "the operator does not answer"
    );
    let after = release.objects()?;
    ensure!(
        !after
            .iter()
            .any(|name| name.ends_with("mirrord-operator-user-a")),
        "an object of the first version is left: {after:?}"
    );
    // Other certificates would end every session.
    ensure!(
        release.certificates()? == certificates,
        "the operator has lost its certificates"
    );
    rights_of_people(&release).await?;
    release.uninstall()
}

/// Who is bound in one namespace has sessions there and nowhere else; who may look has none.
async fn rights_of_people(release: &Release) -> Result<()> {
    let stage = &release.stage;
    let namespace = stage.namespace.as_str();
    stage.kubectl(&[
        "create",
        "rolebinding",
        "sessions",
        "--clusterrole=mirrord-operator-user",
        "--user=anna",
    ])?;
    let viewers = format!("viewers-{namespace}");
    stage.kubectl(&[
        "create",
        "clusterrolebinding",
        &viewers,
        "--clusterrole=mirrord-operator-viewer",
        "--user=anna",
    ])?;
    // The API server takes a moment to know new bindings.
    let answered = until("anna's rights to be right", async || {
        let wrong = wrong_answers(stage, namespace)?;
        ensure!(wrong.is_empty(), "{wrong:?}");
        Ok(Some(()))
    });
    let answered = answered.await;
    stage.kubectl(&["delete", "clusterrolebinding", &viewers])?;
    answered
}

/// What the API server answers about anna that should be answered otherwise.
fn wrong_answers(stage: &Stage, namespace: &str) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for (verb, resource, place, expected) in [
        ("proxy", "targets/deployment.web", namespace, "yes"),
        ("list", "targets", namespace, "yes"),
        ("proxy", "targets/deployment.web", "kube-system", "no"),
        ("list", "targets", "kube-system", "no"),
        ("get", "mirrordoperators/operator", "", "yes"),
        ("list", "sessions", "", "yes"),
        ("delete", "sessions", "", "no"),
    ] {
        let (kind, name) = resource.split_once('/').unwrap_or((resource, ""));
        let separator = if name.is_empty() { "" } else { "/" };
        let asked = format!("{kind}.operator.metalbear.co{separator}{name}");
        let mut command = stage.cluster.client.kubectl();
        command.args(["auth", "can-i", verb, &asked, "--as=anna"]);
        if !place.is_empty() {
            command.args(["--namespace", place]);
        }
        // It fails for "no", so only what it says counts.
        let answer = command.output()?;
        let said = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
        if said != expected {
            let also = String::from_utf8_lossy(&answer.stderr).into_owned();
            wrong.push(format!("{verb} {resource} in {place:?}: {said} {also}"));
        }
    }
    Ok(wrong)
}

/// Both what serves the API and what stores its objects may be somebody else's.
async fn beside_a_foreign_operator(story: &Story<'_>) -> Result<()> {
    let release = Release::new(story).await?;
    let stage = &release.stage;
    let api = format!(
        "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: {API_SERVICE}}}\nspec: {{group: \
         operator.metalbear.co, version: v1, groupPriorityMinimum: 1000, versionPriority: 15, service: {{name: other, \
         namespace: {}}}, insecureSkipTLSVerify: true}}\n",
        stage.namespace
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
        stage.apply(manifest)?;
        let refused = release.install(CHART, &[]);
        let left = release.objects()?;
        stage.kubectl(&["delete", name])?;
        let message = format!(
            "{:#}",
            refused.err().context("it was installed over another one")?
        );
        let (kind, object) = name.split_once('/').context("no kind")?;
        for words in [
            "already that is not of this release (installed without Helm)",
            object,
        ] {
            ensure!(
                message.contains(words),
                "{kind}: {words} is not in: {message}"
            );
        }
        let installed = left.iter().any(|name| name.contains("mirrord-operator"));
        ensure!(!installed, "something was installed: {left:?}");
    }
    let taken_over = what_a_lost_release_has_left_is_taken_over(&release);
    release.remove_everything()?;
    taken_over
}

/// The namespace was deleted with the release in it. What is outside of it is left, and says whose it was.
fn what_a_lost_release_has_left_is_taken_over(release: &Release) -> Result<()> {
    let stage = &release.stage;
    let all = release.helm(&["template", "gone", CHART, "--kube-version=1.30.0"])?;
    // An API that nobody serves would be in everybody's way.
    let outside = [
        "CustomResourceDefinition",
        "ClusterRole",
        "ClusterRoleBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ];
    let is_left = |document: &&str| {
        let kind = document.lines().find_map(|it| it.strip_prefix("kind: "));
        kind.is_some_and(|kind| outside.contains(&kind))
            || document.contains("namespace: kube-system")
    };
    let left: Vec<&str> = all.split("\n---\n").filter(is_left).collect();
    ensure!(left.len() > 10, "{} objects", left.len());
    // One of them has a namespace, and the others have none.
    let left = left.join("\n---\n");
    stage.cluster.client.apply("kube-system", &left)?;
    // Helm itself adds this to whatever it makes.
    for name in release.objects()? {
        if name.starts_with("customresourcedefinition") {
            stage.kubectl(&["label", &name, "app.kubernetes.io/managed-by=Helm"])?;
        }
    }
    for command in way_out("gone", &stage.namespace)? {
        stage.kubectl(&command.split_whitespace().collect::<Vec<_>>())?;
    }
    let refused = release.install(CHART, &["--dry-run=server"]);
    let refused = format!("{:#}", refused.err().context("it was not refused")?);
    let whose = format!("(release gone in namespace {})", stage.namespace);
    ensure!(refused.contains(&whose), "{refused}");
    for command in way_out("standin", &stage.namespace)? {
        stage.kubectl(&command.split_whitespace().collect::<Vec<_>>())?;
    }
    // Helm itself looks whose everything is, also in a rehearsal.
    release.install(CHART, &["--dry-run=server"])
}

/// The commands of the page, without `kubectl`, for a release.
fn way_out(name: &str, namespace: &str) -> Result<Vec<String>> {
    let (_, block) = TROUBLESHOOTING
        .split_once("```sh\nkubectl annotate ")
        .context("the page has no way out")?;
    let (block, _) = block.split_once("```").context("it has no end")?;
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

/// The operator's pods are gone, a session's object waits for it to clean up, and nobody is left to do that.
async fn removed_while_the_operator_is_down(story: &Story<'_>) -> Result<()> {
    let release = Release::new(story).await?;
    let stage = &release.stage;
    release.install(CHART, &["--wait", "--timeout=180s"])?;
    release.wait_until_available()?;
    let shop = story.stage().await?;
    shop.web().await?;
    let account = format!(
        "--as=system:serviceaccount:{}:mirrord-operator",
        stage.namespace
    );
    let folder = tempfile::tempdir()?;
    let manifest = folder.path().join("session.yaml");
    fs::write(&manifest, session(&shop.namespace))?;
    let manifest = manifest.to_str().context("the path of the session")?;
    stage.kubectl(&[
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
        Ok((stage.kubectl(&phase)? == "Ready").then_some(()))
    })
    .await?;

    stage.kubectl(&["scale", "deployment/mirrord-operator", "--replicas=0"])?;
    until("the API to be unavailable", async || {
        let condition = "--output=jsonpath={.status.conditions[?(@.type==\"Available\")].status}";
        let available = stage.kubectl(&["get", "apiservice", API_SERVICE, condition])?;
        Ok((available == "False").then_some(()))
    })
    .await?;
    release.uninstall()?;
    // With an API that does not answer, no namespace could go.
    let victim = story.stage().await?;
    victim.kubectl(&["delete", "namespace", &victim.namespace, "--timeout=60s"])?;
    until("the agents to end by themselves", async || {
        let running =
            "--output=jsonpath={.items[*].status.ephemeralContainerStatuses[*].state.running}";
        let running = shop.kubectl(&["get", "pods", running])?;
        Ok(running.trim().is_empty().then_some(()))
    })
    .await
}

/// A session as the operator would make it, of a client that never comes.
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
    stage: Stage,
}

impl Release {
    async fn new(story: &Story<'_>) -> Result<Self> {
        load_agent_image(story)?;
        let stage = story.stage().await?;
        let release = Release { stage };
        // What a story that failed has left is not this one's matter.
        release.remove_everything()?;
        Ok(release)
    }

    /// Whatever a chart has made, and whoever.
    fn remove_everything(&self) -> Result<()> {
        for name in self.objects()? {
            let arguments = ["delete", &name, "--ignore-not-found", "--timeout=30s"];
            let _ = self.stage.kubectl(&arguments);
            let elsewhere = [&arguments[..], &["--namespace=kube-system"]].concat();
            let _ = self.stage.kubectl(&elsewhere);
        }
        Ok(())
    }

    /// What the operator keeps in its Secret.
    fn certificates(&self) -> Result<String> {
        let data = "--output=jsonpath={.data}";
        let data = self
            .stage
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
        let mut command = self.stage.cluster.client.helm();
        command
            .args(["--namespace", &self.stage.namespace])
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
        self.stage
            .kubectl(&["wait", condition, &service, "--timeout=60s"])
            .map(drop)
    }

    /// The names of everything that a chart has made, in the whole cluster and in its namespace.
    fn objects(&self) -> Result<Vec<String>> {
        let everywhere = "apiservices,customresourcedefinitions,clusterroles,clusterrolebindings,\
                          validatingadmissionpolicies,validatingadmissionpolicybindings";
        let here = "deployments,daemonsets,services,secrets,configmaps,leases,serviceaccounts,jobs,roles,rolebindings,\
                    poddisruptionbudgets,networkpolicies";
        let mut found = String::new();
        for kinds in [everywhere, here] {
            found += &self.stage.kubectl(&["get", kinds, "--output=name"])?;
        }
        found += &self.stage.kubectl(&[
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
