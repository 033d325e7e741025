//! Network faults of the lab: between clusters, and between a cluster and the developer's machine.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::{LazyEnvironment, Needs, Scenario, scenario, until};
use lab::wire::{Conditions, Loss};
use lab::{HOST, Lab};
use libtest_mimic::Trial;

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![
        scenario(
            environment,
            "a_cut_between_clusters_affects_only_them",
            Needs::Lab,
            a_cut_between_clusters_affects_only_them,
        ),
        scenario(
            environment,
            "a_cut_from_this_machine_affects_only_it",
            Needs::Lab,
            a_cut_from_this_machine_affects_only_it,
        ),
        scenario(
            environment,
            "an_open_connection_survives_a_cut",
            Needs::Lab,
            an_open_connection_survives_a_cut,
        ),
        scenario(
            environment,
            "a_delay_applies_in_both_directions",
            Needs::Lab,
            a_delay_applies_in_both_directions,
        ),
        scenario(
            environment,
            "loss_is_counted_and_repaired_by_tcp",
            Needs::Lab,
            loss_is_counted_and_repaired_by_tcp,
        ),
        scenario(
            environment,
            "a_rate_limit_is_enforced",
            Needs::Lab,
            a_rate_limit_is_enforced,
        ),
        scenario(
            environment,
            "a_cluster_can_dial_out_but_not_be_dialled",
            Needs::Lab,
            a_cluster_can_dial_out_but_not_be_dialled,
        ),
        scenario(
            environment,
            "wrong_endpoints_are_refused",
            Needs::Lab,
            wrong_endpoints_are_refused,
        ),
    ]
}

async fn a_cut_between_clusters_affects_only_them(scenario: &Scenario<'_>) -> Result<()> {
    let lab = healed_lab(scenario)?;
    let (east, west) = (
        Endpoint::node(lab, "east-1")?,
        Endpoint::node(lab, "west-1")?,
    );
    ensure!(
        east.reaches(&west)? && west.reaches(&east)?,
        "there is no link to cut"
    );
    lab.cut("east", "west")?;
    ensure!(
        !east.reaches(&west)? && !west.reaches(&east)?,
        "the cut has no effect"
    );
    ensure!(
        Endpoint::Host.reaches(&east)? && Endpoint::Host.reaches(&west)?,
        "the cut also affects this machine"
    );
    let status = lab.status()?;
    ensure!(
        status
            .links
            .iter()
            .any(|link| link.counters.cut.packets > 0),
        "nothing was counted: {status:?}"
    );
    lab.heal()?;
    ensure!(
        east.reaches(&west)? && west.reaches(&east)?,
        "it did not heal"
    );
    ensure!(
        lab.status()?.links.is_empty(),
        "healed links are still listed"
    );
    Ok(())
}

async fn a_cut_from_this_machine_affects_only_it(scenario: &Scenario<'_>) -> Result<()> {
    let lab = healed_lab(scenario)?;
    let (east, west) = (
        Endpoint::node(lab, "east-1")?,
        Endpoint::node(lab, "west-1")?,
    );
    lab.cut(HOST, "east")?;
    ensure!(
        !Endpoint::Host.reaches(&east)?,
        "this machine still reaches the cluster"
    );
    ensure!(
        Endpoint::Host.reaches(&west)? && west.reaches(&east)?,
        "the cut affects another link"
    );
    lab.heal()?;
    ensure!(Endpoint::Host.reaches(&east)?, "it did not heal");
    Ok(())
}

async fn an_open_connection_survives_a_cut(scenario: &Scenario<'_>) -> Result<()> {
    let lab = healed_lab(scenario)?;
    let mut connection = EchoConnection::open(lab, "east-1")?;
    connection.exchange("before")?;
    lab.cut(HOST, "east")?;
    connection.send_line("during")?;
    until("the cut to drop packets", async || {
        let was_cut = lab
            .status()?
            .links
            .iter()
            .any(|link| link.counters.cut.packets > 0);
        Ok(was_cut.then_some(()))
    })
    .await?;
    lab.heal()?;
    ensure!(
        connection.read_line_back()? == "during",
        "the line that was sent during the cut was lost"
    );
    connection.exchange("after")
}

