//! Incoming traffic of the target that the local program steals or mirrors.

mod closed_ports;
mod options;
mod restarts;
mod tls;

use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::Program;
use e2e::machine::{Target, network};
use e2e::{LazyEnvironment, Needs, Scenario, scenario, until};
use libtest_mimic::Trial;
use tokio::sync::Mutex;

use self::closed_ports::a_port_that_the_program_has_closed_refuses_connections;
use self::options::{
    a_session_that_continues_gets_the_port_when_it_is_free, datagrams_are_mirrored,
    health_probes_go_to_the_application_unless_enabled,
    open_connections_stay_unless_flushing_is_enabled,
    programs_that_start_concurrently_on_one_port_both_serve,
};
use self::restarts::{
    a_killed_session_that_restarts_gets_the_port,
    a_restarted_session_gets_the_claim_that_an_agent_keeps_for_its_user,
};
use self::tls::{a_program_without_tls_receives_plaintext, requests_inside_tls_are_filtered};
use super::support::{SessionProcess, programs};

const MINE: &str = "x-session: mine";
const LOCAL: &str = "python-http serves 10.77.0.53\n";

/// All these scenarios listen on the same local port. A second program gets another port, unless both start concurrently.
static LOCAL_PORT: Mutex<()> = Mutex::const_new(());

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    macro_rules! scenarios {
        ($($scenario:ident),* $(,)?) => {
            vec![$(scenario(environment, concat!("incoming::", stringify!($scenario)), Needs::Machine, async |scenario: &Scenario<'_>| {
                let _one_at_a_time = LOCAL_PORT.lock().await;
                $scenario(scenario).await
            })),*]
        };
    }
    scenarios![
        requests_with_the_header_are_served_by_the_program,
        mirrored_requests_reach_the_program_and_its_responses_are_discarded,
        whole_ports_are_stolen,
        datagrams_are_stolen,
        the_application_serves_when_the_program_is_killed,
        the_application_serves_when_the_program_hangs,
        ports_can_be_mapped_to_local_ports,
        the_local_listen_port_can_be_chosen,
        sessions_with_different_filters_share_a_port,
        a_second_session_is_shown_the_owner_of_the_port,
        an_overridden_session_is_notified,
        traffic_continues_with_another_agent,
        open_connections_stay_unless_flushing_is_enabled,
        health_probes_go_to_the_application_unless_enabled,
        a_session_that_continues_gets_the_port_when_it_is_free,
        a_killed_session_that_restarts_gets_the_port,
        a_restarted_session_gets_the_claim_that_an_agent_keeps_for_its_user,
        datagrams_are_mirrored,
        a_port_that_the_program_has_closed_refuses_connections,
        programs_that_start_concurrently_on_one_port_both_serve,
        requests_inside_tls_are_filtered,
        a_program_without_tls_receives_plaintext,
    ]
}

/// A session with the server in Python.
fn serve(target: &Target, port: u16, settings: &[(&str, &str)]) -> Result<SessionProcess> {
    let server = Program::script("python3", "servers/python/http_server.py");
    let server = server.argument(port.to_string());
    let command = programs()?.exec(target, &server.command);
    SessionProcess::start(command, settings)
}

/// Sends a request from the peer network to the application's port, and returns the response.
fn request(target: &Target, arguments: &[&str]) -> Result<String> {
    let url = format!("http://{}:{}/menu", network::TARGET, network::APPLICATION);
    request_url(target, &url, arguments)
}

fn request_url(target: &Target, url: &str, arguments: &[&str]) -> Result<String> {
    let mut curl = target.in_peer_network("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20", url])
        .args(arguments);
    Ok(lab::output_of(&mut curl)?)
}

async fn wait_for_response(
    target: &Target,
    session: &SessionProcess,
    arguments: &[&str],
    by: &str,
) -> Result<()> {
    let what = format!("the response {by:?}");
    let responded = until(&what, async || {
        let response = request(target, arguments)?;
        ensure!(response == by, "the response is {response:?}");
        Ok(Some(()))
    });
    responded.await.with_context(|| session.report())
}

fn original(from: &str) -> String {
    format!("original /menu {from}\n")
}

