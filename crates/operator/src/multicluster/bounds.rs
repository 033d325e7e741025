//! Limits of what a member may write into the objects and the memory of its Primary. A member that is broken or compromised must
//! not affect the other members.
//!
//! Responses are limited in their size already, see [`cluster::bounded`].

use api::connect::{AgentEndpoint, AgentEndpoints};
use api::multicluster::ClusterSession;
use api::session::{SessionPod, SessionPort};
use serde::Serialize;

/// The limit of a text for users, with the count of what is left out.
const MAX_TEXT: usize = 1000;
/// The limit of a name, which is that of Kubernetes.
const MAX_NAME: usize = 253;
/// The limit of what all clusters of a session write into its parent. An object has at most 1.5 MB.
const MAX_PARENT_BYTES: usize = 768 * 1024;
/// The limit of what one cluster writes into the parent: about 250 pods.
const MAX_CHILD_BYTES: usize = 96 * 1024;
/// The limit of the endpoints in one cluster. The client gets those of all clusters in one message.
const MAX_ENDPOINT_BYTES: usize = 64 * 1024;

/// A text of a member, for users: printable, and short. Shortening it again changes nothing.
pub(crate) fn text(text: &str) -> String {
    let printable = |character: char| match character {
        '\n' | '\t' => ' ',
        character if character.is_control() => char::REPLACEMENT_CHARACTER,
        character => character,
    };
    let length = text.chars().count();
    if length <= MAX_TEXT {
        return text.chars().map(printable).collect();
    }
    // The count has at most as many digits as the length.
    let reserved = format!("… (and {length} more characters)").chars().count();
    let kept = MAX_TEXT - reserved;
    let start: String = text.chars().take(kept).map(printable).collect();
    format!("{start}… (and {} more characters)", length - kept)
}

/// A name that a member has chosen.
pub(crate) fn name(name: &str) -> String {
    let printable = name.chars().filter(|character| !character.is_control());
    printable.take(MAX_NAME).collect()
}

/// The state of a child, as it may be written into its parent, which has this many clusters.
pub(crate) fn cluster_session(mut child: ClusterSession, clusters: usize) -> ClusterSession {
    let budget = MAX_CHILD_BYTES.min(MAX_PARENT_BYTES / clusters.max(1));
    let mut left = budget;
    let (pods, ports) = (child.pods.len(), child.ports.len());
    child.pods = fitting(child.pods.into_iter().map(pod), &mut left);
    child.ports = fitting(child.ports.iter().map(port), &mut left);
    let omitted = omitted(pods - child.pods.len(), ports - child.ports.len());
    ClusterSession {
        error: child.error.as_deref().map(text),
        last_heartbeat: child.last_heartbeat.as_deref().map(name),
        omitted: omitted.or(child.omitted),
        ..child
    }
}

/// The endpoints of a member, as they may be sent to the client.
pub(crate) fn endpoints(endpoints: AgentEndpoints) -> AgentEndpoints {
    let mut left = MAX_ENDPOINT_BYTES;
    AgentEndpoints {
        endpoints: fitting(endpoints.endpoints.into_iter().map(endpoint), &mut left),
        // A member has no clusters of its own in this session.
        clusters: Vec::new(),
        ended: endpoints.ended.as_deref().map(text),
        ..endpoints
    }
}

/// The first items that fit into the remaining bytes.
fn fitting<Item: Serialize>(items: impl Iterator<Item = Item>, left: &mut usize) -> Vec<Item> {
    let fits = |item: &Item| {
        let bytes = serde_json::to_vec(item).map_or(usize::MAX, |text| text.len());
        let remaining = left.checked_sub(bytes);
        *left = remaining.unwrap_or(*left);
        remaining.is_some()
    };
    items.take_while(fits).collect()
}