async fn a_delay_applies_in_both_directions(scenario: &Scenario<'_>) -> Result<()> {
    let lab = healed_lab(scenario)?;
    let mut connection = EchoConnection::open(lab, "east-1")?;
    let delay = Duration::from_millis(20);
    lab.set_link(HOST, "east", &Conditions::delayed_by(delay))?;
    for _ in 0..5 {
        let started = Instant::now();
        connection.exchange("ping")?;
        // Never less than the delay in both directions. A benchmark measures how much more it is.
        ensure!(
            started.elapsed() >= delay * 2,
            "the response arrived after {:?}",
            started.elapsed()
        );
    }
    lab.heal()?;
    connection.exchange("healed")
}

async fn loss_is_counted_and_repaired_by_tcp(scenario: &Scenario<'_>) -> Result<()> {
    let lab = healed_lab(scenario)?;
    let mut connection = EchoConnection::open(lab, "east-1")?;
    lab.set_link(
        HOST,
        "east",
        &Conditions {
            loss: Loss::from_ratio(0.2)?,
            ..Conditions::default()
        },
    )?;
    let mut lost = 0;
    // With 20 % loss, a hundred exchanges without any loss are practically impossible.
    for number in 0..100 {
        connection.exchange(&format!("line {number}"))?;
        lost = lab
            .status()?
            .links
            .iter()
            .map(|link| link.counters.lost.packets)
            .sum();
        if lost > 3 {
            break;
        }
    }
    ensure!(lost > 0, "nothing was lost");
    lab.heal()?;
    connection.exchange("healed")
}

async fn a_rate_limit_is_enforced(scenario: &Scenario<'_>) -> Result<()> {
    const BYTES: usize = 400_000;
    let lab = healed_lab(scenario)?;
    let mut connection = EchoConnection::open(lab, "east-1")?;
    lab.set_link(HOST, "east", &"rate 2mbit".parse()?)?;
    let started = Instant::now();
    connection.exchange(&"x".repeat(BYTES))?;
    // The data passes in both directions, which may overlap: never faster than one direction alone.
    let minimum = Duration::from_secs_f64(BYTES as f64 * 8.0 / 2e6);
    ensure!(
        started.elapsed() >= minimum,
        "{BYTES} bytes at 2 Mbit/s took only {:?}",
        started.elapsed()
    );
    lab.heal()?;
    connection.exchange("healed")
}

async fn a_cluster_can_dial_out_but_not_be_dialled(scenario: &Scenario<'_>) -> Result<()> {
    let lab = healed_lab(scenario)?;
    let (east, west) = (
        Endpoint::node(lab, "east-1")?,
        Endpoint::node(lab, "west-1")?,
    );
    let mut open = EchoConnection::open(lab, "west-1")?;
    lab.set_dialling("east", "west", false)?;
    lab.set_dialling(HOST, "west", false)?;
    ensure!(
        !east.reaches(&west)? && !Endpoint::Host.reaches(&west)?,
        "the cluster can be dialled"
    );
    ensure!(west.reaches(&east)?, "the cluster cannot dial out");
    open.exchange("still open")?;
    EchoConnection::open(lab, "west-1")?.exchange("dialled out")?;
    lab.heal()?;
    ensure!(
        east.reaches(&west)? && Endpoint::Host.reaches(&west)?,
        "it did not heal"
    );
    Ok(())
}

