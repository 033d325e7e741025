//! A Primary operator and its member clusters: a hub without targets, and two members with targets.

mod chart;
mod credential;
mod demos;
mod faults;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use api::connect::{AgentEndpoint, ConnectParameters};
use api::session::SessionId;
use cluster::{Cluster, OperatorConnection, OperatorSession};
use e2e::{
    LazyEnvironment, Needs, OwnClusters, Scenario, TestCluster, TestNamespace, scenario, until,
};
use lab::{Progress, standind};
use libtest_mimic::Trial;
use link::tls::rustls::pki_types::ServerName;
use link::tls::{FirstSeen, Identity, TlsDialer, Trust};
use link::{Link, Settings};
use serde_json::{Value, json};

use super::support::agent_image;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/standin-operator");
/// The namespace of the targets. It is the same in all clusters, as a session over several clusters needs it.
const SHOP: &str = "shop";
const ID: SessionId = SessionId(0x4dbe_55ab_68bb_a16c);

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![
        scenario(
            environment,
            "a_chart_of_members_refuses_invalid_values",
            Needs::Machine,
            chart::refuses_invalid_values,
        ),
        scenario(
            environment,
            "a_chart_of_members_grants_exactly_the_expected_permissions",
            Needs::Machine,
            chart::grants_exactly_the_expected_permissions,
        ),
        scenario(
            environment,
            "one_session_covers_all_members_of_a_hub",
            Needs::Machine,
            one_session_covers_the_members,
        ),
        scenario(
            environment,
            "one_process_stands_in_for_a_service_in_three_clusters",
            Needs::Machine,
            demos::one_process_for_three_clusters,
        ),
        scenario(
            environment,
            "faults_among_members_leave_nothing",
            Needs::Machine,
            faults::member_faults_leave_nothing,
        ),
    ]
}

async fn one_session_covers_the_members(scenario: &Scenario<'_>) -> Result<()> {
    let clusters = OwnClusters::start(&["hub", "east", "west"], &Progress::to_stderr()).await?;
    clusters.lab().load_image(&agent_image()?)?;
    let hub = Operator::new(scenario, &clusters, "hub").await?;
    let east = Operator::new(scenario, &clusters, "east").await?;
    let west = Operator::new(scenario, &clusters, "west").await?;
    let is_member = json!({"operator": {"multiClusterMember": true, "replicas": 1}});
    for member in [&east, &west] {
        member.helm("install", &is_member)?;
        member.namespace.kubectl(&["create", "namespace", SHOP])?;
        let cluster = &member.namespace.cluster;
        cluster
            .client
            .apply(SHOP, include_str!("../../fixtures/web.yaml"))?;
        member.kubectl_in(
            SHOP,
            &["rollout", "status", "deployment/web", "--timeout=180s"],
        )?;
    }
    // The first token expires soon: it lasts only until the hub has requested its own.
    let first = credential::old_token(&clusters, &east.namespace)?;
    let values = hub_values(&clusters, &first)?;
    hub.helm("install", &values)?;
    members_are_shown(&hub, &west, &clusters).await?;
    tokens_renew_themselves(&hub, &clusters, &first, &values).await?;
    a_session_covers_both(&hub, &east, &west).await?;
    a_refused_child_is_shown(&hub, &east, &west).await?;
    members_change_without_a_restart(&hub, &values).await?;
    a_removed_credential_is_shown(&hub, &west, &clusters).await?;
    hub.uninstall()?;
    east.uninstall()?;
    west.uninstall()
}