async fn requests_with_the_header_are_served_by_the_program(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let settings = [
        ("INCOMING", "steal"),
        ("INCOMING_HEADER_FILTER", "^x-session: mine$"),
    ];
    let session = serve(&target, network::APPLICATION, &settings)?;
    wait_for_response(&target, &session, &["-H", MINE], LOCAL).await?;
    // All other requests reach the application from the target's own address, because the agent forwards them.
    for header in ["x-session: yours", "x-other: mine"] {
        ensure!(request(&target, &["-H", header])? == original(network::TARGET));
    }
    // Both kinds over one connection.
    let url = format!("http://{}:{}/menu", network::TARGET, network::APPLICATION);
    let both = request(
        &target,
        &["--next", "-s", "-H", MINE, &url, "--next", "-s", &url],
    )?;
    let others = original(network::TARGET);
    let expected = format!("{others}{LOCAL}{others}");
    ensure!(both == expected, "{both:?}");
    session
        .wait_for_message(
            "go to the program (port 8080), all others to the application there; checked",
        )
        .await?;
    session
        .wait_for_message("received the first traffic from outside")
        .await
}

async fn mirrored_requests_reach_the_program_and_its_responses_are_discarded(
    _: &Scenario<'_>,
) -> Result<()> {
    let target = Target::start()?;
    // Mirroring is the default.
    let session = serve(&target, network::APPLICATION, &[])?;
    session
        .wait_for_message("gets a copy of everything")
        .await?;
    ensure!(request(&target, &[])? == original(network::TARGET));
    let copied = until("the mirrored request", async || {
        let printed = session.stdout()?;
        Ok(printed.contains("request /menu 10.77.0.53").then_some(()))
    });
    copied.await.with_context(|| session.report())
}

async fn whole_ports_are_stolen(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let session = serve(&target, network::APPLICATION, &[("INCOMING", "steal")])?;
    wait_for_response(&target, &session, &[], LOCAL).await?;
    let url = format!("http://[{}]:{}/", network::TARGET6, network::APPLICATION);
    let response = request_url(&target, &url, &[])?;
    ensure!(response.starts_with("python-http serves "), "{response}");
    // The application keeps its other port, where it sends first.
    let greeting = format!(
        "import socket; print(socket.create_connection(('{}', {})).recv(9))",
        network::TARGET,
        network::GREETER
    );
    let received = lab::output_of(target.in_peer_network("python3").args(["-c", &greeting]))?;
    ensure!(received == "b'original\\n'\n", "{received:?}");
    Ok(())
}

/// A UDP server that responds with the client's address, and its client.
const DATAGRAM_SERVER: &str = "import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(('0.0.0.0', 8060))
while True:
    datagram, client = server.recvfrom(1500)
    server.sendto(b'local %s to %s' % (datagram, client[0].encode()), client)
";
const DATAGRAM_CLIENT: &str = "import socket
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(20)
client.sendto(b'ping', ('10.77.0.2', 8060))
print(client.recv(1500).decode())
";

async fn datagrams_are_stolen(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let request = || -> Result<String> {
        Ok(lab::output_of(
            target
                .in_peer_network("python3")
                .args(["-c", DATAGRAM_CLIENT]),
        )?)
    };
    ensure!(request()? == "original ping\n");
    let command = programs()?.exec(&target, &["python3", "-c", DATAGRAM_SERVER]);
    let session = SessionProcess::start(command, &[("INCOMING", "steal")])?;
    let responded = until("a response of the program", async || {
        let response = request()?;
        ensure!(response == "local ping to 10.77.0.53\n", "{response:?}");
        Ok(Some(()))
    });
    responded.await.with_context(|| session.report())?;
    session.kill()?;
    until("a response of the application", async || {
        Ok((request()? == "original ping\n").then_some(()))
    })
    .await
}

async fn the_application_serves_when_the_program_is_killed(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let session = serve(&target, network::APPLICATION, &[("INCOMING", "steal")])?;
    wait_for_response(&target, &session, &[], LOCAL).await?;
    session.kill()?;
    until("a response of the application", async || {
        Ok((request(&target, &[])? == original(network::CLIENT)).then_some(()))
    })
    .await
}

async fn the_application_serves_when_the_program_hangs(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let settings = [
        ("INCOMING", "steal"),
        ("INCOMING_HEADER_FILTER", "^x-session: mine$"),
        ("INCOMING_RESPONSE_TIMEOUT", "500ms"),
    ];
    let session = serve(&target, network::APPLICATION, &settings)?;
    wait_for_response(&target, &session, &["-H", MINE], LOCAL).await?;
    // Signals only the program, which is a grandchild of this process, and not the session's processes.
    let pattern = format!("http_server.py {}$", network::APPLICATION);
    let session_of = format!("--parent={}", child_pid(session.pid())?);
    let signal = |name: &str| {
        lab::output_of(Command::new("pkill").args([name, &session_of, "-f", &pattern]))
    };
    signal("-STOP")?;
    let response = request(&target, &["-H", MINE])?;
    ensure!(response == original(network::TARGET), "{response:?}");
    session
        .wait_for_message("got no response from the program in time")
        .await?;
    signal("-CONT")?;
    wait_for_response(&target, &session, &["-H", MINE], LOCAL).await
}

