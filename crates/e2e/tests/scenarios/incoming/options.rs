//! Options for incoming traffic.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context as _, Result, ensure};
use e2e::machine::{Target, network};
use e2e::{Scenario, until};

use super::super::support::{SessionProcess, programs};
use super::{DATAGRAM_CLIENT, LOCAL, original, request, serve, wait_for_response};

const PROBE: [&str; 2] = ["-A", "kube-probe/1.34"];

/// A client that keeps its connection open and sends a request for each line of its standard input.
struct Client {
    process: Child,
    responses: BufReader<ChildStdout>,
}

const KEEPALIVE_CLIENT: &str = "import http.client, sys
connection = http.client.HTTPConnection('10.77.0.2', 8080, timeout=20)
for _ in sys.stdin:
    try:
        connection.request('GET', '/menu')
        print(connection.getresponse().read().decode(), end='', flush=True)
    except ConnectionResetError:
        connection.close()
        print('reset', flush=True)
";

impl Client {
    fn start(target: &Target) -> Result<Self> {
        let mut process = target
            .in_peer_network("python3")
            .args(["-c", KEEPALIVE_CLIENT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let responses = BufReader::new(process.stdout.take().context("no output")?);
        Ok(Client { process, responses })
    }

    fn request(&mut self) -> Result<String> {
        let input = self.process.stdin.as_mut().context("no input")?;
        writeln!(input, "again")?;
        let mut response = String::new();
        self.responses.read_line(&mut response)?;
        Ok(response)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(super) async fn open_connections_stay_unless_flushing_is_enabled(
    _: &Scenario<'_>,
) -> Result<()> {
    let target = Target::start()?;
    let steal = ("INCOMING", "steal");
    for (settings, expected) in [
        (&[steal][..], original(network::CLIENT)),
        (
            &[steal, ("INCOMING_FLUSH_CONNECTIONS", "true")],
            "reset\n".to_owned(),
        ),
    ] {
        let mut client = Client::start(&target)?;
        ensure!(client.request()? == original(network::CLIENT));
        let session = serve(&target, network::APPLICATION, settings)?;
        wait_for_response(&target, &session, &[], LOCAL).await?;
        let response = client.request()?;
        ensure!(response == expected, "{response:?}\n{}", session.report());
        if expected == "reset\n" {
            session.wait_for_message("1 open connection reset").await?;
            ensure!(client.request()? == LOCAL);
        }
        session.kill()?;
        until("a response of the application", async || {
            Ok((request(&target, &[])? == original(network::CLIENT)).then_some(()))
        })
        .await?;
    }
    Ok(())
}

pub(super) async fn health_probes_go_to_the_application_unless_enabled(
    _: &Scenario<'_>,
) -> Result<()> {
    let target = Target::start()?;
    let steal = ("INCOMING", "steal");
    let session = serve(&target, network::APPLICATION, &[steal])?;
    wait_for_response(&target, &session, &[], LOCAL).await?;
    ensure!(request(&target, &PROBE)? == original(network::TARGET));
    // A probe that only connects succeeds, too.
    let connect = format!(
        "import socket; socket.create_connection(('{}', {}), 20)",
        network::TARGET,
        network::APPLICATION
    );
    lab::output_of(target.in_peer_network("python3").args(["-c", &connect]))?;
    session.kill()?;

    let settings = [steal, ("INCOMING_TAKE_PROBES", "true")];
    let session = serve(&target, network::APPLICATION, &settings)?;
    wait_for_response(&target, &session, &[], LOCAL).await?;
    ensure!(request(&target, &PROBE)? == LOCAL);
    Ok(())
}

pub(super) async fn a_session_that_continues_gets_the_port_when_it_is_free(
    _: &Scenario<'_>,
) -> Result<()> {
    let target = Target::start()?;
    let first = serve(&target, network::APPLICATION, &[("INCOMING", "steal")])?;
    wait_for_response(&target, &first, &[], LOCAL).await?;
    let command = [
        "node",
        "-e",
        "require('http').createServer((_, out) => out.end('second\\n')).listen(8080)",
    ];
    let settings = [
        ("INCOMING", "steal"),
        ("INCOMING_ON_CONCURRENT_STEAL", "continue"),
    ];
    let second = SessionProcess::start(programs()?.exec(&target, &command), &settings)?;
    second
        .wait_for_message("port 8080 of the target: the program gets nothing while ")
        .await?;
    second
        .wait_for_message(
            "(python3 http_server.py) has a claim on all of it; after that, everything goes to the program",
        )
        .await?;
    ensure!(request(&target, &[])? == LOCAL, "{}", second.report());
    first.kill()?;
    until("a response of the second program", async || {
        Ok((request(&target, &[])? == "second\n").then_some(()))
    })
    .await
    .with_context(|| second.report())?;
    second
        .wait_for_message("port 8080 of the target: everything goes to the program")
        .await
}

/// Their sockets have `SO_REUSEADDR`: the kernel lets both bind to the port, but only one of them listen.
pub(super) async fn programs_that_start_concurrently_on_one_port_both_serve(
    _: &Scenario<'_>,
) -> Result<()> {
    const LOCAL_PORT_NUMBER: u16 = 18085;
    let targets = [Target::start()?, Target::start()?];
    let mapping = format!("{LOCAL_PORT_NUMBER}:{}", network::APPLICATION);
    let settings = [("INCOMING", "steal"), ("INCOMING_PORT_MAPPING", &mapping)];
    let sessions: Vec<SessionProcess> = targets
        .iter()
        .map(|target| serve(target, LOCAL_PORT_NUMBER, &settings))
        .collect::<Result<_>>()?;
    for (target, session) in targets.iter().zip(&sessions) {
        wait_for_response(target, session, &[], LOCAL).await?;
    }
    Ok(())
}

/// A server whose responses are discarded.
const MIRROR_SERVER: &str = "import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(('0.0.0.0', 8060))
while True:
    datagram, client = server.recvfrom(1500)
    print(datagram.decode(), client[0], flush=True)
    server.sendto(b'local', client)
";

pub(super) async fn datagrams_are_mirrored(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let command = programs()?.exec(&target, &["python3", "-c", MIRROR_SERVER]);
    let session = SessionProcess::start(command, &[("INCOMING", "mirror")])?;
    session
        .wait_for_message("gets a copy of everything")
        .await?;
    let mut client = target.in_peer_network("python3");
    let response = lab::output_of(client.args(["-c", DATAGRAM_CLIENT]))?;
    ensure!(response == "original ping\n", "{response:?}");
    let expected = format!("ping {}\n", network::CLIENT);
    let copied = until("the mirrored datagram", async || {
        Ok((session.stdout()? == expected).then_some(()))
    });
    copied.await.with_context(|| session.report())
}