fn omitted(pods: usize, ports: usize) -> Option<String> {
    let count = |count: usize, what: &str| match count {
        0 => None,
        1 => Some(format!("and 1 more {what}")),
        count => Some(format!("and {count} more {what}s")),
    };
    let parts = [count(pods, "pod"), count(ports, "port")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn pod(pod: SessionPod) -> SessionPod {
    let short = |value: Option<String>| value.as_deref().map(name);
    SessionPod {
        name: name(&pod.name),
        uid: name(&pod.uid),
        container: name(&pod.container),
        address: short(pod.address),
        agent: short(pod.agent),
        certificate: short(pod.certificate),
        policies: short(pod.policies),
        grant: short(pod.grant),
        error: pod.error.as_deref().map(text),
        ..pod
    }
}

fn port(port: &SessionPort) -> SessionPort {
    SessionPort {
        port: port.port,
        protocol: name(&port.protocol),
        mode: name(&port.mode),
        filter: port.filter.as_deref().map(text),
    }
}

fn endpoint(endpoint: AgentEndpoint) -> AgentEndpoint {
    let short = |value: Option<String>| value.as_deref().map(name);
    AgentEndpoint {
        pod: name(&endpoint.pod),
        container: name(&endpoint.container),
        certificate: short(endpoint.certificate),
        agent: short(endpoint.agent),
        grant: short(endpoint.grant),
        error: endpoint.error.as_deref().map(text),
        ..endpoint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_shortened_between_characters_and_counted() {
        let long = "ö".repeat(5000);
        let cases = [
            ("no route".to_owned(), "no route".to_owned()),
            ("two\nlines".to_owned(), "two lines".to_owned()),
            // It would set the clipboard of a terminal.
            (
                "\u{1b}]52;c;YQ==\u{7}".to_owned(),
                "\u{fffd}]52;c;YQ==\u{fffd}".to_owned(),
            ),
            ("ö".repeat(MAX_TEXT), "ö".repeat(MAX_TEXT)),
            (
                long,
                format!("{}… (and 4028 more characters)", "ö".repeat(972)),
            ),
        ];
        for (given, expected) in cases {
            let found = text(&given);
            assert_eq!(found, expected);
            assert!(found.chars().count() <= MAX_TEXT);
            assert_eq!(text(&found), found, "shortening it again changes nothing");
        }
    }

    fn child(pods: usize, ports: usize, error: &str) -> ClusterSession {
        let pod = |number: usize| SessionPod {
            name: format!("web-{number}\u{1b}[2J"),
            error: Some(error.to_owned()),
            ..SessionPod::default()
        };
        let port = |number: usize| SessionPort {
            port: u16::try_from(number % 65_536).unwrap(),
            filter: Some(error.to_owned()),
            ..SessionPort::default()
        };
        ClusterSession {
            session_name: "mc-00000000000000ab-east".to_owned(),
            pods: (0..pods).map(pod).collect(),
            ports: (0..ports).map(port).collect(),
            error: Some(error.to_owned()),
            last_heartbeat: Some("9".repeat(100_000)),
            ..ClusterSession::default()
        }
    }

    #[test]
    fn a_member_cannot_fill_the_parent() {
        let usual = child(100, 5, "no pods");
        let expected = ClusterSession {
            pods: usual.pods.iter().cloned().map(pod).collect(),
            last_heartbeat: Some("9".repeat(MAX_NAME)),
            ..usual.clone()
        };
        assert_eq!(cluster_session(usual, 3), expected);
        for clusters in [1, 8, 100] {
            let huge = child(5_000, 3_000, &"x".repeat(2_000));
            let bounded = cluster_session(huge, clusters);
            let bytes = serde_json::to_vec(&bounded).unwrap().len();
            assert!(
                bytes * clusters < 1_300_000,
                "{bytes} bytes of {clusters} clusters"
            );
            assert_eq!(bounded.pods[0].name, "web-0[2J");
            let omitted = format!("and {} more pods, and", 5_000 - bounded.pods.len());
            let found = bounded.omitted.clone().unwrap();
            assert!(found.starts_with(&omitted), "{found}");
            assert_eq!(cluster_session(bounded.clone(), clusters), bounded);
        }
    }

    #[test]
    fn a_member_cannot_fill_the_message_to_the_client() {
        let endpoint = AgentEndpoint {
            pod: "a\u{7}".repeat(1000),
            ..AgentEndpoint::default()
        };
        let bounded = endpoints(AgentEndpoints {
            endpoints: vec![endpoint; 1000],
            ended: Some("e".repeat(5000)),
            ..AgentEndpoints::default()
        });
        let bytes = serde_json::to_vec(&bounded.endpoints).unwrap().len();
        assert!((60_000..70_000).contains(&bytes), "{bytes}");
        assert_eq!(bounded.endpoints[0].pod, "a".repeat(MAX_NAME));
        assert_eq!(bounded.ended.unwrap().chars().count(), MAX_TEXT);
    }
}