/// The Primary's account may not change its part of a session, not even with every right in RBAC.
fn the_primary_changes_no_session(member: &Operator, child: &str) -> Result<()> {
    let account = format!(
        "--as=system:serviceaccount:{}:mirrord-operator-envoy",
        member.namespace.name
    );
    let object = format!("mirrordclustersessions/{child}");
    let spec = r#"{"spec": {"namespace": "kube-system", "target": "deployment/coredns"}}"#;
    let own = "a Primary makes and removes only its own parts of sessions";
    let administrator = "--as-group=system:masters";
    let cases: [(&str, &[&str], &str); 3] = [
        (spec, &[], "cannot patch resource"),
        (
            spec,
            &[administrator],
            "the spec of a session never changes",
        ),
        (r#"{"metadata": {"finalizers": []}}"#, &[administrator], own),
    ];
    for (change, groups, expected) in cases {
        let patch = [
            "patch",
            &object,
            "--type=merge",
            "--patch",
            change,
            &account,
        ];
        let refused = member.namespace.kubectl(&[&patch, groups].concat()).err();
        let refused = format!(
            "{:#}",
            refused.with_context(|| format!("{change} was accepted"))?
        );
        ensure!(refused.contains(expected), "{refused}");
    }
    // It may not make a session that is no part of one of its own.
    let session = format!(
        "apiVersion: mirrord.metalbear.co/v1alpha\nkind: MirrordClusterSession\nmetadata: {{name: session-00000000000000aa}}\n\
         spec: {{owner: {{userId: '', username: '', hostname: '', k8sUsername: admin}}, namespace: {SHOP}, target: \
         deployment/web, resumeWindowSecs: 60, clientCertificate: ''}}\n"
    );
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(session.as_bytes())?;
    let path = file.path().to_str().context("no path")?;
    let create = ["create", "--filename", path, &account];
    let refused = member.namespace.kubectl(&create).err();
    let refused = format!("{:#}", refused.context("the session was made")?);
    ensure!(refused.contains(own), "{refused}");
    Ok(())
}

/// East uses a token, and west a certificate whose Secret does not exist yet.
fn hub_values(clusters: &OwnClusters, token: &str) -> Result<Value> {
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
async fn members_are_shown(hub: &Operator, west: &Operator, clusters: &OwnClusters) -> Result<()> {
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

fn create_certificate(hub: &Operator, west: &Operator, clusters: &OwnClusters) -> Result<()> {
    let account = format!(
        "system:serviceaccount:{}:mirrord-operator-envoy",
        west.namespace.name
    );
    certificate_secret(hub, &credential::certificate(clusters, "west", &account)?)
}

/// Creates the Secret of a member that authenticates the hub by a certificate.
fn certificate_secret(hub: &Operator, (chain, key): &(String, String)) -> Result<()> {
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
async fn tokens_renew_themselves(
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

/// While the Primary may not create sessions in west, the status of its session says so. Then the session starts.
async fn a_refused_child_is_shown(hub: &Operator, east: &Operator, west: &Operator) -> Result<()> {
    let role = "mirrord-operator-envoy-remote";
    let verbs = "--output=jsonpath={.rules[0].verbs}";
    let verbs = west
        .namespace
        .kubectl(&["get", "clusterrole", role, verbs])?;
    let verbs: Vec<String> = serde_json::from_str(&verbs)?;
    let set_verbs = |verbs: &[String]| {
        let patch = json!([{"op": "replace", "path": "/rules/0/verbs", "value": verbs}]);
        let patch = patch.to_string();
        let patch = [
            "patch",
            "clusterrole",
            role,
            "--type=json",
            "--patch",
            &patch,
        ];
        west.namespace.kubectl(&patch)
    };
    let others: Vec<String> = verbs
        .iter()
        .filter(|verb| *verb != "create")
        .cloned()
        .collect();
    set_verbs(&others)?;
    let identity = Identity::generate()?;
    let session = session(hub, SessionId(ID.0 + 1), &identity)?;
    let name = format!("mc-{}", SessionId(ID.0 + 1));
    let shown = async {
        until("the parent to show why west is missing", async || {
            let error = "--output=jsonpath={.status.clusterSessions.west.error}";
            let error = hub.namespace.kubectl(&["get", "mmcs", &name, error])?;
            let is_shown = error.contains("its session cannot be created there")
                && error.contains("cannot create resource");
            ensure!(is_shown, "{error}");
            Ok(Some(()))
        })
        .await?;
        set_verbs(&verbs)
    };
    let (connection, shown) = tokio::join!(session.connect(), shown);
    shown?;
    let connection = connection?;
    ready_endpoints(&connection, 4).await?;
    let error = "--output=jsonpath={.status.clusterSessions.west.error}";
    let error = hub.namespace.kubectl(&["get", "mmcs", &name, error])?;
    ensure!(error.is_empty(), "{error}");
    connection.end_session();
    wait_until_no_session_is_left(&[hub, east, west]).await
}

/// An administrator removes a member in the ConfigMap, and adds it again. The operator's pods stay the same.
async fn members_change_without_a_restart(hub: &Operator, values: &Value) -> Result<()> {
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

fn session(hub: &Operator, id: SessionId, identity: &Identity) -> Result<OperatorSession> {
    let cluster = Cluster::new(hub.namespace.cluster.kube.clone(), SHOP);
    let parameters = ConnectParameters {
        connect: true,
        resume_window: Some(120),
        ..ConnectParameters::default()
    };
    let target = "deployment/web".parse()?;
    let session = OperatorSession::new(&cluster, SHOP, &target, &parameters, id, identity);
    Ok(session.with_client_names("Anna", "laptop"))
}

async fn a_session_covers_both(hub: &Operator, east: &Operator, west: &Operator) -> Result<()> {
    let identity = Identity::generate()?;
    let session = session(hub, ID, &identity)?;
    let connection = session.connect().await?;
    let endpoints = ready_endpoints(&connection, 4).await?;
    let clusters: BTreeSet<_> = endpoints
        .iter()
        .filter_map(|endpoint| endpoint.cluster.clone())
        .collect();
    ensure!(
        clusters == BTreeSet::from(["east".to_owned(), "west".to_owned()]),
        "{endpoints:?}"
    );
    let reported = connection.endpoints.borrow().clusters.clone();
    let default: Vec<_> = reported
        .iter()
        .filter(|cluster| cluster.is_default)
        .map(|cluster| &cluster.name)
        .collect();
    ensure!(default == ["east"], "{reported:?}");
    for endpoint in &endpoints {
        connect_link(&connection, endpoint.number, &identity).await?;
    }
    // TLS is end to end also through two operators: an agent rejects any other client certificate.
    let other_identity = Identity::generate()?;
    ensure!(
        connect_link(&connection, endpoints[0].number, &other_identity)
            .await
            .is_err(),
        "an unauthenticated client uses an agent"
    );
    let parent = hub.namespace.kubectl(&["get", "mmcs", "--no-headers"])?;
    ensure!(
        parent.contains("mc-4dbe55ab68bba16c") && parent.contains("Ready"),
        "{parent}"
    );
    for member in [east, west] {
        let expected = format!("mc-4dbe55ab68bba16c-{}", member.namespace.cluster.name);
        let children =
            member
                .namespace
                .kubectl(&["get", "mirrordclustersessions", "--no-headers"])?;
        ensure!(children.contains(&expected), "{children}");
        the_primary_changes_no_session(member, &expected)?;
    }

    // The hub's replicas are replaced: the session, its children and the endpoint numbers stay the same.
    hub.namespace
        .kubectl(&["rollout", "restart", "deployment/mirrord-operator"])?;
    connection.ended().await;
    hub.wait_until_available()?;
    let connection = until("the session to continue", async || {
        Ok(Some(session.connect().await?))
    })
    .await?;
    let resumed = ready_endpoints(&connection, 4).await?;
    let numbers = |endpoints: &[AgentEndpoint]| {
        endpoints
            .iter()
            .map(|endpoint| endpoint.number)
            .collect::<Vec<_>>()
    };
    ensure!(
        numbers(&resumed) == numbers(&endpoints),
        "{resumed:?}\n{endpoints:?}"
    );
    for endpoint in &resumed {
        connect_link(&connection, endpoint.number, &identity).await?;
    }
    connection.end_session();
    wait_until_no_session_is_left(&[hub, east, west]).await
}

async fn wait_until_no_session_is_left(operators: &[&Operator]) -> Result<()> {
    for operator in operators {
        let name = &operator.namespace.cluster.name;
        until(&format!("no session in {name}"), async || {
            let kinds = "mirrordmulticlustersessions.operator.metalbear.co,mirrordclustersessions.mirrord.metalbear.co";
            let left = operator.namespace.kubectl(&["get", kinds, "--output=name"])?;
            Ok(left.trim().is_empty().then_some(()))
        })
        .await?;
    }
    Ok(())
}

async fn a_removed_credential_is_shown(
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

/// Waits for this number of ready agents, and returns their endpoints, sorted by number.
async fn ready_endpoints(
    connection: &OperatorConnection,
    count: usize,
) -> Result<Vec<AgentEndpoint>> {
    until(&format!("{count} agents"), async || {
        let mut ready = connection.endpoints.borrow().endpoints.clone();
        ready.retain(|endpoint| endpoint.ready);
        ready.sort_unstable_by_key(|endpoint| endpoint.number);
        Ok((ready.len() == count).then_some(ready))
    })
    .await
}

/// Connects a link to an agent, end to end.
async fn connect_link(
    connection: &OperatorConnection,
    endpoint: u32,
    identity: &Identity,
) -> Result<Link> {
    let name = ServerName::try_from("agent")?;
    let trust = Trust::FirstSeen(FirstSeen::default());
    let dialer = TlsDialer::with_identity(connection.dialer(endpoint), name, trust, identity)?;
    let mut settings = Settings::default();
    settings.redial.first_connection_timeout = std::time::Duration::from_secs(2);
    Ok(Link::connect(dialer, settings).await?)
}

fn member_of(object: &Value, name: &str) -> Value {
    let members = object["status"]["connected_clusters"].as_array();
    let mut members = members.into_iter().flatten();
    let found = members.find(|member| member["name"] == name);
    found.cloned().unwrap_or_default()
}

/// An operator in its own namespace.
struct Operator {
    namespace: TestNamespace,
}

impl Operator {
    async fn new(scenario: &Scenario<'_>, clusters: &OwnClusters, name: &str) -> Result<Self> {
        let cluster: &TestCluster = clusters.get(name)?;
        let namespace = scenario.namespace_on(cluster).await?;
        Ok(Operator { namespace })
    }

    /// Installs or upgrades the chart. Values go through a file, because some are secret.
    fn helm(&self, verb: &str, values: &Value) -> Result<()> {
        let (repository, tag) = standind::REFERENCE.rsplit_once(':').context("no tag")?;
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(values.to_string().as_bytes())?;
        let file = file.path().display().to_string();
        let repository = format!("operator.image.repository={repository}");
        let tag = format!("operator.image.tag={tag}");
        let mut command = self.namespace.cluster.client.helm();
        let command = command
            .args(["--namespace", &self.namespace.name, verb, "standin", CHART])
            .args(["--wait", "--timeout=180s", "--values", &file])
            .args(["--set", &repository, "--set-string", &tag]);
        lab::output_of(command)?;
        self.wait_until_available()
    }

    fn wait_until_available(&self) -> Result<()> {
        let rollout = [
            "rollout",
            "status",
            "deployment/mirrord-operator",
            "--timeout=180s",
        ];
        self.namespace.kubectl(&rollout)?;
        let service = "apiservice/v1.operator.metalbear.co";
        self.namespace.kubectl(&[
            "wait",
            "--for=condition=Available",
            service,
            "--timeout=60s",
        ])?;
        Ok(())
    }

    fn kubectl_in(&self, namespace: &str, arguments: &[&str]) -> Result<String> {
        let mut command = self.namespace.cluster.client.kubectl();
        Ok(lab::output_of(
            command.args(["--namespace", namespace]).args(arguments),
        )?)
    }

    /// `mirrordoperators/operator`.
    fn object(&self) -> Result<Value> {
        let text =
            self.namespace
                .kubectl(&["get", "mirrordoperators", "operator", "--output=json"])?;
        Ok(serde_json::from_str(&text)?)
    }

    fn uninstall(&self) -> Result<()> {
        let mut command = self.namespace.cluster.client.helm();
        let namespace = ["--namespace", &self.namespace.name];
        lab::output_of(command.args(namespace).args([
            "uninstall",
            "standin",
            "--wait",
            "--timeout=120s",
        ]))?;
        let kinds = "customresourcedefinitions,clusterroles,clusterrolebindings,apiservices";
        let own = "secrets,configmaps,serviceaccounts,roles,rolebindings";
        let left = self.namespace.kubectl(&["get", kinds, "--output=name"])?
            + &self.namespace.kubectl(&["get", own, "--output=name"])?;
        // The scenario created this Secret itself.
        let left: Vec<&str> = left
            .lines()
            .filter(|name| name.contains("mirrord") || name.contains("metalbear"))
            .filter(|name| *name != "secret/mirrord-cluster-west")
            .collect();
        ensure!(left.is_empty(), "left behind: {left:?}");
        Ok(())
    }
}
