//! The target's traffic comes to the program that stands in.

mod options;
mod returning;
mod tls;

use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::Program;
use e2e::machine::{Target, network};
use e2e::{LaterWorld, Needs, Story, tell, until};
use libtest_mimic::Trial;
use tokio::sync::Mutex;

use self::options::{
    copies_of_datagrams_come_to_the_program,
    health_probes_are_the_applications_unless_they_are_wanted,
    open_connections_stay_unless_they_are_to_be_reset,
    programs_that_start_at_once_on_one_port_do_both, who_continues_gets_what_is_left,
};
use self::returning::{
    who_is_killed_and_starts_again_gets_the_port, who_starts_again_gets_what_an_agent_keeps_for_him,
};
use self::tls::{a_program_without_tls_gets_what_was_inside, requests_inside_tls_are_split};
use super::surroundings::{Running, programs};

const MINE: &str = "x-session: mine";
const LOCAL: &str = "python-http serves 10.77.0.53\n";

/// All of them listen on the same port of this machine. Whoever comes second gets another one, unless both come at once.
static THIS_MACHINES_PORT: Mutex<()> = Mutex::const_new(());

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    macro_rules! stories {
        ($($story:ident),* $(,)?) => {
            vec![$(tell(world, concat!("incoming::", stringify!($story)), Needs::Machine, async |story: &Story<'_>| {
                let _one_at_a_time = THIS_MACHINES_PORT.lock().await;
                $story(story).await
            })),*]
        };
    }
    stories![
        requests_with_the_header_are_answered_by_the_program,
        a_copy_comes_to_the_program_and_nothing_of_its_answers_to_the_client,
        whole_ports_come_to_the_program,
        datagrams_come_to_the_program,
        the_original_answers_when_the_program_is_killed,
        the_original_answers_when_the_program_hangs,
        ports_may_have_other_numbers_here,
        the_port_on_this_machine_can_be_chosen,
        sessions_with_different_filters_share_a_port,
        who_comes_second_learns_who_has_the_port,
        who_is_overridden_is_told,
        another_agent_brings_the_traffic_again,
        open_connections_stay_unless_they_are_to_be_reset,
        health_probes_are_the_applications_unless_they_are_wanted,
        who_continues_gets_what_is_left,
        who_is_killed_and_starts_again_gets_the_port,
        who_starts_again_gets_what_an_agent_keeps_for_him,
        copies_of_datagrams_come_to_the_program,
        programs_that_start_at_once_on_one_port_do_both,
        requests_inside_tls_are_split,
        a_program_without_tls_gets_what_was_inside,
    ]
}

/// A session with the server in Python.
fn serve(target: &Target, port: u16, settings: &[(&str, &str)]) -> Result<Running> {
    let server = Program::script("python3", "servers/python/http_server.py");
    let server = server.argument(port.to_string());
    let command = programs()?.exec(target, &server.command);
    Running::start(command, settings)
}

/// What a client beside the target gets, from the port of the application.
fn ask(target: &Target, arguments: &[&str]) -> Result<String> {
    let url = format!("http://{}:{}/menu", network::TARGET, network::APPLICATION);
    ask_at(target, &url, arguments)
}

fn ask_at(target: &Target, url: &str, arguments: &[&str]) -> Result<String> {
    let mut curl = target.outside("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20", url])
        .args(arguments);
    Ok(lab::output_of(&mut curl)?)
}

async fn until_answered(
    target: &Target,
    session: &Running,
    arguments: &[&str],
    by: &str,
) -> Result<()> {
    let what = format!("the answer {by:?}");
    let answered = until(&what, async || {
        let answer = ask(target, arguments)?;
        ensure!(answer == by, "the answer is {answer:?}");
        Ok(Some(()))
    });
    answered.await.with_context(|| session.report())
}

fn original(from: &str) -> String {
    format!("original /menu {from}\n")
}

