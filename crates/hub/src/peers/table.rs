//! Which replica has a tunnel to which cluster. Without I/O.

use std::collections::BTreeMap;

use crate::sessions::{Connected, ConnectedCluster};

use super::message::PeerMessage;

/// What the peers of this replica have reported.
#[derive(Debug, Default)]
pub(super) struct Table {
    peers: BTreeMap<String, Peer>,
}

#[derive(Debug, Default)]
struct Peer {
    clusters: Connected,
    is_draining: bool,
}

impl Table {
    /// Applies a message of a peer. Returns the cluster whose certificates were revoked, if that is the message.
    pub(super) fn apply(&mut self, replica: &str, message: PeerMessage) -> Option<String> {
        let peer = self.peers.entry(replica.to_owned()).or_default();
        match message {
            PeerMessage::Changed {
                connected,
                disconnected,
            } => {
                for name in disconnected {
                    peer.clusters.remove(&name);
                }
                for (name, cluster) in connected {
                    peer.clusters.insert(name, cluster.into());
                }
            }
            PeerMessage::Revoked { cluster } => {
                peer.clusters.remove(&cluster);
                return Some(cluster);
            }
            PeerMessage::Draining => peer.is_draining = true,
            PeerMessage::Hello { .. } | PeerMessage::Ping | PeerMessage::Unknown => {}
        }
        None
    }

    /// The connection to a peer is lost.
    pub(super) fn remove(&mut self, replica: &str) {
        self.peers.remove(replica);
    }

    /// The replicas with a tunnel to the cluster. Those that shut down are last.
    pub(super) fn replicas(&self, cluster: &str) -> Vec<&str> {
        let mut found: Vec<(bool, &str)> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.clusters.contains_key(cluster))
            .map(|(replica, peer)| (peer.is_draining, replica.as_str()))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, replica)| replica).collect()
    }

    /// The tunnels of a cluster to peers.
    pub(super) fn tunnels(&self, cluster: &str) -> Vec<(String, ConnectedCluster)> {
        let peers = self.peers.iter();
        peers
            .filter_map(|(replica, peer)| {
                let found = peer.clusters.get(cluster)?;
                Some((replica.clone(), found.clone()))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::peers::message::change;

    fn connected(names: &str) -> Connected {
        let cluster = ConnectedCluster {
            number: 1,
            since: Timestamp::UNIX_EPOCH,
            agent_version: None,
            kubernetes_version: None,
            certificate_expires_at: Timestamp::UNIX_EPOCH,
        };
        names
            .split_whitespace()
            .map(|name| (name.to_owned(), cluster.clone()))
            .collect()
    }

    #[test]
    fn the_table_follows_the_messages() {
        enum Step {
            Changed(&'static str, &'static str),
            Draining,
            Revoked,
            Lost,
        }
        // The peer, what it does, and the replicas with tunnels to the clusters `a` and `b` then.
        let steps = [
            ("1", Step::Changed("", "a"), "1", ""),
            ("2", Step::Changed("", "a b"), "1 2", "2"),
            ("1", Step::Draining, "2 1", "2"),
            ("2", Step::Revoked, "1", "2"),
            ("2", Step::Changed("b", "a"), "2 1", ""),
            ("1", Step::Changed("a", "b"), "2", "1"),
            ("1", Step::Lost, "2", ""),
            // A peer that connects again is not shutting down any more.
            ("1", Step::Changed("", "a"), "1 2", ""),
            ("2", Step::Lost, "1", ""),
        ];
        let mut table = Table::default();
        for (number, (replica, step, a, b)) in steps.into_iter().enumerate() {
            let revoked = match step {
                Step::Changed(before, after) => {
                    let message = change(&connected(before), &connected(after)).unwrap();
                    table.apply(replica, message)
                }
                Step::Draining => table.apply(replica, PeerMessage::Draining),
                Step::Revoked => {
                    let cluster = "a".to_owned();
                    let revoked = table.apply(replica, PeerMessage::Revoked { cluster });
                    assert_eq!(revoked.as_deref(), Some("a"));
                    None
                }
                Step::Lost => {
                    table.remove(replica);
                    None
                }
            };
            assert_eq!(revoked, None);
            let found = [table.replicas("a").join(" "), table.replicas("b").join(" ")];
            assert_eq!(found, [a, b], "step {number}");
            assert_eq!(table.tunnels("a").len(), a.split_whitespace().count());
        }
    }
}
