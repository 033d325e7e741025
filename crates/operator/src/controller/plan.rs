//! What to do about a session. Decides everything, does nothing, and has no clock.

use std::time::Duration;

use api::session::{SessionClosed, SessionPhase, SessionPod};
use api::{MirrordClusterSession, MirrordClusterSessionStatus};
use cluster::{Ordered, OrderedState, PORTS, Replica};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::validate::Wanted;
use crate::settings::{AgentMode, SessionSettings};

/// How long agents may take to start, before a session that has none is given up.
pub(crate) const STARTUP: Duration = Duration::from_secs(60);
/// How long a session that failed is kept for people to look at.
const KEPT: Duration = Duration::from_secs(60);
/// An agent that fails again and again, beside the same container, is not started any more.
const ATTEMPTS: usize = 3;
/// Nor is one that ends again and again, in whatever way.
const MOST_ENDED: usize = 6;
/// The entries of ephemeral containers stay in their pod, and a pod is an object of bounded size. So all sessions together
/// have so many in a pod.
const MOST_IN_A_POD: usize = 200;
/// How long a deleted session waits for its agents to end. They end by themselves when their client stays away.
const ENDING: Duration = Duration::from_secs(30);
/// How soon to look again at what changes without telling.
const SOON: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(15);

/// What there is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    /// Pods that an agent can be in, in the order of their names.
    pub(crate) pods: Vec<ObservedPod>,
    /// Pods that no agent can be in, and why.
    pub(crate) unfit: Vec<String>,
    /// Why there is nothing at all.
    pub(crate) missing: Option<String>,
}

impl Observed {
    pub(crate) fn nothing(why: String) -> Self {
        Self {
            missing: Some(why),
            ..Self::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObservedPod {
    pub(crate) replica: Replica,
    /// The session's agents beside it, the oldest first.
    pub(crate) agents: Vec<ObservedAgent>,
    /// A digest of the policies that there seem to be. They are read again before anything follows from it.
    pub(crate) policies: String,
    /// What an agent was told just now.
    pub(crate) told: Option<Told>,
    /// Why another agent could not be started just now.
    pub(crate) refused: Option<Refused>,
}

/// What an agent knows, as digests: the policies, and what follows from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) policies: String,
    pub(crate) grant: String,
}

/// An agent of a session, wherever it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedAgent {
    pub(crate) ordered: Ordered,
    /// The address of the pod in which it is.
    pub(crate) host: Option<String>,
    /// The SHA-256 of its certificate, where somebody trustworthy has told it.
    pub(crate) certificate: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) why: String,
    /// Whether trying again is of no use.
    pub(crate) is_final: bool,
}

impl ObservedAgent {
    fn is_over(&self) -> bool {
        matches!(self.ordered.state, OrderedState::Ended(_))
    }

    /// Where the operator reaches it, if it is there.
    pub(crate) fn address(&self) -> Option<String> {
        let host = self.host.as_ref()?;
        let port = self.ordered.port;
        Some(match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        })
    }
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) start: Vec<Start>,
    /// Agents that may not know what is forbidden now.
    pub(crate) regrant: Vec<Regrant>,
    /// Agents that are to end.
    pub(crate) end: Vec<ObservedAgent>,
    /// The part of the status that the controller writes, if it is not there already.
    pub(crate) report: Option<Report>,
    /// Whether the object is to be deleted.
    pub(crate) delete: bool,
    /// Whether the object may go.
    pub(crate) release: bool,
    pub(crate) look_again: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Start {
    pub(crate) replica: Replica,
    pub(crate) name: String,
    pub(crate) port: u16,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Regrant {
    pub(crate) replica: Replica,
    pub(crate) agent: ObservedAgent,
    /// The policies that it knows of.
    pub(crate) knows: Option<String>,
}

/// What the controller says about a session. The rest of the status is the replica's that carries the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) phase: SessionPhase,
    pub(crate) message: Option<String>,
    pub(crate) pods: Vec<SessionPod>,
    pub(crate) next_channel: u32,
    pub(crate) closed: Option<SessionClosed>,
    pub(crate) failed_timestamp: Option<String>,
}

impl Report {
    fn of(status: &MirrordClusterSessionStatus) -> Option<Self> {
        Some(Self {
            phase: status.phase?,
            message: status.message.clone(),
            pods: status.pods.clone(),
            next_channel: status.next_channel,
            closed: status.closed.clone(),
            failed_timestamp: status.failed_timestamp.clone(),
        })
    }
}

