//! Events of incoming traffic, with their messages to the user.

use std::fmt;

use protocol::rpc;

use crate::agent::AgentId;

/// An event of a port of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncomingEvent {
    /// The port at the target.
    pub port: u16,
    pub is_udp: bool,
    /// The agent that the event is about; `None` for all agents.
    pub agent: Option<AgentId>,
    /// Whether traffic of the port is expected: an application at the target listens on it, the settings contain it, or
    /// there was traffic before.
    pub is_expected: bool,
    pub kind: IncomingEventKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum IncomingEventKind {
    /// The program receives the traffic of the port.
    Subscribed(SubscriptionInfo),
    /// The program's `listen` waits for agents that are being started.
    Waiting,
    /// The first traffic from outside of the target was received.
    TrafficSeen,
    /// No traffic was received for so many seconds.
    Silent { seconds: u64, check: RedirectCheck },
    /// Requests were received for so many seconds, and none of them matched the filter.
    NothingMatched { seconds: u64, filter: String },
    /// Requests that matched went to the application, or were lost.
    Missed {
        reason: MissedReason,
        count: u64,
        lost: u64,
    },
    /// The program read mirrored connections too slowly, so these ended.
    MirrorsDropped { count: u64 },
    /// Another session has taken the traffic over.
    TakenOver { holder: String },
    /// The program cannot listen.
    Refused { reason: String },
    /// The program listens on this machine only and receives nothing from the target.
    LocalOnly { reason: String, will_retry: bool },
}

/// A subscription to the traffic of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionInfo {
    /// The program's port.
    pub local_port: u16,
    pub steals: bool,
    /// Which requests, if not all traffic.
    pub filter: Option<String>,
    pub check: RedirectCheck,
    /// The mesh whose sidecar is between clients and the target.
    pub mesh: Option<String>,
    /// The number of connections that were reset.
    pub flushed: u32,
    /// Whether this replaces a subscription at an agent that was lost.
    pub is_renewed: bool,
    /// The number of agents with the subscription.
    pub agents: usize,
    /// The clusters of these agents, in a session over several: each once, in order.
    pub clusters: Vec<String>,
    /// Other sessions whose claims come first.
    pub earlier: Vec<EarlierSession>,
    /// Whether an application at the target listens on the port, also if that is unknown.
    pub is_served: bool,
}

/// A session with an earlier claim on the port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierSession {
    pub holder: String,
    /// Whether it leaves nothing of what this session subscribes to.
    pub takes_all: bool,
}

/// How far the redirection of traffic was verified. Larger values are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RedirectCheck {
    Unverified,
    Loopback,
    External,
}

/// Why a request did not get its response from the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MissedReason {
    Unreachable,
    NoResponse,
    TooSlow,
}

impl IncomingEvent {
    /// Whether the event needs the attention of the user.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        !matches!(
            self.kind,
            IncomingEventKind::Subscribed(_)
                | IncomingEventKind::Waiting
                | IncomingEventKind::TrafficSeen
        )
    }

    pub(super) fn port_name(&self) -> String {
        let port = if self.is_udp { "UDP port" } else { "port" };
        format!("{port} {}", self.port)
    }
}

impl fmt::Display for IncomingEvent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of ", self.port_name())?;
        match (&self.agent, &self.kind) {
            (Some(agent), _) => formatter.write_str(&agent.location())?,
            (None, IncomingEventKind::Subscribed(info)) => info.write_location(formatter)?,
            (None, _) => formatter.write_str("the target")?,
        }
        formatter.write_str(": ")?;
        self.kind.fmt(formatter)
    }
}

impl fmt::Display for IncomingEventKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Subscribed(info) => info.fmt(formatter),
            Self::Waiting => formatter
                .write_str("the program's call waits until the agents of all pods are connected"),
            Self::TrafficSeen => formatter.write_str("received the first traffic from outside"),
            Self::Silent { seconds, check } => write_silence(formatter, *seconds, *check),
            Self::NothingMatched { seconds, filter } => write!(
                formatter,
                "requests arrived, and in {seconds} s none {filter}: compare the filter with a request"
            ),
            Self::Missed {
                reason,
                count,
                lost,
            } => {
                let requests = counted(*count, "request");
                write!(formatter, "{requests} {reason}")?;
                match (*lost, *count) {
                    (0, _) => formatter.write_str("; the application at the target got them instead"),
                    (lost, count) if lost == count => formatter
                        .write_str("; the application at the target could not take over, and the clients got no response"),
                    (lost, _) => write!(
                        formatter,
                        "; the application at the target got them instead, except for {lost}, whose clients got no response"
                    ),
                }
            }
            Self::MirrorsDropped { count } => write!(
                formatter,
                "{} ended early, because the program reads too slowly; the originals were not disturbed",
                counted(*count, "mirrored connection")
            ),
            Self::TakenOver { holder } => write!(
                formatter,
                "{holder} has taken the traffic; the program gets none from now on (see on_concurrent_steal)"
            ),
            Self::Refused { reason } => write!(formatter, "the program cannot listen: {reason}"),
            Self::LocalOnly { reason, will_retry } => {
                write!(
                    formatter,
                    "the program gets nothing of it, and listens on this machine alone: {reason}"
                )?;
                if *will_retry {
                    formatter.write_str("; it will be retried")?;
                }
                Ok(())
            }
        }
    }
}

