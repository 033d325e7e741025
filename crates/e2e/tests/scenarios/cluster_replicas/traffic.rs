//! Incoming traffic of several pods, in one program.

use anyhow::{Context as _, Result, ensure};
use e2e::{Scenario, TestNamespace, until};

use super::super::support::{SessionProcess, exec_for};
use super::{
    HEADER, Replica, listen, nodes, program_response, serve, start_menu, stop, wait_for_replicas,
    wait_until_all_are_stolen,
};

pub(crate) async fn all_pods_are_stolen_from(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = start_menu(scenario).await?;
    let all = wait_for_replicas(&namespace, 3).await?;
    ensure!(nodes(&all).len() == 2, "all on one node: {all:?}");
    for mode in ["--ephemeral-container", "--no-ephemeral-container"] {
        let session = serve(scenario, &namespace, &HEADER, &[mode]).await?;
        session
            .wait_for_message("the session is with 3 pods")
            .await?;
        session
            .wait_for_message("port 8080 of 3 pods: requests that")
            .await?;
        // All pods are redirected before the program's `listen` returns, so the first requests must be stolen.
        let expected = program_response(&namespace).await?;
        for replica in &all {
            let response = replica.request(&namespace, &["-H", super::MINE]).await?;
            ensure!(response == expected, "{replica:?}: {response:?}");
        }
        wait_until_all_are_stolen(&namespace, &session, &all).await?;
        stop(session)?;
    }
    let mut command = exec_for(scenario, &namespace, "deployment/menu")?;
    command.args(["--", "python3", "-c", ADDRESS_SERVER]);
    let session = listen(command, &[("INCOMING", "steal")]).await?;
    session
        .wait_for_message("port 8080 of 3 pods: everything")
        .await?;
    let client = namespace.pods().get("client").await?.status;
    let client = client.and_then(|status| status.pod_ip);
    let client = client.context("the client has no address")?;
    for replica in &all {
        let response = replica.request(&namespace, &[]).await?;
        let expected = format!("{client} at {} 8080", replica.address);
        ensure!(response == expected, "{replica:?}: {response:?}");
    }
    Ok(())
}

/// A server that responds with the peer address and the local address of its connection.
const ADDRESS_SERVER: &str = "import socket
server = socket.create_server(('0.0.0.0', 8080))
while True:
    connection, client = server.accept()
    connection.recv(4096)
    address, port = connection.getsockname()
    response = f'{connection.getpeername()[0]} at {address} {port}'
    assert client == connection.getpeername()
    connection.sendall(f'HTTP/1.0 200 OK\\r\\n\\r\\n{response}'.encode())
    connection.close()
";

/// A UDP server that responds with the client's address.
const DATAGRAM_SERVER: &str = "import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(('0.0.0.0', 8060))
while True:
    datagram, client = server.recvfrom(1500)
    server.sendto(b'local %s of %s' % (datagram, client[0].encode()), client)
";

async fn datagram(namespace: &TestNamespace, replica: &Replica) -> Result<String> {
    let script = format!(
        "import socket; c = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); c.settimeout(10); \
         c.sendto(b'ping', ('{}', 8060)); print(c.recv(1500).decode())",
        replica.address
    );
    namespace
        .run("udp-client", &["python3", "-c", &script])
        .await
}

pub(crate) async fn all_pods_are_mirrored_and_serve_datagrams(
    scenario: &Scenario<'_>,
) -> Result<()> {
    let namespace = start_menu(scenario).await?;
    namespace.kubectl(&[
        "run",
        "udp-client",
        "--image=registry.lab/python:1",
        "--command",
        "--",
        "sleep",
        "infinity",
    ])?;
    namespace.wait_until_ready("udp-client").await?;
    let all = wait_for_replicas(&namespace, 3).await?;

    let session = serve(scenario, &namespace, &[("INCOMING", "mirror")], &[]).await?;
    session
        .wait_for_message("gets a copy of everything")
        .await?;
    for replica in &all {
        ensure!(replica.request(&namespace, &[]).await? == replica.original());
    }
    let copied = until("a mirrored copy of each request", async || {
        let copies = session.stdout()?.matches("request /menu ").count();
        Ok((copies == all.len()).then_some(()))
    });
    copied.await.with_context(|| session.report())?;
    stop(session)?;

    let mut command = exec_for(scenario, &namespace, "deployment/menu")?;
    command.args(["--", "python3", "-c", DATAGRAM_SERVER]);
    let session = SessionProcess::start(command, &[("INCOMING", "steal")])?;
    session
        .wait_for_message("UDP port 8060 of 3 pods: everything")
        .await?;
    let client = namespace.pods().get("udp-client").await?.status;
    let client = client
        .and_then(|status| status.pod_ip)
        .context("no address")?;
    for replica in &all {
        let response = datagram(&namespace, replica).await?;
        let expected = format!("local ping of {client}\n");
        ensure!(response == expected, "{replica:?}: {response:?}");
    }
    Ok(())
}

/// A session that has claimed one of the pods prevents another session from claiming all of them.
pub(crate) async fn conflicts_are_reported_by_pod(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = start_menu(scenario).await?;
    let all = wait_for_replicas(&namespace, 3).await?;
    let taken = all.get(1).context("no pod")?;
    let mut command = exec_for(scenario, &namespace, &format!("pod/{}", taken.name))?;
    command.args(["--", "python3", "-m", "http.server", "8080"]);
    let holder = listen(command, &[("INCOMING", "steal")]).await?;
    holder
        .wait_for_message("port 8080 of the target: everything")
        .await?;
    let second = serve(scenario, &namespace, &[("INCOMING", "steal")], &[]).await?;
    let refusal = format!(
        "port 8080 of pod {}: the program cannot listen: ",
        taken.name
    );
    let output = second.end()?;
    ensure!(output.code == Some(1), "{output}");
    ensure!(output.stderr.contains(&refusal), "{output}");
    ensure!(
        output.stderr.contains("(python3"),
        "the owner is missing: {output}"
    );
    // No claim on the other pods is left.
    for replica in all.iter().filter(|replica| replica.name != taken.name) {
        until("the pod's own response", async || {
            let response = replica.request(&namespace, &[]).await?;
            Ok((response == replica.original()).then_some(()))
        })
        .await?;
    }
    drop(holder);
    Ok(())
}
