//! What arrives at several pods, in one program.

use anyhow::{Context as _, Result, ensure};
use e2e::{Stage, Story, until};

use super::super::surroundings::{Running, exec_for};
use super::{
    HEADER, Replica, answer_of_the_program, nodes, serve, start_menu, until_all_are_stolen,
    until_there_are,
};

pub(crate) async fn all_bring_their_traffic(story: &Story<'_>) -> Result<()> {
    let stage = start_menu(story).await?;
    let all = until_there_are(&stage, 3).await?;
    ensure!(nodes(&all).len() == 2, "all on one node: {all:?}");
    for mode in ["--ephemeral-container", "--no-ephemeral-container"] {
        let session = serve(story, &stage, &HEADER, &[mode])?;
        session.says("the session is with 3 pods").await?;
        session.says("port 8080 of 3 pods: requests that").await?;
        // When the program listens, all of them are there: nobody waits here.
        let expected = answer_of_the_program(&stage).await?;
        for replica in &all {
            let answer = replica.ask(&stage, &["-H", super::MINE]).await?;
            ensure!(answer == expected, "{replica:?}: {answer:?}");
        }
        until_all_are_stolen(&stage, &session, &all).await?;
        session.kill()?;
    }
    let mut command = exec_for(story, &stage, "deployment/menu")?;
    command.args(["--", "python3", "-c", NAMES_SERVER]);
    let session = Running::start(command, &[("INCOMING", "steal")])?;
    session.says("port 8080 of 3 pods: everything").await?;
    let client = stage.pods().get("client").await?.status;
    let client = client.and_then(|status| status.pod_ip);
    let client = client.context("the client has no address")?;
    for replica in &all {
        let answer = replica.ask(&stage, &[]).await?;
        let expected = format!("{client} at {} 8080", replica.address);
        ensure!(answer == expected, "{replica:?}: {answer:?}");
    }
    Ok(())
}

/// A server that says whom it sees at the other end, and at its own.
const NAMES_SERVER: &str = "import socket
server = socket.create_server(('0.0.0.0', 8080))
while True:
    connection, client = server.accept()
    connection.recv(4096)
    address, port = connection.getsockname()
    answer = f'{connection.getpeername()[0]} at {address} {port}'
    assert client == connection.getpeername()
    connection.sendall(f'HTTP/1.0 200 OK\\r\\n\\r\\n{answer}'.encode())
    connection.close()
";

/// A server of datagrams, which says from whom they are and to which address they were sent.
const DATAGRAM_SERVER: &str = "import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(('0.0.0.0', 8060))
while True:
    datagram, client = server.recvfrom(1500)
    server.sendto(b'local %s of %s' % (datagram, client[0].encode()), client)
";

async fn datagram(stage: &Stage, replica: &Replica) -> Result<String> {
    let script = format!(
        "import socket; c = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); c.settimeout(10); \
         c.sendto(b'ping', ('{}', 8060)); print(c.recv(1500).decode())",
        replica.address
    );
    stage.run("asker", &["python3", "-c", &script]).await
}

pub(crate) async fn all_bring_copies_and_datagrams(story: &Story<'_>) -> Result<()> {
    let stage = start_menu(story).await?;
    stage.kubectl(&[
        "run",
        "asker",
        "--image=registry.lab/python:1",
        "--command",
        "--",
        "sleep",
        "infinity",
    ])?;
    stage.wait_until_ready("asker").await?;
    let all = until_there_are(&stage, 3).await?;

    let session = serve(story, &stage, &[("INCOMING", "mirror")], &[])?;
    session.says("gets a copy of everything").await?;
    for replica in &all {
        ensure!(replica.ask(&stage, &[]).await? == replica.original());
    }
    let copied = until("a copy of each request", async || {
        let copies = session.stdout()?.matches("request /menu ").count();
        Ok((copies == all.len()).then_some(()))
    });
    copied.await.with_context(|| session.report())?;
    session.kill()?;

    let mut command = exec_for(story, &stage, "deployment/menu")?;
    command.args(["--", "python3", "-c", DATAGRAM_SERVER]);
    let session = Running::start(command, &[("INCOMING", "steal")])?;
    session.says("UDP port 8060 of 3 pods: everything").await?;
    let asker = stage.pods().get("asker").await?.status;
    let asker = asker
        .and_then(|status| status.pod_ip)
        .context("no address")?;
    for replica in &all {
        let answer = datagram(&stage, replica).await?;
        let expected = format!("local ping of {asker}\n");
        ensure!(answer == expected, "{replica:?}: {answer:?}");
    }
    Ok(())
}

/// Somebody has one of the pods for himself, so nobody else can have all of them.
pub(crate) async fn conflicts_are_told_by_pod(story: &Story<'_>) -> Result<()> {
    let stage = start_menu(story).await?;
    let all = until_there_are(&stage, 3).await?;
    let taken = all.get(1).context("no pod")?;
    let mut command = exec_for(story, &stage, &format!("pod/{}", taken.name))?;
    command.args(["--", "python3", "-m", "http.server", "8080"]);
    let holder = Running::start(command, &[("INCOMING", "steal")])?;
    holder.says("port 8080 of the target: everything").await?;
    let second = serve(story, &stage, &[("INCOMING", "steal")], &[])?;
    let refusal = format!(
        "port 8080 of pod {}: the program cannot listen: ",
        taken.name
    );
    let ended = second.end()?;
    ensure!(ended.code == Some(1), "{ended}");
    ensure!(ended.stderr.contains(&refusal), "{ended}");
    ensure!(ended.stderr.contains("(python3"), "whose it is: {ended}");
    // Nothing of the other pods was kept.
    for replica in all.iter().filter(|replica| replica.name != taken.name) {
        until("the pod's own answer", async || {
            let answer = replica.ask(&stage, &[]).await?;
            Ok((answer == replica.original()).then_some(()))
        })
        .await?;
    }
    drop(holder);
    Ok(())
}