async fn wrong_endpoints_are_refused(scenario: &Scenario<'_>) -> Result<()> {
    let lab = healed_lab(scenario)?;
    for (one, other, expected) in [
        ("east", "nowhere", "has no cluster `nowhere`"),
        ("east", "east", "no link to itself"),
    ] {
        let error = lab
            .cut(one, other)
            .err()
            .context("it was accepted")?
            .to_string();
        ensure!(error.contains(expected), "{error}");
    }
    let error = lab
        .set_dialling("east", HOST, false)
        .err()
        .context("it was accepted")?
        .to_string();
    ensure!(
        error.contains("no firewall rule of this machine"),
        "{error}"
    );
    Ok(())
}

/// The lab, after healing faults that a failed scenario may have left.
fn healed_lab<'environment>(scenario: &Scenario<'environment>) -> Result<&'environment Lab> {
    let lab = scenario.lab()?;
    lab.heal()?;
    Ok(lab)
}

/// An end of a connection. A node accepts connections at the port of its API server.
enum Endpoint<'lab> {
    Host,
    Node {
        lab: &'lab Lab,
        name: &'static str,
        address: String,
    },
}

impl<'lab> Endpoint<'lab> {
    fn node(lab: &'lab Lab, name: &'static str) -> Result<Self> {
        let plans = &lab.cluster_of_node(name)?.plan().nodes;
        let plan = plans
            .iter()
            .find(|plan| plan.name == name)
            .context("no such node")?;
        Ok(Endpoint::Node {
            lab,
            name,
            address: plan.address.to_string(),
        })
    }

    /// Whether a connection to the other endpoint opens.
    fn reaches(&self, other: &Endpoint<'_>) -> Result<bool> {
        let Endpoint::Node { address, .. } = other else {
            anyhow::bail!("nothing listens on this machine");
        };
        match self {
            Endpoint::Host => {
                let socket = format!("{address}:6443").parse()?;
                Ok(TcpStream::connect_timeout(&socket, Duration::from_secs(2)).is_ok())
            }
            Endpoint::Node { lab, name, .. } => {
                let dial = format!("exec 3<>/dev/tcp/{address}/6443");
                let mut command = lab.cluster_of_node(name)?.in_node(name)?;
                let status = command
                    .args(["timeout", "2", "bash", "-c", &dial])
                    .stderr(Stdio::null())
                    .status()?;
                Ok(status.success())
            }
        }
    }
}

/// A connection from a node to this machine, which echoes every line.
struct EchoConnection {
    client: Child,
    to_client: ChildStdin,
    from_client: BufReader<ChildStdout>,
}

impl EchoConnection {
    fn open(lab: &Lab, node: &str) -> Result<Self> {
        let listener = TcpListener::bind((lab.network().host(), 0))?;
        let address = listener.local_addr()?;
        thread::spawn(move || echo_one(&listener));
        let script = format!(
            "exec 3<>/dev/tcp/{}/{}; while read -r line; do echo \"$line\" >&3; read -r -u 3 echoed; echo \"$echoed\"; done",
            address.ip(),
            address.port()
        );
        let mut command: Command = lab.cluster_of_node(node)?.in_node(node)?;
        let mut client = command
            // Ends a connection that hangs, so that the scenario fails.
            .args(["timeout", "120", "bash", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start bash in the node")?;
        let to_client = client.stdin.take().context("no input")?;
        let from_client = BufReader::new(client.stdout.take().context("no output")?);
        let mut connection = EchoConnection {
            client,
            to_client,
            from_client,
        };
        connection.exchange("hello")?;
        Ok(connection)
    }

    fn exchange(&mut self, line: &str) -> Result<()> {
        self.send_line(line)?;
        let received = self.read_line_back()?;
        ensure!(
            received == line,
            "received {} bytes instead of the {} that were sent",
            received.len(),
            line.len()
        );
        Ok(())
    }

    fn send_line(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.to_client, "{line}")?)
    }

    fn read_line_back(&mut self) -> Result<String> {
        let mut line = String::new();
        self.from_client.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for EchoConnection {
    fn drop(&mut self) {
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

fn echo_one(listener: &TcpListener) {
    let Ok((mut stream, _)) = listener.accept() else {
        return;
    };
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}
