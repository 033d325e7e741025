//! What replicas of the hub report to each other: the clusters that are connected to them, as that changes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::sessions::{Connected, ConnectedCluster};

/// The version of these messages and of forwarded requests.
pub(super) const VERSION: u32 = 1;

/// One line of the stream from a replica to each of its peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub(super) enum PeerMessage {
    /// The first message.
    Hello { replica: String, version: u32 },
    /// Clusters that are connected since the last message, or whose facts have changed, and clusters that are not any more.
    Changed {
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        connected: BTreeMap<String, ReportedCluster>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        disconnected: Vec<String>,
    },
    /// The certificates of a cluster are not accepted any more. Its tunnels end.
    Revoked { cluster: String },
    /// The replica shuts down.
    Draining,
    /// Nothing has changed.
    Ping,
    /// A message of a later version, which is ignored.
    #[serde(other)]
    Unknown,
}

/// A cluster with a tunnel to the replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReportedCluster {
    /// Of tunnels.
    number: usize,
    since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agent_version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kubernetes_version: Option<String>,
    certificate_expires_at: Timestamp,
}

impl From<&ConnectedCluster> for ReportedCluster {
    fn from(cluster: &ConnectedCluster) -> Self {
        Self {
            number: cluster.number,
            since: cluster.since,
            agent_version: cluster.agent_version.clone(),
            kubernetes_version: cluster.kubernetes_version.clone(),
            certificate_expires_at: cluster.certificate_expires_at,
        }
    }
}

impl From<ReportedCluster> for ConnectedCluster {
    fn from(cluster: ReportedCluster) -> Self {
        Self {
            number: cluster.number,
            since: cluster.since,
            agent_version: cluster.agent_version,
            kubernetes_version: cluster.kubernetes_version,
            certificate_expires_at: cluster.certificate_expires_at,
        }
    }
}

/// The message for a change, unless there is none.
pub(super) fn change(before: &Connected, after: &Connected) -> Option<PeerMessage> {
    let connected: BTreeMap<_, _> = after
        .iter()
        .filter(|(name, cluster)| before.get(*name) != Some(cluster))
        .map(|(name, cluster)| (name.clone(), cluster.into()))
        .collect();
    let disconnected: Vec<_> = before
        .keys()
        .filter(|name| !after.contains_key(*name))
        .cloned()
        .collect();
    let has_changed = !connected.is_empty() || !disconnected.is_empty();
    has_changed.then_some(PeerMessage::Changed {
        connected,
        disconnected,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    pub(super) fn connected(clusters: &[(&str, usize)]) -> Connected {
        let cluster = |number| ConnectedCluster {
            number,
            since: Timestamp::UNIX_EPOCH,
            agent_version: None,
            kubernetes_version: None,
            certificate_expires_at: Timestamp::UNIX_EPOCH,
        };
        clusters
            .iter()
            .map(|(name, number)| ((*name).to_owned(), cluster(*number)))
            .collect()
    }

    #[test]
    fn only_changes_are_sent() {
        let changed = |before: &[(&str, usize)], after: &[(&str, usize)]| {
            let message = change(&connected(before), &connected(after))?;
            let PeerMessage::Changed {
                connected,
                disconnected,
            } = message
            else {
                panic!("{message:?}");
            };
            let connected: Vec<_> = connected.into_keys().collect();
            Some(format!(
                "+{} -{}",
                connected.join(","),
                disconnected.join(",")
            ))
        };
        type Tunnels<'a> = &'a [(&'a str, usize)];
        let cases: [(Tunnels<'_>, Tunnels<'_>, Option<&str>); 5] = [
            (&[], &[], None),
            (&[("a", 1)], &[("a", 1)], None),
            (&[("a", 1)], &[("a", 2), ("b", 1)], Some("+a,b -")),
            (&[("a", 1), ("b", 1)], &[("b", 1)], Some("+ -a")),
            (&[("a", 1)], &[("b", 1)], Some("+b -a")),
        ];
        for (before, after, expected) in cases {
            assert_eq!(changed(before, after).as_deref(), expected);
        }
    }

    #[test]
    fn messages_of_later_versions_are_ignored() {
        let later: PeerMessage = serde_json::from_value(json!({"type": "later", "x": 1})).unwrap();
        assert_eq!(later, PeerMessage::Unknown);
        let hello = json!({"type": "hello", "replica": "hub-0", "version": 1, "x": 1});
        let expected = PeerMessage::Hello {
            replica: "hub-0".to_owned(),
            version: 1,
        };
        assert_eq!(
            serde_json::from_value::<PeerMessage>(hello).unwrap(),
            expected
        );
    }
}
