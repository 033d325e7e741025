//! One session over all clusters: the operator of the first becomes the Primary, those of the others its members, and one
//! program of this machine answers requests of all.

use anyhow::{Context as _, Result, ensure};
use lab::Client;
use serde_json::json;

use super::{ADDRESS, HEADER, INSTALL, NAMESPACE, NEW, OPERATOR_NAMESPACE, Sessions, TARGET};
use crate::demo::session::Session;
use crate::operator::{self, ACCOUNT};
use crate::process;

/// With one cluster there is nothing to show.
pub(super) fn show(sessions: &Sessions, clients: &[Client]) -> Result<()> {
    let Some((primary, members)) = clients.split_first().filter(|(_, rest)| !rest.is_empty())
    else {
        return Ok(());
    };
    install(primary, members)?;
    println!("\n$ standin operator status");
    let mut status = sessions.standin(primary);
    let status = process::output(status.args(["operator", "status"]))?;
    print!("{status}");
    for client in clients {
        let name = client.name();
        ensure!(status.contains(name), "{name} is not shown");
    }
    answer_all(sessions, clients, primary.name())
}

fn install(primary: &Client, members: &[Client]) -> Result<()> {
    let name = primary.name();
    println!(
        "
The shop is in {} clusters, and a request comes to one of them. Nobody has to know to which: the operator of {name} becomes
the Primary, which coordinates those of the others. They are its members:
",
        members.len() + 1
    );
    let mut clusters = serde_json::Map::new();
    for member in members {
        println!(
            "$ {INSTALL} --kube-context {} --set operator.multiClusterMember=true",
            member.name()
        );
        let values = json!({"operator": {"multiClusterMember": true}});
        operator::install(member, OPERATOR_NAMESPACE, "install", &values)?;
        println!(
            "$ kubectl create token {ACCOUNT} --namespace {OPERATOR_NAMESPACE} --context {} --duration=24h",
            member.name()
        );
        let access = operator::access(member, OPERATOR_NAMESPACE)?;
        clusters.insert(member.name().to_owned(), access);
    }
    println!(
        "
Their addresses and tokens are values of the Primary's chart (docs/multi-cluster.md). {name} is also the Default: the one
whose environment, files, names and connections a session has.

$ helm upgrade standin charts/standin-operator --namespace {OPERATOR_NAMESPACE} --kube-context {name} --values clusters.yaml"
    );
    let values = json!({"operator": {"multiCluster": {
        "enabled": true,
        "clusterName": name,
        "defaultCluster": name,
        "clusters": clusters,
    }}});
    operator::install(primary, OPERATOR_NAMESPACE, "upgrade", &values)?;
    let names: Vec<&str> = members.iter().map(Client::name).collect();
    operator::wait_for_members(primary, &names)
}

/// One program answers the requests with the header, in every cluster.
fn answer_all(sessions: &Sessions, clients: &[Client], primary: &str) -> Result<()> {
    let filter = format!("^{HEADER}$");
    println!(
        "
The developer does what they did before. The command is the same, and names no cluster:

$ standin exec -t {TARGET} -n {NAMESPACE} --steal --header-filter '{filter}' --port-mapping 8000:8080 -- checkout"
    );
    let first = clients.first().context("there is no cluster")?;
    let mut session = sessions.standin(first);
    session
        .args(["exec", "-t", TARGET, "--steal", "--header-filter", &filter])
        .args(["--port-mapping", "8000:8080", "--"])
        .arg(&sessions.programs.checkout);
    let session = Session::start(session)?;
    println!("\nThe same request, in each of the clusters, without the header and with it:");
    for client in clients {
        let name = client.name();
        let everybody = ask(sessions, client, None)?;
        let you = ask(sessions, client, Some(HEADER))?;
        judge(name, primary, &everybody, &you)?;
    }
    session.end()?;
    println!(
        "
Requests of {} clusters were answered by one process on this machine, with the world of {primary} around it. The session
has ended, and every cluster answers for itself:",
        clients.len()
    );
    for client in clients {
        let afterwards = ask(sessions, client, Some(HEADER))?;
        ensure!(
            is_deployed(client.name(), &afterwards),
            "{} was to answer for itself, and the answer was {afterwards:?}",
            client.name()
        );
    }
    Ok(())
}

/// One request inside of a cluster: in a session that stays there.
fn ask(sessions: &Sessions, client: &Client, header: Option<&str>) -> Result<String> {
    let mut session = sessions.standin(client);
    session
        .args([
            "exec",
            "--quiet",
            "--no-multi-cluster",
            "-t",
            "deployment/storefront",
            "--",
        ])
        .arg(&sessions.programs.ask)
        .arg(ADDRESS)
        .args(header);
    let answer = process::output(&mut session)?;
    let shown = header.map_or_else(String::new, |header| format!(" '{header}'"));
    println!(
        "\n{}$ ask {ADDRESS}{shown}\n{}",
        client.name(),
        answer.trim_end()
    );
    Ok(answer)
}

/// A demo that shows nothing must not look like one that went well.
fn judge(cluster: &str, default: &str, everybody: &str, you: &str) -> Result<()> {
    let environment = format!("with the environment of cluster {default}");
    ensure!(
        is_deployed(cluster, everybody) && you.contains(NEW) && you.contains(&environment),
        "in {cluster} the new version was to answer the request with the header, and the pod there the other one; the \
         answers were {everybody:?} and {you:?}"
    );
    Ok(())
}

/// Whether the cluster's own pods have answered.
fn is_deployed(cluster: &str, answer: &str) -> bool {
    answer.contains("\"service\":\"checkout\"")
        && answer.contains(&format!("\"cluster\":\"{cluster}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_must_be_those_of_the_cluster_and_of_the_default() {
        let pod = "{\"service\":\"checkout\",\"cluster\":\"west\",\"pod\":\"checkout-1\"}";
        let new = format!("{NEW}, for 10.0.0.1, with the environment of cluster east");
        assert!(judge("west", "east", pod, &new).is_ok());
        assert!(judge("east", "east", pod, &new).is_err());
        assert!(judge("west", "north", pod, &new).is_err());
        assert!(judge("west", "east", pod, pod).is_err());
        assert!(judge("west", "east", &new, &new).is_err());
    }
}