/// What to do about a session that has not been deleted and is over, whatever its target and its agents are doing.
pub(crate) fn closing(
    session: &MirrordClusterSession,
    settings: &SessionSettings,
    now: Timestamp,
) -> Option<Plan> {
    let status = session.status.clone().unwrap_or_default();
    let closed = over(session, &status, settings, now)?;
    let report = Report {
        phase: SessionPhase::Terminating,
        message: Some(closed.message.clone()),
        pods: status.pods.clone(),
        next_channel: status.next_channel,
        closed: Some(closed),
        failed_timestamp: status.failed_timestamp.clone(),
    };
    Some(Plan {
        delete: true,
        ..reporting(&status, report, SOON)
    })
}

/// What to do about a session that goes on.
pub(crate) fn plan(
    session: &MirrordClusterSession,
    wanted: Option<&Wanted>,
    observed: &Observed,
    mode: AgentMode,
    now: Timestamp,
) -> Plan {
    let status = session.status.clone().unwrap_or_default();
    if status.phase == Some(SessionPhase::Failed) {
        // It stays as it is until it is over: whoever looks at it finds the reason.
        return Plan {
            end: alive(&observed.pods),
            ..waiting(SOON)
        };
    }
    match wanted {
        Some(wanted) => going_on(&status, wanted, observed, mode, age(session, now), now),
        None => {
            let why = observed.missing.clone().unwrap_or_default();
            reporting(&status, failed(&status, why, now), SOON)
        }
    }
}

/// A session was deleted: its agents end, and then its object.
pub(crate) fn ending(
    session: &MirrordClusterSession,
    left: &[ObservedAgent],
    now: Timestamp,
) -> Plan {
    let alive: Vec<_> = left.iter().filter(|agent| !agent.is_over()).collect();
    let deleted = session.metadata.deletion_timestamp.as_ref();
    let has_waited = since(deleted.map(|time| time.0), now) > ENDING;
    Plan {
        release: alive.is_empty() || has_waited,
        end: alive.into_iter().cloned().collect(),
        ..waiting(SOON)
    }
}

fn waiting(look_again: Duration) -> Plan {
    Plan {
        start: Vec::new(),
        regrant: Vec::new(),
        end: Vec::new(),
        report: None,
        delete: false,
        release: false,
        look_again,
    }
}

fn alive(pods: &[ObservedPod]) -> Vec<ObservedAgent> {
    let agents = pods.iter().flat_map(|pod| &pod.agents);
    agents.filter(|agent| !agent.is_over()).cloned().collect()
}

fn age(session: &MirrordClusterSession, now: Timestamp) -> Duration {
    let created = session.metadata.creation_timestamp.as_ref();
    since(created.map(|time| time.0), now)
}

/// Why a session is over, if it is.
fn over(
    session: &MirrordClusterSession,
    status: &MirrordClusterSessionStatus,
    settings: &SessionSettings,
    now: Timestamp,
) -> Option<SessionClosed> {
    let closed = |reason: &str, message: String| {
        Some(SessionClosed {
            reason: reason.to_owned(),
            message,
        })
    };
    if let Some(closed) = &status.closed {
        return Some(closed.clone());
    }
    if status.phase == Some(SessionPhase::Failed) {
        let message = status.message.clone().unwrap_or_default();
        let failed = status.failed_timestamp.as_deref();
        let failed = failed.and_then(|failed| failed.parse::<Timestamp>().ok());
        // One that does not say when it failed is of an older operator.
        let is_old = failed.is_none_or(|failed| since(Some(failed), now) > KEPT);
        return is_old.then(|| closed("Failed", message)).flatten();
    }
    let window = Duration::from_secs(session.spec.resume_window_secs);
    let seen = status.last_seen_timestamp.as_deref();
    match seen.and_then(|seen| seen.parse::<Timestamp>().ok()) {
        Some(seen) if since(Some(seen), now) > window.max(settings.time_to_live) => closed(
            "ClientGone",
            format!("the client was away for longer than {} s", window.as_secs()),
        ),
        // The client's request waits for the session, so it comes within moments, or never.
        None if age(session, now) > STARTUP + settings.time_to_live => {
            closed("NeverConnected", "no client has come".to_owned())
        }
        _ => None,
    }
}