async fn requests_with_the_header_are_answered_by_the_program(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let settings = [
        ("INCOMING", "steal"),
        ("INCOMING_HEADER_FILTER", "^x-session: mine$"),
    ];
    let session = serve(&target, network::APPLICATION, &settings)?;
    until_answered(&target, &session, &["-H", MINE], LOCAL).await?;
    // Everybody else's requests come from the target itself, which passes them on.
    for header in ["x-session: yours", "x-other: mine"] {
        ensure!(ask(&target, &["-H", header])? == original(network::TARGET));
    }
    // Both kinds over one connection.
    let url = format!("http://{}:{}/menu", network::TARGET, network::APPLICATION);
    let both = ask(
        &target,
        &["--next", "-s", "-H", MINE, &url, "--next", "-s", &url],
    )?;
    let others = original(network::TARGET);
    let expected = format!("{others}{LOCAL}{others}");
    ensure!(both == expected, "{both:?}");
    session
        .says(
            "are answered by the program (port 8080), all others by the application there; checked",
        )
        .await?;
    session
        .says("the first traffic from outside has come")
        .await
}

async fn a_copy_comes_to_the_program_and_nothing_of_its_answers_to_the_client(
    _: &Story<'_>,
) -> Result<()> {
    let target = Target::start()?;
    // It is what a session does that says nothing of it.
    let session = serve(&target, network::APPLICATION, &[])?;
    session.says("gets a copy of everything").await?;
    ensure!(ask(&target, &[])? == original(network::TARGET));
    let copied = until("the copy", async || {
        let printed = session.stdout()?;
        Ok(printed.contains("request /menu 10.77.0.53").then_some(()))
    });
    copied.await.with_context(|| session.report())
}

async fn whole_ports_come_to_the_program(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let session = serve(&target, network::APPLICATION, &[("INCOMING", "steal")])?;
    until_answered(&target, &session, &[], LOCAL).await?;
    let url = format!("http://[{}]:{}/", network::TARGET6, network::APPLICATION);
    let answer = ask_at(&target, &url, &[])?;
    ensure!(answer.starts_with("python-http serves "), "{answer}");
    // Another port stays the application's, which speaks first there.
    let greeting = format!(
        "import socket; print(socket.create_connection(('{}', {})).recv(9))",
        network::TARGET,
        network::GREETER
    );
    let said = lab::output_of(target.outside("python3").args(["-c", &greeting]))?;
    ensure!(said == "b'original\\n'\n", "{said:?}");
    Ok(())
}

/// A server of datagrams, which says from whom they are, and a client.
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

async fn datagrams_come_to_the_program(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let ask = || -> Result<String> {
        Ok(lab::output_of(
            target.outside("python3").args(["-c", DATAGRAM_CLIENT]),
        )?)
    };
    ensure!(ask()? == "original ping\n");
    let command = programs()?.exec(&target, &["python3", "-c", DATAGRAM_SERVER]);
    let session = Running::start(command, &[("INCOMING", "steal")])?;
    let answered = until("an answer of the program", async || {
        let answer = ask()?;
        ensure!(answer == "local ping to 10.77.0.53\n", "{answer:?}");
        Ok(Some(()))
    });
    answered.await.with_context(|| session.report())?;
    session.kill()?;
    until("an answer of the application", async || {
        Ok((ask()? == "original ping\n").then_some(()))
    })
    .await
}

async fn the_original_answers_when_the_program_is_killed(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let session = serve(&target, network::APPLICATION, &[("INCOMING", "steal")])?;
    until_answered(&target, &session, &[], LOCAL).await?;
    session.kill()?;
    until("the original", async || {
        Ok((ask(&target, &[])? == original(network::CLIENT)).then_some(()))
    })
    .await
}

async fn the_original_answers_when_the_program_hangs(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let settings = [
        ("INCOMING", "steal"),
        ("INCOMING_HEADER_FILTER", "^x-session: mine$"),
        ("INCOMING_ANSWER_WITHIN", "500ms"),
    ];
    let session = serve(&target, network::APPLICATION, &settings)?;
    until_answered(&target, &session, &["-H", MINE], LOCAL).await?;
    // The program, which is the child of a child of ours, and not what is around it.
    let pattern = format!("http_server.py {}$", network::APPLICATION);
    let session_of = format!("--parent={}", child_of(session.pid())?);
    let signal = |name: &str| {
        lab::output_of(Command::new("pkill").args([name, &session_of, "-f", &pattern]))
    };
    signal("-STOP")?;
    let answer = ask(&target, &["-H", MINE])?;
    ensure!(answer == original(network::TARGET), "{answer:?}");
    session
        .says("got no answer from the program in time")
        .await?;
    signal("-CONT")?;
    until_answered(&target, &session, &["-H", MINE], LOCAL).await
}

