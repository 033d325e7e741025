//! What can be chosen about the target's traffic.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context as _, Result, ensure};
use e2e::machine::{Target, network};
use e2e::{Story, until};

use super::super::surroundings::{Running, programs};
use super::{DATAGRAM_CLIENT, LOCAL, ask, original, serve, until_answered};

const PROBE: [&str; 2] = ["-A", "kube-probe/1.34"];

/// A client that keeps its connection, and asks when it is told to.
struct Client {
    process: Child,
    answers: BufReader<ChildStdout>,
}

const KEEPING_CLIENT: &str = "import http.client, sys
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
            .outside("python3")
            .args(["-c", KEEPING_CLIENT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let answers = BufReader::new(process.stdout.take().context("no output")?);
        Ok(Client { process, answers })
    }

    fn ask(&mut self) -> Result<String> {
        let input = self.process.stdin.as_mut().context("no input")?;
        writeln!(input, "again")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(super) async fn open_connections_stay_unless_they_are_to_be_reset(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let steal = ("INCOMING", "steal");
    for (settings, then) in [
        (&[steal][..], original(network::CLIENT)),
        (
            &[steal, ("INCOMING_FLUSH_CONNECTIONS", "true")],
            "reset\n".to_owned(),
        ),
    ] {
        let mut client = Client::start(&target)?;
        ensure!(client.ask()? == original(network::CLIENT));
        let session = serve(&target, network::APPLICATION, settings)?;
        until_answered(&target, &session, &[], LOCAL).await?;
        let answer = client.ask()?;
        ensure!(answer == then, "{answer:?}\n{}", session.report());
        if then == "reset\n" {
            session.says("1 open connection reset").await?;
            ensure!(client.ask()? == LOCAL);
        }
        session.kill()?;
        until("the original", async || {
            Ok((ask(&target, &[])? == original(network::CLIENT)).then_some(()))
        })
        .await?;
    }
    Ok(())
}

pub(super) async fn health_probes_are_the_applications_unless_they_are_wanted(
    _: &Story<'_>,
) -> Result<()> {
    let target = Target::start()?;
    let steal = ("INCOMING", "steal");
    let session = serve(&target, network::APPLICATION, &[steal])?;
    until_answered(&target, &session, &[], LOCAL).await?;
    ensure!(ask(&target, &PROBE)? == original(network::TARGET));
    // A port on which a probe only connects is open.
    let connect = format!(
        "import socket; socket.create_connection(('{}', {}), 20)",
        network::TARGET,
        network::APPLICATION
    );
    lab::output_of(target.outside("python3").args(["-c", &connect]))?;
    session.kill()?;

    let settings = [steal, ("INCOMING_TAKE_PROBES", "true")];
    let session = serve(&target, network::APPLICATION, &settings)?;
    until_answered(&target, &session, &[], LOCAL).await?;
    ensure!(ask(&target, &PROBE)? == LOCAL);
    Ok(())
}

pub(super) async fn who_continues_gets_what_is_left(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let first = serve(&target, network::APPLICATION, &[("INCOMING", "steal")])?;
    until_answered(&target, &first, &[], LOCAL).await?;
    let command = [
        "node",
        "-e",
        "require('http').createServer((_, out) => out.end('second\\n')).listen(8080)",
    ];
    let settings = [
        ("INCOMING", "steal"),
        ("INCOMING_ON_CONCURRENT_STEAL", "continue"),
    ];
    let second = Running::start(programs()?.exec(&target, &command), &settings)?;
    second
        .says("port 8080 of the target: nothing comes to the program as long as ")
        .await?;
    second
        .says(
            "(python3 http_server.py) has all of it, and after that everything goes to the program",
        )
        .await?;
    ensure!(ask(&target, &[])? == LOCAL, "{}", second.report());
    first.kill()?;
    until("the second", async || {
        Ok((ask(&target, &[])? == "second\n").then_some(()))
    })
    .await
    .with_context(|| second.report())?;
    second
        .says("port 8080 of the target: everything goes to the program")
        .await
}

/// Their sockets have `SO_REUSEADDR`, with which the kernel lets both bind to the port, and only one of them listen.
pub(super) async fn programs_that_start_at_once_on_one_port_do_both(_: &Story<'_>) -> Result<()> {
    const HERE: u16 = 18085;
    let targets = [Target::start()?, Target::start()?];
    let mapping = format!("{HERE}:{}", network::APPLICATION);
    let settings = [("INCOMING", "steal"), ("INCOMING_PORT_MAPPING", &mapping)];
    let sessions: Vec<Running> = targets
        .iter()
        .map(|target| serve(target, HERE, &settings))
        .collect::<Result<_>>()?;
    for (target, session) in targets.iter().zip(&sessions) {
        until_answered(target, session, &[], LOCAL).await?;
    }
    Ok(())
}

/// Answers nobody hears.
const COPIED_SERVER: &str = "import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(('0.0.0.0', 8060))
while True:
    datagram, client = server.recvfrom(1500)
    print(datagram.decode(), client[0], flush=True)
    server.sendto(b'local', client)
";

pub(super) async fn copies_of_datagrams_come_to_the_program(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let command = programs()?.exec(&target, &["python3", "-c", COPIED_SERVER]);
    let session = Running::start(command, &[("INCOMING", "mirror")])?;
    session.says("gets a copy of everything").await?;
    let mut client = target.outside("python3");
    let answer = lab::output_of(client.args(["-c", DATAGRAM_CLIENT]))?;
    ensure!(answer == "original ping\n", "{answer:?}");
    let expected = format!("ping {}\n", network::CLIENT);
    let copied = until("the copy", async || {
        Ok((session.stdout()? == expected).then_some(()))
    });
    copied.await.with_context(|| session.report())
}
