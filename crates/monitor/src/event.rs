//! Events of a session.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A string that is usually one of a few constants, and then takes no allocation.
pub type Keyword = Cow<'static, str>;

/// An event with its number. The numbers of a session start at 1 and have no gaps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub seq: u64,
    /// Milliseconds since 1970.
    pub time: u64,
    #[serde(flatten)]
    pub event: Event,
}

/// Only the following are events: the first operation of a kind on a file, failures, DNS queries that were not answered from
/// the cache, connections and requests. Everything else is only counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
#[non_exhaustive]
pub enum Event {
    /// The first operation of this kind on a path, or the first one that failed.
    FileOp {
        path: String,
        operation: Keyword,
        side: Side,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        errno: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        latency_us: Option<u64>,
        /// Bytes that were read with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
    },
    DnsQuery {
        host: String,
        /// `A`, `AAAA`, …
        kind: Keyword,
        side: Side,
        /// The DNS response code: `NOERROR`, `NXDOMAIN`, `SERVFAIL`, …
        code: Keyword,
        addresses: Vec<String>,
        latency_us: u64,
    },
    /// A connection through the target, or a failed attempt.
    OutgoingConnection {
        connection: u64,
        /// The path for a Unix socket.
        address: String,
        /// Zero for a Unix socket.
        port: u16,
        transport: Transport,
        /// The DNS names that were resolved to the address.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        dns_names: Vec<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        errno: Option<String>,
        latency_us: u64,
    },
    OutgoingClosed {
        connection: u64,
        address: String,
        port: u16,
        sent: u64,
        received: u64,
        duration_us: u64,
    },
    PortSubscription {
        port: u16,
        local_port: u16,
        transport: Transport,
        mode: Mode,
        /// The requests that are subscribed to, if not all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        filter: Option<String>,
        /// How far the redirection of traffic was verified: `unverified`, `loopback` or `external`.
        redirect_check: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
    },
    IncomingConnection {
        connection: u64,
        port: u16,
        transport: Transport,
        client: String,
        handling: Handling,
        /// Whether the program accepted it.
        accepted: bool,
        latency_us: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
    },
    IncomingClosed {
        connection: u64,
        port: u16,
        received: u64,
        sent: u64,
        duration_us: u64,
    },
    IncomingRequest {
        connection: u64,
        port: u16,
        method: String,
        path: String,
        protocol: Keyword,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        /// `None`: the program sent no response.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
        handling: Handling,
        /// Why the program did not get it, if it did not. Then only the request itself is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        client: String,
        /// Until the response began.
        latency_us: u64,
        received: u64,
        sent: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
    },
    /// Requests that matched, and to which the program did not respond.
    RequestsPassedOn {
        port: u16,
        count: u64,
        /// The number of these without any response.
        lost: u64,
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
    },
    /// The target's environment, as the program has it.
    EnvVar {
        vars: Vec<(String, String)>,
    },
    /// A process of the session has started.
    LayerConnected {
        pid: u32,
        process_name: String,
    },
    LayerDisconnected {
        pid: u32,
    },
    /// A message that the user sees, too.
    Notice {
        level: Level,
        text: String,
    },
    /// An event that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Event {
    /// Removes the values of variables, which may be secrets.
    pub fn hide_values(&mut self) {
        if let Event::EnvVar { vars } = self {
            for (_, value) in vars {
                value.clear();
            }
        }
    }
}

/// Where an operation was performed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    #[default]
    Local,
    Remote,
    /// Nowhere: the settings hide the path or forbid the operation.
    Refused,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    #[default]
    Tcp,
    Udp,
    Unix,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    #[default]
    Steal,
    Mirror,
}

/// How a connection or a request was handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handling {
    /// The program answered it.
    Stolen,
    /// The program got a copy.
    Mirrored,
    /// The application at the target answered it.
    PassedOn,
    /// It got no response: too much of it had been sent to send it again.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Info,
    Warning,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(event: Event, expected: &str) {
        let entry = Entry {
            seq: 7,
            time: 1000,
            event,
        };
        let text = serde_json::to_string(&entry).unwrap();
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), entry);
    }

    #[test]
    fn events_are_flat_objects_with_a_type() {
        check(
            Event::FileOp {
                path: "/etc/shop".to_owned(),
                operation: "open".into(),
                side: Side::Remote,
                errno: Some("ENOENT".to_owned()),
                latency_us: Some(120),
                bytes: None,
            },
            r#"{"seq":7,"time":1000,"type":"FileOp","path":"/etc/shop","operation":"open","side":"remote","errno":"ENOENT","latency_us":120}"#,
        );
        check(
            Event::EnvVar {
                vars: vec![("A".to_owned(), "b".to_owned())],
            },
            r#"{"seq":7,"time":1000,"type":"EnvVar","vars":[["A","b"]]}"#,
        );
        check(
            Event::RequestsPassedOn {
                port: 80,
                count: 2,
                lost: 0,
                reason: "too slow".to_owned(),
                cluster: Some("eu".to_owned()),
            },
            r#"{"seq":7,"time":1000,"type":"RequestsPassedOn","port":80,"count":2,"lost":0,"reason":"too slow","cluster":"eu"}"#,
        );
    }

    #[test]
    fn events_of_a_later_version_are_accepted() {
        let text = r#"{"seq":1,"time":2,"type":"SomethingNew","more":[1]}"#;
        let entry: Entry = serde_json::from_str(text).unwrap();
        assert_eq!(entry.event, Event::Unknown);
    }

    #[test]
    fn values_of_variables_can_be_hidden() {
        let mut event = Event::EnvVar {
            vars: vec![("PASSWORD".to_owned(), "hunter2".to_owned())],
        };
        event.hide_values();
        assert!(!format!("{event:?}").contains("hunter2"));
    }
}