fn child_of(process: u32) -> Result<String> {
    let found = lab::output_of(Command::new("pgrep").args(["--parent", &process.to_string()]))?;
    // An agent is a child, too.
    let mut children = found.lines().filter(|child| {
        let name = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        !name.starts_with("standind")
    });
    Ok(children.next().context("no child")?.to_owned())
}

async fn ports_may_have_other_numbers_here(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let mapping = format!("18080:{}", network::APPLICATION);
    let settings = [("INCOMING", "steal"), ("INCOMING_PORT_MAPPING", &mapping)];
    let session = serve(&target, 18080, &settings)?;
    until_answered(&target, &session, &[], LOCAL).await
}

/// The program asks for a port, gets another one, and does not notice.
async fn the_port_on_this_machine_can_be_chosen(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let folder = tempfile::tempdir()?;
    let settings = folder.path().join("standin.yaml");
    let text = "feature: {network: {incoming: {mode: steal, listen_ports: [[8080, 18090]]}}}";
    std::fs::write(&settings, text)?;
    let settings = settings.to_str().context("the path")?;
    let session = serve(&target, network::APPLICATION, &[("CONFIG_FILE", settings)])?;
    until_answered(&target, &session, &[], LOCAL).await?;
    let here = ["--silent", "--show-error", "http://127.0.0.1:18090/"];
    let answer = lab::output_of(Command::new("curl").args(here))?;
    ensure!(answer == "python-http serves 127.0.0.1\n", "{answer:?}");
    Ok(())
}

async fn sessions_with_different_filters_share_a_port(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let settings = |filter| [("INCOMING", "steal"), ("INCOMING_HEADER_FILTER", filter)];
    let mine = serve(
        &target,
        network::APPLICATION,
        &settings("^x-session: mine$"),
    )?;
    until_answered(&target, &mine, &["-H", MINE], LOCAL).await?;
    let command = [
        "node",
        "-e",
        "require('http').createServer((_, out) => out.end('yours\\n')).listen(8080)",
    ];
    let command = programs()?.exec(&target, &command);
    let yours = Running::start(command, &settings("^x-session: yours$"))?;
    until_answered(&target, &yours, &["-H", "x-session: yours"], "yours\n").await?;
    ensure!(ask(&target, &["-H", MINE])? == LOCAL);
    ensure!(ask(&target, &[])? == original(network::TARGET));
    yours.kill()?;
    until_answered(
        &target,
        &mine,
        &["-H", "x-session: yours"],
        &original(network::TARGET),
    )
    .await?;
    ensure!(ask(&target, &["-H", MINE])? == LOCAL);
    Ok(())
}

async fn who_comes_second_learns_who_has_the_port(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let steal = [("INCOMING", "steal")];
    let first = serve(&target, network::APPLICATION, &steal)?;
    until_answered(&target, &first, &[], LOCAL).await?;
    let second = serve(&target, network::APPLICATION, &steal)?.end()?;
    ensure!(second.code != Some(0), "{second}");
    for words in [
        "Address already in use",
        "(python3 http_server.py) already takes all traffic",
        "on_concurrent_steal",
    ] {
        ensure!(
            second.stderr.contains(words),
            "{words:?} is missing: {second}"
        );
    }
    ensure!(ask(&target, &[])? == LOCAL);
    Ok(())
}

async fn who_is_overridden_is_told(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let first = serve(&target, network::APPLICATION, &[("INCOMING", "steal")])?;
    until_answered(&target, &first, &[], LOCAL).await?;
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
    let second = Running::start(command, &settings)?;
    until_answered(&target, &second, &[], "yours\n").await?;
    first.says("(node) has taken the traffic").await
}

async fn another_agent_brings_the_traffic_again(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let session = serve(&target, network::APPLICATION, &[("INCOMING", "steal")])?;
    until_answered(&target, &session, &[], LOCAL).await?;
    let pattern = format!("[-]-process {}( |$)", target.pid());
    lab::output_of(Command::new("pkill").args(["-KILL", "-f", &pattern]))?;
    session.says("port 8080 of the target: again, ").await?;
    until_answered(&target, &session, &[], LOCAL).await
}