fn going_on(
    status: &MirrordClusterSessionStatus,
    wanted: &Wanted,
    observed: &Observed,
    mode: AgentMode,
    age: Duration,
    now: Timestamp,
) -> Plan {
    let mut next_channel = status.next_channel.max(wanted.numbered_after);
    let mut start = Vec::new();
    let mut regrant = Vec::new();
    let mut pods = Vec::new();
    for pod in &observed.pods {
        let known = status
            .pods
            .iter()
            .find(|known| known.uid == pod.replica.uid);
        let channel = known.map_or(next_channel + 1, |known| known.channel);
        next_channel = next_channel.max(channel);
        let obstacle = obstacle(pod, mode, wanted.numbered_after);
        if obstacle.is_none() && current(pod).is_none() {
            start.push(next_agent(pod, known, wanted));
        }
        regrant.extend(to_regrant(pod, known));
        pods.push(Covered {
            is_hopeless: obstacle.as_ref().is_some_and(|obstacle| obstacle.is_final),
            pod: covered(pod, known, channel, obstacle),
        });
    }
    let (phase, message) = phase(status, observed, &pods, age);
    let has_failed = phase == SessionPhase::Failed;
    let report = Report {
        phase,
        message,
        pods: pods.into_iter().map(|covered| covered.pod).collect(),
        next_channel,
        closed: None,
        failed_timestamp: has_failed.then(|| now.to_string()),
    };
    let look_again = match phase {
        SessionPhase::Ready if regrant.is_empty() => LATER,
        _ => SOON,
    };
    Plan {
        start: if has_failed { Vec::new() } else { start },
        regrant,
        end: if has_failed {
            alive(&observed.pods)
        } else {
            Vec::new()
        },
        ..reporting(status, report, look_again)
    }
}

/// An agent that runs, and was told before policies changed. What it was told is in the session's object.
fn to_regrant(pod: &ObservedPod, known: Option<&SessionPod>) -> Option<Regrant> {
    if pod.told.is_some() {
        return None;
    }
    let agent = current(pod).filter(|agent| agent.ordered.state == OrderedState::Running)?;
    let knows = known.and_then(|known| known.policies.clone());
    (knows.as_deref() != Some(&pod.policies)).then(|| Regrant {
        replica: pod.replica.clone(),
        agent: agent.clone(),
        knows,
    })
}

/// A pod as it is reported, and whether anything will ever come of it.
struct Covered {
    pod: SessionPod,
    is_hopeless: bool,
}

/// The agent that serves the container as it is now, if one does or may.
fn current(pod: &ObservedPod) -> Option<&ObservedAgent> {
    beside_the_container(pod)
        .filter(|agent| !agent.is_over())
        .last()
}

/// A container that was restarted is another one, and has a count of its own.
fn beside_the_container(pod: &ObservedPod) -> impl Iterator<Item = &ObservedAgent> {
    let agents = pod.agents.iter();
    agents.filter(|agent| agent.ordered.container_id == pod.replica.container_id)
}

/// What keeps a pod from having an agent.
fn obstacle(pod: &ObservedPod, mode: AgentMode, numbered_after: u32) -> Option<Refused> {
    let finally = |why: String| {
        Some(Refused {
            why,
            is_final: true,
        })
    };
    if let Some(agent) = current(pod) {
        return match &agent.ordered.state {
            OrderedState::Trouble(why) => finally(why.clone()),
            _ => None,
        };
    }
    // Those of a session that had the same name are not this one's.
    let before = usize::try_from(numbered_after).unwrap_or_default();
    let is_own = |agent: &&ObservedAgent| agent.ordered.number() > before;
    let ended = || beside_the_container(pod).filter(|agent| agent.is_over() && is_own(agent));
    let failures = ended().filter(|agent| agent.ordered.has_failed);
    if failures.count() >= ATTEMPTS || ended().count() >= MOST_ENDED {
        let last = ended().last().map(|agent| &agent.ordered.state);
        return finally(match last {
            Some(OrderedState::Ended(why)) => why.clone(),
            _ => "its agents end again and again".to_owned(),
        });
    }
    if mode == AgentMode::Ephemeral && pod.replica.finished_agents >= MOST_IN_A_POD {
        return finally(format!(
            "{MOST_IN_A_POD} agents have been in it, whose entries stay, and no more are started; a new pod has none, and \
             agents on nodes (`operator.agent.mode: node`) leave none"
        ));
    }
    pod.refused.clone()
}

