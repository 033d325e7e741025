//! Each fault that the lab can put between clusters, and between a cluster and the developer's machine.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::{LaterWorld, Needs, Story, tell, until};
use lab::wire::{Conditions, Loss};
use lab::{HOST, Lab};
use libtest_mimic::Trial;

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![
        tell(
            world,
            "a_cut_between_clusters_hurts_only_them",
            Needs::Lab,
            a_cut_between_clusters_hurts_only_them,
        ),
        tell(
            world,
            "a_cut_from_this_machine_hurts_only_it",
            Needs::Lab,
            a_cut_from_this_machine_hurts_only_it,
        ),
        tell(
            world,
            "an_open_connection_outlives_a_cut",
            Needs::Lab,
            an_open_connection_outlives_a_cut,
        ),
        tell(
            world,
            "a_delay_is_felt_in_both_directions",
            Needs::Lab,
            a_delay_is_felt_in_both_directions,
        ),
        tell(
            world,
            "loss_is_counted_and_made_good_by_tcp",
            Needs::Lab,
            loss_is_counted_and_made_good_by_tcp,
        ),
        tell(world, "a_rate_is_kept", Needs::Lab, a_rate_is_kept),
        tell(
            world,
            "a_cluster_can_dial_out_but_not_be_dialled",
            Needs::Lab,
            a_cluster_can_dial_out_but_not_be_dialled,
        ),
        tell(
            world,
            "wrong_endpoints_are_refused",
            Needs::Lab,
            wrong_endpoints_are_refused,
        ),
    ]
}

