//! Sessions over the members of a hub, and what the Primary's account may not do to their parts.

use std::collections::BTreeSet;
use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use api::connect::{AgentEndpoint, ConnectParameters};
use api::session::SessionId;
use cluster::{Cluster, OperatorConnection, OperatorSession};
use e2e::until;
use link::tls::rustls::pki_types::ServerName;
use link::tls::{FirstSeen, Identity, TlsDialer, Trust};
use link::{Link, Settings};
use serde_json::json;

use super::SHOP;
use super::operator::Operator;

const ID: SessionId = SessionId(0x4dbe_55ab_68bb_a16c);

/// While the Primary may not create sessions in west, the status of its session says so. Then the session starts.
pub(super) async fn a_refused_child_is_shown(
    hub: &Operator,
    east: &Operator,
    west: &Operator,
) -> Result<()> {
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

pub(super) async fn a_session_covers_both(
    hub: &Operator,
    east: &Operator,
    west: &Operator,
) -> Result<()> {
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

pub(super) async fn wait_until_no_session_is_left(operators: &[&Operator]) -> Result<()> {
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
