//! What a user should know of the target's traffic.

use std::fmt;

use protocol::rpc;

use crate::agent::AgentId;

/// Something about a port of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncomingEvent {
    /// The port at the target.
    pub port: u16,
    pub is_udp: bool,
    /// The agent that it is about; none for all of them.
    pub agent: Option<AgentId>,
    pub news: News,
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum News {
    /// The port's traffic comes to the program.
    Subscribed(Subscribed),
    /// The program waits for agents that are being started.
    Waiting,
    /// The first traffic from outside of the target has come.
    TrafficSeen,
    /// For so many seconds, nothing came.
    Silent { seconds: u64, checked: Checked },
    /// For so many seconds, requests came and none of them was wanted.
    NothingMatched { seconds: u64, filter: String },
    /// Requests that were wanted went to the application, or were lost.
    Missed {
        reason: MissedReason,
        count: u64,
        lost: u64,
    },
    /// The program was too far behind with copies, so these ended.
    CopiesDropped { count: u64 },
    /// Somebody else has taken the traffic.
    LostTo { holder: String },
    /// The program could not listen.
    Refused { reason: String },
    /// The program listens, and gets nothing of the target.
    Local { reason: String, tries_again: bool },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribed {
    /// The program's port.
    pub local: u16,
    pub steals: bool,
    /// Which requests, if not all traffic.
    pub filter: Option<String>,
    pub checked: Checked,
    /// The mesh whose sidecar clients seem to be.
    pub mesh: Option<String>,
    /// Connections that were reset.
    pub flushed: u32,
    /// After an agent was replaced.
    pub again: bool,
    /// How many agents have it for us.
    pub agents: usize,
    /// The clusters of these agents, in a session over several: each once, in order.
    pub clusters: Vec<String>,
    /// Other sessions that are served first.
    pub earlier: Vec<Earlier>,
}

/// A session that was there before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Earlier {
    pub holder: String,
    /// It leaves nothing of what is wanted.
    pub takes_all: bool,
}

/// How far it is known that traffic comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Checked {
    Nothing,
    Loopback,
    Outside,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MissedReason {
    Unreachable,
    NoAnswer,
    TooSlow,
}

impl IncomingEvent {
    /// Whether the user should do or know something, and not only be reassured.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        !matches!(
            self.news,
            News::Subscribed(_) | News::Waiting | News::TrafficSeen
        )
    }
}

impl fmt::Display for IncomingEvent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_udp { "UDP port" } else { "port" };
        write!(formatter, "{kind} {} of ", self.port)?;
        match (&self.agent, &self.news) {
            (Some(agent), _) => formatter.write_str(&agent.place())?,
            (None, News::Subscribed(subscribed)) => subscribed.write_place(formatter)?,
            (None, _) => formatter.write_str("the target")?,
        }
        formatter.write_str(": ")?;
        self.news.fmt(formatter)
    }
}

impl fmt::Display for News {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Subscribed(subscribed) => subscribed.fmt(formatter),
            Self::Waiting => formatter
                .write_str("the program's call waits until the agents of all pods are there"),
            Self::TrafficSeen => formatter.write_str("the first traffic from outside has come"),
            Self::Silent { seconds, checked } => write_silence(formatter, *seconds, *checked),
            Self::NothingMatched { seconds, filter } => write!(
                formatter,
                "requests have come, and in {seconds} s none {filter}: compare the filter with a request"
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
                        .write_str("; the application at the target could not take over, and the clients got no answer"),
                    (lost, _) => write!(
                        formatter,
                        "; the application at the target got them instead, except for {lost}, whose clients got no answer"
                    ),
                }
            }
            Self::CopiesDropped { count } => write!(
                formatter,
                "{} ended early, because the program reads too slowly; the originals were not disturbed",
                counted(*count, "copied connection")
            ),
            Self::LostTo { holder } => write!(
                formatter,
                "{holder} has taken the traffic; the program gets none from now on (see on_concurrent_steal)"
            ),
            Self::Refused { reason } => write!(formatter, "the program cannot listen: {reason}"),
            Self::Local {
                reason,
                tries_again,
            } => {
                write!(
                    formatter,
                    "the program gets nothing of it, and listens on this machine alone: {reason}"
                )?;
                if *tries_again {
                    formatter.write_str("; it is tried again")?;
                }
                Ok(())
            }
        }
    }
}