impl SubscriptionInfo {
    /// Writes where the agents are.
    fn write_location(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pods = || counted(self.agents as u64, "pod");
        match self.clusters.as_slice() {
            [] if self.agents == 1 => formatter.write_str("the target"),
            [] => formatter.write_str(&pods()),
            [cluster] => write!(formatter, "{} in cluster {cluster}", pods()),
            clusters => write!(
                formatter,
                "{} in the clusters {}",
                pods(),
                clusters.join(", ")
            ),
        }
    }

    /// The holders of earlier sessions, as a list in words.
    fn earlier_holders(&self, takes_all: bool) -> String {
        let earlier = self.earlier.iter();
        let earlier = earlier.filter(|earlier| earlier.takes_all == takes_all);
        let holders: Vec<&str> = earlier.map(|earlier| earlier.holder.as_str()).collect();
        holders.join(" or ")
    }
}

impl fmt::Display for SubscriptionInfo {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let again = if self.is_renewed { "again, " } else { "" };
        let local = self.local_port;
        let (all, some) = (self.earlier_holders(true), self.earlier_holders(false));
        if !all.is_empty() {
            write!(
                formatter,
                "the program gets nothing while {all} has a claim on all of it; after that, "
            )?;
        }
        let everything = match some.is_empty() {
            true => "everything".to_owned(),
            false => format!("everything that {some} does not take"),
        };
        match (&self.filter, self.steals) {
            (Some(filter), true) => write!(
                formatter,
                "{again}requests that {filter} go to the program (port {local}), all others to the application there"
            )?,
            (Some(filter), false) => write!(
                formatter,
                "{again}the program (port {local}) gets a copy of requests that {filter}"
            )?,
            (None, true) => write!(
                formatter,
                "{again}{everything} goes to the program (port {local}) instead of the application there"
            )?,
            (None, false) => write!(
                formatter,
                "{again}the program (port {local}) gets a copy of everything"
            )?,
        }
        match self.check {
            RedirectCheck::Unverified => formatter.write_str("; not checked")?,
            RedirectCheck::Loopback => formatter.write_str("; checked on loopback only")?,
            RedirectCheck::External => formatter.write_str("; checked from outside")?,
        }
        if let Some(mesh) = &self.mesh {
            write!(
                formatter,
                "; {mesh} is in use, so the program sees its proxy as the peer"
            )?;
        }
        if self.flushed > 0 {
            let flushed = counted(self.flushed.into(), "open connection");
            write!(formatter, "; {flushed} reset")?;
        }
        if !self.is_served {
            formatter.write_str("; the target itself does not serve this port")?;
        }
        Ok(())
    }
}

impl From<rpc::MissedReason> for MissedReason {
    fn from(reason: rpc::MissedReason) -> Self {
        match reason {
            rpc::MissedReason::Unreachable => Self::Unreachable,
            rpc::MissedReason::NoResponse => Self::NoResponse,
            rpc::MissedReason::TooSlow => Self::TooSlow,
        }
    }
}

impl fmt::Display for MissedReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Unreachable => "did not reach the program, which does not accept connections",
            Self::NoResponse => "got no response from the program",
            Self::TooSlow => "got no response from the program in time (see response_timeout)",
        })
    }
}

fn write_silence(
    formatter: &mut fmt::Formatter<'_>,
    seconds: u64,
    check: RedirectCheck,
) -> fmt::Result {
    write!(formatter, "no traffic for {seconds} s: ")?;
    formatter.write_str(match check {
        RedirectCheck::External => {
            "the path from outside works, so clients may not have sent anything since; connections that were open before stay \
             with the application (see flush_connections)"
        }
        RedirectCheck::Unverified | RedirectCheck::Loopback => {
            "do clients send to this port of the target? Connections that were open before stay with the application \
             (see flush_connections)"
        }
    })
}

fn counted(count: u64, what: &str) -> String {
    if count == 1 {
        format!("1 {what}")
    } else {
        format!("{count} {what}s")
    }
}

