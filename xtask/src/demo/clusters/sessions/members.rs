//! One session over all clusters: the operator of the first becomes the Primary, those of the others its members, and one
//! program of this machine serves requests of all clusters.

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
    serve_all(sessions, clients, primary.name())
}

fn install(primary: &Client, members: &[Client]) -> Result<()> {
    let name = primary.name();
    println!(
        "
The shop is in {} clusters, and a request reaches one of them. Users do not have to know which: the operator of {name} becomes
the Primary, which coordinates the others. They are its members:
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
whose environment, files, DNS names and connections a session has.

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

/// One program serves the requests with the header, in every cluster.
fn serve_all(sessions: &Sessions, clients: &[Client], primary: &str) -> Result<()> {
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
        let others = call(sessions, client, None)?;
        let you = call(sessions, client, Some(HEADER))?;
        verify(name, primary, &others, &you)?;
    }
    session.end()?;
    println!(
        "
Requests of {} clusters were served by one process on this machine, with the environment of {primary}. The session has
ended, and every cluster serves its own requests:",
        clients.len()
    );
    for client in clients {
        let afterwards = call(sessions, client, Some(HEADER))?;
        ensure!(
            is_deployed(client.name(), &afterwards),
            "{} should serve its own request, and the response was {afterwards:?}",
            client.name()
        );
    }
    Ok(())
}

/// Sends one request inside of a cluster, in a session that uses only that cluster.
fn call(sessions: &Sessions, client: &Client, header: Option<&str>) -> Result<String> {
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
        .arg(&sessions.programs.call)
        .arg(ADDRESS)
        .args(header);
    let response = process::output(&mut session)?;
    let shown = header.map_or_else(String::new, |header| format!(" '{header}'"));
    println!(
        "\n{}$ call {ADDRESS}{shown}\n{}",
        client.name(),
        response.trim_end()
    );
    Ok(response)
}

/// Fails if the demo did not show what it should.
fn verify(cluster: &str, default: &str, others: &str, you: &str) -> Result<()> {
    let environment = format!("with the environment of cluster {default}");
    ensure!(
        is_deployed(cluster, others) && you.contains(NEW) && you.contains(&environment),
        "in {cluster} the new version should serve the request with the header, and the pod there the other one; the \
         responses were {others:?} and {you:?}"
    );
    Ok(())
}

/// Whether the cluster's own pods have responded.
fn is_deployed(cluster: &str, response: &str) -> bool {
    response.contains("\"service\":\"checkout\"")
        && response.contains(&format!("\"cluster\":\"{cluster}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_must_have_the_expected_cluster_and_environment() {
        let pod = "{\"service\":\"checkout\",\"cluster\":\"west\",\"pod\":\"checkout-1\"}";
        let new = format!("{NEW}, for 10.0.0.1, with the environment of cluster east");
        assert!(verify("west", "east", pod, &new).is_ok());
        assert!(verify("east", "east", pod, &new).is_err());
        assert!(verify("west", "north", pod, &new).is_err());
        assert!(verify("west", "east", pod, pod).is_err());
        assert!(verify("west", "east", &new, &new).is_err());
    }
}