/// Its name is one that no agent has had, beside this pod or another, also where those before it are forgotten: clients know
/// by it that it is another one.
fn next_agent(pod: &ObservedPod, known: Option<&SessionPod>, wanted: &Wanted) -> Start {
    let reported = known
        .and_then(|known| known.agent.as_deref()?.rsplit('-').next()?.parse().ok())
        .unwrap_or(0);
    let observed = pod.agents.last().map_or(0, |agent| agent.ordered.number());
    let before = usize::try_from(wanted.numbered_after).unwrap_or_default();
    let digest = Sha256::digest(&pod.replica.uid);
    let name = format!(
        "{}{:02x}{:02x}{:02x}{:02x}-{}",
        wanted.agent_prefix(),
        digest[0],
        digest[1],
        digest[2],
        digest[3],
        observed.max(reported).max(before) + 1
    );
    Start {
        replica: pod.replica.clone(),
        port: port_of(&name),
        name,
    }
}

/// A port that another agent in the same pod is unlikely to have. One that has it ends, and the next gets another.
fn port_of(name: &str) -> u16 {
    let digest = Sha256::digest(name);
    let number = u16::from_be_bytes([digest[0], digest[1]]);
    PORTS.start + number % (PORTS.end - PORTS.start)
}

fn covered(
    pod: &ObservedPod,
    known: Option<&SessionPod>,
    channel: u32,
    obstacle: Option<Refused>,
) -> SessionPod {
    let agent = current(pod);
    let running = agent.filter(|agent| agent.ordered.state == OrderedState::Running);
    let address = running.and_then(ObservedAgent::address);
    SessionPod {
        name: pod.replica.pod.clone(),
        uid: pod.replica.uid.clone(),
        container: pod.replica.container.clone(),
        channel,
        ready: address.is_some(),
        address,
        agent: match agent {
            Some(agent) => Some(agent.ordered.name.clone()),
            // The last one, so that the next has another name.
            None => known.and_then(|known| known.agent.clone()),
        },
        certificate: running.and_then(|agent| agent.certificate.clone()),
        policies: match &pod.told {
            Some(told) => Some(told.policies.clone()),
            None => known.and_then(|known| known.policies.clone()),
        },
        grant: match &pod.told {
            Some(told) => Some(told.grant.clone()),
            None => known.and_then(|known| known.grant.clone()),
        },
        error: obstacle.map(|obstacle| obstacle.why),
    }
}

fn phase(
    status: &MirrordClusterSessionStatus,
    observed: &Observed,
    covered: &[Covered],
    age: Duration,
) -> (SessionPhase, Option<String>) {
    let pods: Vec<&SessionPod> = covered.iter().map(|covered| &covered.pod).collect();
    if pods.iter().any(|pod| pod.ready) {
        let waiting = pods.iter().filter(|pod| !pod.ready).count();
        let message =
            (waiting > 0).then(|| format!("{waiting} of {} pods have no agent yet", pods.len()));
        return (SessionPhase::Ready, message);
    }
    let why = why_not(observed, &pods);
    if status.phase == Some(SessionPhase::Ready) {
        // It has been well: pods come back, and the client waits.
        return (
            SessionPhase::Ready,
            Some(format!("no pod has an agent now: {why}")),
        );
    }
    let is_hopeless = !pods.is_empty() && covered.iter().all(|covered| covered.is_hopeless);
    if is_hopeless || observed.missing.is_some() || age > STARTUP {
        return (SessionPhase::Failed, Some(why));
    }
    (SessionPhase::Pending, Some(why))
}

fn why_not(observed: &Observed, pods: &[&SessionPod]) -> String {
    if let Some(missing) = &observed.missing {
        return missing.clone();
    }
    let errors = pods.iter().filter_map(|pod| {
        pod.error
            .as_ref()
            .map(|error| format!("pod {}: {error}", pod.name))
    });
    let reasons: Vec<String> = errors.chain(observed.unfit.iter().cloned()).collect();
    match (reasons.is_empty(), pods.is_empty()) {
        (false, _) => reasons.join("; "),
        (true, true) => "the target has no pods; is it scaled to zero?".to_owned(),
        (true, false) => "agents are being started".to_owned(),
    }
}

fn failed(status: &MirrordClusterSessionStatus, why: String, now: Timestamp) -> Report {
    Report {
        phase: SessionPhase::Failed,
        message: Some(why),
        pods: Vec::new(),
        next_channel: status.next_channel,
        closed: None,
        failed_timestamp: Some(now.to_string()),
    }
}

/// A plan that only reports, and that only if there is something new.
fn reporting(status: &MirrordClusterSessionStatus, report: Report, look_again: Duration) -> Plan {
    Plan {
        report: (Report::of(status).as_ref() != Some(&report)).then_some(report),
        ..waiting(look_again)
    }
}

fn since(then: Option<Timestamp>, now: Timestamp) -> Duration {
    then.and_then(|then| Duration::try_from(then.duration_until(now)).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