/// Describes a filter in words that follow "requests that".
pub(crate) fn describe(filter: &config::HttpFilter) -> String {
    use config::HttpFilter::{AllOf, AnyOf, Body, Header, Method, Path};
    let list = |filters: &[config::HttpFilter], word: &str| {
        let parts: Vec<String> = filters.iter().map(describe).collect();
        parts.join(word)
    };
    match filter {
        Header(pattern) => format!("have a header like `{pattern}`"),
        Path(pattern) => format!("have a path like `{pattern}`"),
        Method(method) => format!("are {}", method.to_ascii_uppercase()),
        Body { query, matches } => format!("have `{query}` like `{matches}` in the body"),
        AllOf(filters) => list(filters, " and "),
        AnyOf(filters) => list(filters, " or "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: IncomingEventKind, expected: &str) {
        let event = IncomingEvent {
            port: 8080,
            is_udp: false,
            agent: None,
            is_expected: true,
            kind,
        };
        assert_eq!(event.to_string(), expected);
    }

    fn info(steals: bool, filter: Option<&str>) -> SubscriptionInfo {
        SubscriptionInfo {
            local_port: 8081,
            steals,
            filter: filter.map(str::to_owned),
            check: RedirectCheck::Loopback,
            mesh: None,
            flushed: 0,
            is_renewed: false,
            agents: 1,
            clusters: Vec::new(),
            earlier: Vec::new(),
            is_served: true,
        }
    }

    #[test]
    fn events_are_described_in_words() {
        check(
            IncomingEventKind::Subscribed(info(true, Some("have a header like `a: b`"))),
            "port 8080 of the target: requests that have a header like `a: b` go to the program (port 8081), all \
             others to the application there; checked on loopback only",
        );
        check(
            IncomingEventKind::Subscribed(SubscriptionInfo {
                mesh: Some("Istio".to_owned()),
                flushed: 2,
                is_renewed: true,
                ..info(false, None)
            }),
            "port 8080 of the target: again, the program (port 8081) gets a copy of everything; checked on loopback only; \
             Istio is in use, so the program sees its proxy as the peer; 2 open connections reset",
        );
        let earlier = |holder: &str, takes_all| EarlierSession {
            holder: holder.to_owned(),
            takes_all,
        };
        check(
            IncomingEventKind::Subscribed(SubscriptionInfo {
                earlier: vec![earlier("ada", false), earlier("grace", false)],
                ..info(true, None)
            }),
            "port 8080 of the target: everything that ada or grace does not take goes to the program (port 8081) instead of \
             the application there; checked on loopback only",
        );
        check(
            IncomingEventKind::Subscribed(SubscriptionInfo {
                earlier: vec![earlier("ada", true)],
                ..info(true, Some("are GET"))
            }),
            "port 8080 of the target: the program gets nothing while ada has a claim on all of it; after that, requests \
             that are GET go to the program (port 8081), all others to the application there; checked on loopback \
             only",
        );
        check(
            IncomingEventKind::Subscribed(SubscriptionInfo {
                is_served: false,
                ..info(false, None)
            }),
            "port 8080 of the target: the program (port 8081) gets a copy of everything; checked on loopback only; the \
             target itself does not serve this port",
        );
        check(
            IncomingEventKind::Missed {
                reason: MissedReason::NoResponse,
                count: 3,
                lost: 1,
            },
            "port 8080 of the target: 3 requests got no response from the program; the application at the target got them \
             instead, except for 1, whose clients got no response",
        );
    }

    #[test]
    fn a_port_is_described_with_the_pods_and_clusters_of_its_agents() {
        let cases: &[(usize, &[&str], &str)] = &[
            (1, &[], "port 8080 of the target: "),
            (3, &[], "port 8080 of 3 pods: "),
            (1, &["east"], "port 8080 of 1 pod in cluster east: "),
            (
                3,
                &["east", "west"],
                "port 8080 of 3 pods in the clusters east, west: ",
            ),
        ];
        for (agents, clusters, expected) in cases {
            let event = IncomingEvent {
                port: 8080,
                is_udp: false,
                agent: None,
                is_expected: true,
                kind: IncomingEventKind::Subscribed(SubscriptionInfo {
                    agents: *agents,
                    clusters: clusters.iter().map(|name| (*name).to_owned()).collect(),
                    ..info(true, None)
                }),
            };
            let text = event.to_string();
            assert!(text.starts_with(expected), "{text}");
        }
    }

    #[test]
    fn filters_are_described() {
        let filter = config::HttpFilter::AllOf(vec![
            config::HttpFilter::Path("^/a".to_owned()),
            config::HttpFilter::Method("post".to_owned()),
        ]);
        assert_eq!(describe(&filter), "have a path like `^/a` and are POST");
    }
}