fn child_pid(process: u32) -> Result<String> {
    let found = lab::output_of(Command::new("pgrep").args(["--parent", &process.to_string()]))?;
    // The agent is a child, too.
    let mut children = found.lines().filter(|child| {
        let name = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        !name.starts_with("standind")
    });
    Ok(children.next().context("no child")?.to_owned())
}

async fn ports_can_be_mapped_to_local_ports(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let mapping = format!("18080:{}", network::APPLICATION);
    let settings = [("INCOMING", "steal"), ("INCOMING_PORT_MAPPING", &mapping)];
    let session = serve(&target, 18080, &settings)?;
    wait_for_response(&target, &session, &[], LOCAL).await
}

/// The program listens on another port than it requested, and does not notice.
async fn the_local_listen_port_can_be_chosen(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let folder = tempfile::tempdir()?;
    let settings = folder.path().join("standin.yaml");
    let text = "feature: {network: {incoming: {mode: steal, listen_ports: [[8080, 18090]]}}}";
    std::fs::write(&settings, text)?;
    let settings = settings.to_str().context("the path is not UTF-8")?;
    let session = serve(&target, network::APPLICATION, &[("CONFIG_FILE", settings)])?;
    wait_for_response(&target, &session, &[], LOCAL).await?;
    let arguments = ["--silent", "--show-error", "http://127.0.0.1:18090/"];
    let response = lab::output_of(Command::new("curl").args(arguments))?;
    ensure!(response == "python-http serves 127.0.0.1\n", "{response:?}");
    Ok(())
}

async fn sessions_with_different_filters_share_a_port(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let settings = |filter| [("INCOMING", "steal"), ("INCOMING_HEADER_FILTER", filter)];
    let mine = serve(
        &target,
        network::APPLICATION,
        &settings("^x-session: mine$"),
    )?;
    wait_for_response(&target, &mine, &["-H", MINE], LOCAL).await?;
    let command = [
        "node",
        "-e",
        "require('http').createServer((_, out) => out.end('yours\\n')).listen(8080)",
    ];
    let command = programs()?.exec(&target, &command);
    let yours = SessionProcess::start(command, &settings("^x-session: yours$"))?;
    wait_for_response(&target, &yours, &["-H", "x-session: yours"], "yours\n").await?;
    ensure!(request(&target, &["-H", MINE])? == LOCAL);
    ensure!(request(&target, &[])? == original(network::TARGET));
    yours.kill()?;
    wait_for_response(
        &target,
        &mine,
        &["-H", "x-session: yours"],
        &original(network::TARGET),
    )
    .await?;
    ensure!(request(&target, &["-H", MINE])? == LOCAL);
    Ok(())
}

async fn a_second_session_is_shown_the_owner_of_the_port(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let steal = [("INCOMING", "steal")];
    let first = serve(&target, network::APPLICATION, &steal)?;
    wait_for_response(&target, &first, &[], LOCAL).await?;
    let second = serve(&target, network::APPLICATION, &steal)?.end()?;
    ensure!(second.code != Some(0), "{second}");
    for text in [
        "Address already in use",
        "(python3 http_server.py) already takes all traffic",
        "on_concurrent_steal",
    ] {
        ensure!(
            second.stderr.contains(text),
            "{text:?} is missing: {second}"
        );
    }
    ensure!(request(&target, &[])? == LOCAL);
    Ok(())
}

async fn an_overridden_session_is_notified(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let first = serve(&target, network::APPLICATION, &[("INCOMING", "steal")])?;
    wait_for_response(&target, &first, &[], LOCAL).await?;
    let command = [
        "node",
        "-e",
        "require('http').createServer((_, out) => out.end('yours\\n')).listen(8080)",
    ];
    let command = programs()?.exec(&target, &command);
    let settings = [
        ("INCOMING", "steal"),
        ("INCOMING_ON_CONCURRENT_STEAL", "override"),
    ];
    let second = SessionProcess::start(command, &settings)?;
    wait_for_response(&target, &second, &[], "yours\n").await?;
    first.wait_for_message("(node) has taken the traffic").await
}

async fn traffic_continues_with_another_agent(_: &Scenario<'_>) -> Result<()> {
    let target = Target::start()?;
    let session = serve(&target, network::APPLICATION, &[("INCOMING", "steal")])?;
    wait_for_response(&target, &session, &[], LOCAL).await?;
    let pattern = format!("[-]-process {}( |$)", target.pid());
    lab::output_of(Command::new("pkill").args(["-KILL", "-f", &pattern]))?;
    session
        .wait_for_message("port 8080 of the target: again, ")
        .await?;
    wait_for_response(&target, &session, &[], LOCAL).await
}