async fn a_cut_between_clusters_hurts_only_them(story: &Story<'_>) -> Result<()> {
    let lab = healed(story)?;
    let (east, west) = (Place::node(lab, "east-1")?, Place::node(lab, "west-1")?);
    ensure!(
        east.reaches(&west)? && west.reaches(&east)?,
        "there is no link to cut"
    );
    lab.cut("east", "west")?;
    ensure!(
        !east.reaches(&west)? && !west.reaches(&east)?,
        "the cut did not cut"
    );
    ensure!(
        Place::Host.reaches(&east)? && Place::Host.reaches(&west)?,
        "the cut also hit this machine"
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

async fn a_cut_from_this_machine_hurts_only_it(story: &Story<'_>) -> Result<()> {
    let lab = healed(story)?;
    let (east, west) = (Place::node(lab, "east-1")?, Place::node(lab, "west-1")?);
    lab.cut(HOST, "east")?;
    ensure!(
        !Place::Host.reaches(&east)?,
        "this machine still reaches the cluster"
    );
    ensure!(
        Place::Host.reaches(&west)? && west.reaches(&east)?,
        "the cut hit someone else"
    );
    lab.heal()?;
    ensure!(Place::Host.reaches(&east)?, "it did not heal");
    Ok(())
}

async fn an_open_connection_outlives_a_cut(story: &Story<'_>) -> Result<()> {
    let lab = healed(story)?;
    let mut conversation = Conversation::open(lab, "east-1")?;
    conversation.exchange("before")?;
    lab.cut(HOST, "east")?;
    conversation.say("during")?;
    until("the cut to swallow the words", async || {
        let swallowed = lab
            .status()?
            .links
            .iter()
            .any(|link| link.counters.cut.packets > 0);
        Ok(swallowed.then_some(()))
    })
    .await?;
    lab.heal()?;
    ensure!(
        conversation.hear()? == "during",
        "the words of the cut were lost"
    );
    conversation.exchange("after")
}

async fn a_delay_is_felt_in_both_directions(story: &Story<'_>) -> Result<()> {
    let lab = healed(story)?;
    let mut conversation = Conversation::open(lab, "east-1")?;
    let delay = Duration::from_millis(20);
    lab.set_link(HOST, "east", &Conditions::delayed_by(delay))?;
    for _ in 0..5 {
        let started = Instant::now();
        conversation.exchange("ping")?;
        // Never less than there and back. How much more it may be is a benchmark's business.
        ensure!(
            started.elapsed() >= delay * 2,
            "the answer came after {:?}",
            started.elapsed()
        );
    }
    lab.heal()?;
    conversation.exchange("healed")
}

async fn loss_is_counted_and_made_good_by_tcp(story: &Story<'_>) -> Result<()> {
    let lab = healed(story)?;
    let mut conversation = Conversation::open(lab, "east-1")?;
    lab.set_link(
        HOST,
        "east",
        &Conditions {
            loss: Loss::from_ratio(0.2)?,
            ..Conditions::default()
        },
    )?;
    let mut lost = 0;
    // With a fifth of the packets lost, a hundred exchanges lose none only once in ten thousand million runs.
    for number in 0..100 {
        conversation.exchange(&format!("line {number}"))?;
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
    conversation.exchange("healed")
}

async fn a_rate_is_kept(story: &Story<'_>) -> Result<()> {
    const BYTES: usize = 400_000;
    let lab = healed(story)?;
    let mut conversation = Conversation::open(lab, "east-1")?;
    lab.set_link(HOST, "east", &"rate 2mbit".parse()?)?;
    let started = Instant::now();
    conversation.exchange(&"x".repeat(BYTES))?;
    // It passes there and back, one way at a time or both at once: never faster than one way.
    let least = Duration::from_secs_f64(BYTES as f64 * 8.0 / 2e6);
    ensure!(
        started.elapsed() >= least,
        "{BYTES} bytes at 2 Mbit/s took only {:?}",
        started.elapsed()
    );
    lab.heal()?;
    conversation.exchange("healed")
}

async fn a_cluster_can_dial_out_but_not_be_dialled(story: &Story<'_>) -> Result<()> {
    let lab = healed(story)?;
    let (east, west) = (Place::node(lab, "east-1")?, Place::node(lab, "west-1")?);
    let mut open = Conversation::open(lab, "west-1")?;
    lab.set_dialling("east", "west", false)?;
    lab.set_dialling(HOST, "west", false)?;
    ensure!(
        !east.reaches(&west)? && !Place::Host.reaches(&west)?,
        "the cluster can be dialled"
    );
    ensure!(west.reaches(&east)?, "the cluster cannot dial out");
    open.exchange("still open")?;
    Conversation::open(lab, "west-1")?.exchange("dialled out")?;
    lab.heal()?;
    ensure!(
        east.reaches(&west)? && Place::Host.reaches(&west)?,
        "it did not heal"
    );
    Ok(())
}

async fn wrong_endpoints_are_refused(story: &Story<'_>) -> Result<()> {
    let lab = healed(story)?;
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

/// The lab, without what a story before may have left broken when it failed.
fn healed<'world>(story: &Story<'world>) -> Result<&'world Lab> {
    let lab = story.lab()?;
    lab.heal()?;
    Ok(lab)
}

/// Somewhere that dials and is dialled: at the port of the API server.
enum Place<'lab> {
    Host,
    Node {
        lab: &'lab Lab,
        name: &'static str,
        address: String,
    },
}

impl<'lab> Place<'lab> {
    fn node(lab: &'lab Lab, name: &'static str) -> Result<Self> {
        let plans = &lab.cluster_of_node(name)?.plan().nodes;
        let plan = plans
            .iter()
            .find(|plan| plan.name == name)
            .context("no such node")?;
        Ok(Place::Node {
            lab,
            name,
            address: plan.address.to_string(),
        })
    }

    /// Whether a connection to the other place opens.
    fn reaches(&self, other: &Place<'_>) -> Result<bool> {
        let Place::Node { address, .. } = other else {
            anyhow::bail!("nothing listens on this machine");
        };
        match self {
            Place::Host => {
                let socket = format!("{address}:6443").parse()?;
                Ok(TcpStream::connect_timeout(&socket, Duration::from_secs(2)).is_ok())
            }
            Place::Node { lab, name, .. } => {
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

/// A connection that a node has dialled to this machine, on which every line comes back.
struct Conversation {
    dialler: Child,
    to_dialler: ChildStdin,
    from_dialler: BufReader<ChildStdout>,
}

impl Conversation {
    fn open(lab: &Lab, node: &str) -> Result<Self> {
        let listener = TcpListener::bind((lab.network().host(), 0))?;
        let address = listener.local_addr()?;
        thread::spawn(move || echo_one(&listener));
        let script = format!(
            "exec 3<>/dev/tcp/{}/{}; while read -r line; do echo \"$line\" >&3; read -r -u 3 back; echo \"$back\"; done",
            address.ip(),
            address.port()
        );
        let mut command: Command = lab.cluster_of_node(node)?.in_node(node)?;
        let mut dialler = command
            // A conversation that hangs ends, and the story with it.
            .args(["timeout", "120", "bash", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start bash in the node")?;
        let to_dialler = dialler.stdin.take().context("no input")?;
        let from_dialler = BufReader::new(dialler.stdout.take().context("no output")?);
        let mut conversation = Conversation {
            dialler,
            to_dialler,
            from_dialler,
        };
        conversation.exchange("hello")?;
        Ok(conversation)
    }

    fn exchange(&mut self, words: &str) -> Result<()> {
        self.say(words)?;
        let heard = self.hear()?;
        ensure!(
            heard == words,
            "{} bytes came back, not the {} that were said",
            heard.len(),
            words.len()
        );
        Ok(())
    }

    fn say(&mut self, words: &str) -> Result<()> {
        Ok(writeln!(self.to_dialler, "{words}")?)
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        self.from_dialler.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let _ = self.dialler.kill();
        let _ = self.dialler.wait();
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
