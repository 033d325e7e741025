//! One session, every replica: pods of a deployment whose traffic comes to one program, and that come and go meanwhile.

mod coming_and_going;
mod traffic;

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::Program;
use e2e::{LaterWorld, Needs, Stage, Story, tell, until};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::ListParams;
use libtest_mimic::Trial;

use super::surroundings::{Running, exec_for};

/// What the program's own requests have.
const MINE: &str = "x-session: mine";
const HEADER: [(&str, &str); 2] = [
    ("INCOMING", "steal"),
    ("INCOMING_HEADER_FILTER", "^x-session: mine$"),
];

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    let clusters = Needs::Clusters;
    vec![
        tell(
            world,
            "cluster_replicas_all_bring_their_traffic",
            clusters,
            traffic::all_bring_their_traffic,
        ),
        tell(
            world,
            "cluster_replicas_all_bring_copies_and_datagrams",
            clusters,
            traffic::all_bring_copies_and_datagrams,
        ),
        tell(
            world,
            "cluster_replicas_that_somebody_has_are_named",
            clusters,
            traffic::conflicts_are_told_by_pod,
        ),
        tell(
            world,
            "cluster_replicas_join_and_leave_a_session",
            clusters,
            coming_and_going::pods_join_and_leave,
        ),
        tell(
            world,
            "cluster_replicas_take_the_place_of_the_first",
            clusters,
            coming_and_going::another_pod_takes_the_place_of_the_first,
        ),
        tell(
            world,
            "cluster_replicas_are_rolled_out_without_a_lost_request",
            clusters,
            coming_and_going::a_rollout_loses_no_request,
        ),
        tell(
            world,
            "cluster_replicas_answer_after_a_killed_session",
            clusters,
            coming_and_going::a_killed_session_leaves_nothing,
        ),
    ]
}

/// Three pods of `menu`, and one from which they are asked.
async fn start_menu(story: &Story<'_>) -> Result<Stage> {
    let stage = story.stage().await?;
    stage.apply(include_str!("../../fixtures/menu.yaml"))?;
    stage.client_pod("client").await?;
    stage.kubectl(&["rollout", "status", "deployment/menu", "--timeout=120s"])?;
    Ok(stage)
}

/// A session with the server in Python, on all pods of `menu`.
fn serve(
    story: &Story<'_>,
    stage: &Stage,
    settings: &[(&str, &str)],
    arguments: &[&str],
) -> Result<Running> {
    let mut command = exec_for(story, stage, "deployment/menu")?;
    command.args(arguments);
    let server = Program::script("python3", "servers/python/http_server.py").argument("8080");
    command.arg("--").args(&server.command);
    Running::start(command, settings)
}

/// A pod of `menu` that is to stay.
#[derive(Debug, Clone)]
struct Replica {
    name: String,
    address: String,
    node: String,
}

impl Replica {
    fn of(pod: &Pod) -> Option<Self> {
        let status = pod.status.as_ref()?;
        let is_ready = status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        if pod.metadata.deletion_timestamp.is_some() || !is_ready {
            return None;
        }
        Some(Self {
            name: pod.name_any(),
            address: status.pod_ip.clone()?,
            node: pod.spec.as_ref()?.node_name.clone()?,
        })
    }

    /// What it answers itself.
    fn original(&self) -> String {
        format!("original {}\n", self.name)
    }

    /// What a client in the cluster is answered by it.
    async fn ask(&self, stage: &Stage, arguments: &[&str]) -> Result<String> {
        let url = format!("http://{}:8080/menu", self.address);
        let mut curl = vec!["curl", "-sS", "--max-time", "10", &url];
        curl.extend(arguments);
        stage.run("client", &curl).await
    }
}

async fn replicas(stage: &Stage) -> Result<Vec<Replica>> {
    let pods = ListParams::default().labels("app=menu");
    let pods = stage.pods().list(&pods).await?;
    Ok(pods.iter().filter_map(Replica::of).collect())
}

async fn until_there_are(stage: &Stage, count: usize) -> Result<Vec<Replica>> {
    until(&format!("{count} pods"), async || {
        let replicas = replicas(stage).await?;
        Ok((replicas.len() == count).then_some(replicas))
    })
    .await
}

/// What the program answers to the client in the cluster.
async fn answer_of_the_program(stage: &Stage) -> Result<String> {
    let client = stage.pods().get("client").await?;
    let address = client.status.and_then(|status| status.pod_ip);
    let address = address.context("the client has no address")?;
    Ok(format!("python-http serves {address}\n"))
}

/// Waits until requests with the header, to each of these pods, are answered by the program, which sees who has asked. All
/// others are the pod's own.
async fn until_all_are_stolen(stage: &Stage, session: &Running, all: &[Replica]) -> Result<()> {
    let expected = answer_of_the_program(stage).await?;
    for replica in all {
        let what = format!("requests of {}", replica.name);
        let stolen = until(&what, async || {
            let answer = replica.ask(stage, &["-H", MINE]).await?;
            ensure!(answer == expected, "the answer is {answer:?}");
            Ok(Some(()))
        });
        stolen.await.with_context(|| session.report())?;
        let answer = replica.ask(stage, &[]).await?;
        ensure!(answer == replica.original(), "{answer:?}");
    }
    Ok(())
}

fn nodes(replicas: &[Replica]) -> BTreeSet<&str> {
    replicas
        .iter()
        .map(|replica| replica.node.as_str())
        .collect()
}