impl Subscribed {
    /// Where all agents are together.
    fn write_place(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
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

    /// Who is served first, in words.
    fn names(&self, takes_all: bool) -> String {
        let earlier = self.earlier.iter();
        let earlier = earlier.filter(|earlier| earlier.takes_all == takes_all);
        let names: Vec<&str> = earlier.map(|earlier| earlier.holder.as_str()).collect();
        names.join(" or ")
    }
}

impl fmt::Display for Subscribed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let again = if self.again { "again, " } else { "" };
        let local = self.local;
        let (all, some) = (self.names(true), self.names(false));
        if !all.is_empty() {
            write!(
                formatter,
                "nothing comes to the program as long as {all} has all of it, and after that "
            )?;
        }
        let everything = match some.is_empty() {
            true => "everything".to_owned(),
            false => format!("everything that {some} does not take"),
        };
        match (&self.filter, self.steals) {
            (Some(filter), true) => write!(
                formatter,
                "{again}requests that {filter} are answered by the program (port {local}), all others by the application there"
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
        match self.checked {
            Checked::Nothing => formatter.write_str("; not checked")?,
            Checked::Loopback => formatter.write_str("; checked on loopback only")?,
            Checked::Outside => formatter.write_str("; checked from outside")?,
        }
        if let Some(mesh) = &self.mesh {
            write!(
                formatter,
                "; {mesh} is there, so that the peers that the program sees are its proxy"
            )?;
        }
        if self.flushed > 0 {
            let flushed = counted(self.flushed.into(), "open connection");
            write!(formatter, "; {flushed} reset")?;
        }
        Ok(())
    }
}

impl From<rpc::MissedReason> for MissedReason {
    fn from(reason: rpc::MissedReason) -> Self {
        match reason {
            rpc::MissedReason::Unreachable => Self::Unreachable,
            rpc::MissedReason::NoAnswer => Self::NoAnswer,
            rpc::MissedReason::TooSlow => Self::TooSlow,
        }
    }
}

impl fmt::Display for MissedReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Unreachable => "did not reach the program, which does not take connections",
            Self::NoAnswer => "got no answer from the program",
            Self::TooSlow => "got no answer from the program in time (see answer_within)",
        })
    }
}

fn write_silence(
    formatter: &mut fmt::Formatter<'_>,
    seconds: u64,
    checked: Checked,
) -> fmt::Result {
    write!(formatter, "nothing has come for {seconds} s: ")?;
    formatter.write_str(match checked {
        Checked::Outside => {
            "the way from outside is free, so nobody may have sent anything since; connections that were open before stay \
             with the application (see flush_connections)"
        }
        Checked::Nothing | Checked::Loopback => {
            "does anybody send to this port of the target? Connections that were open before stay with the application \
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

/// A filter in words that follow "requests that".
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
    fn check(news: News, expected: &str) {
        let event = IncomingEvent {
            port: 8080,
            is_udp: false,
            agent: None,
            news,
        };
        assert_eq!(event.to_string(), expected);
    }

    fn subscribed(steals: bool, filter: Option<&str>) -> Subscribed {
        Subscribed {
            local: 8081,
            steals,
            filter: filter.map(str::to_owned),
            checked: Checked::Loopback,
            mesh: None,
            flushed: 0,
            again: false,
            agents: 1,
            clusters: Vec::new(),
            earlier: Vec::new(),
        }
    }

    #[test]
    fn news_are_sentences() {
        check(
            News::Subscribed(subscribed(true, Some("have a header like `a: b`"))),
            "port 8080 of the target: requests that have a header like `a: b` are answered by the program (port 8081), all \
             others by the application there; checked on loopback only",
        );
        check(
            News::Subscribed(Subscribed {
                mesh: Some("Istio".to_owned()),
                flushed: 2,
                again: true,
                ..subscribed(false, None)
            }),
            "port 8080 of the target: again, the program (port 8081) gets a copy of everything; checked on loopback only; \
             Istio is there, so that the peers that the program sees are its proxy; 2 open connections reset",
        );
        let earlier = |holder: &str, takes_all| Earlier {
            holder: holder.to_owned(),
            takes_all,
        };
        check(
            News::Subscribed(Subscribed {
                earlier: vec![earlier("ada", false), earlier("grace", false)],
                ..subscribed(true, None)
            }),
            "port 8080 of the target: everything that ada or grace does not take goes to the program (port 8081) instead of \
             the application there; checked on loopback only",
        );
        check(
            News::Subscribed(Subscribed {
                earlier: vec![earlier("ada", true)],
                ..subscribed(true, Some("are GET"))
            }),
            "port 8080 of the target: nothing comes to the program as long as ada has all of it, and after that requests \
             that are GET are answered by the program (port 8081), all others by the application there; checked on loopback \
             only",
        );
        check(
            News::Missed {
                reason: MissedReason::NoAnswer,
                count: 3,
                lost: 1,
            },
            "port 8080 of the target: 3 requests got no answer from the program; the application at the target got them \
             instead, except for 1, whose clients got no answer",
        );
    }

    #[test]
    fn a_port_is_where_its_agents_are() {
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
                news: News::Subscribed(Subscribed {
                    agents: *agents,
                    clusters: clusters.iter().map(|name| (*name).to_owned()).collect(),
                    ..subscribed(true, None)
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
