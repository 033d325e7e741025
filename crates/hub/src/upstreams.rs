//! The tunnels of this replica as the upstreams of the proxy.

use api::hub::ClusterState;
use jiff::Timestamp;

use crate::cluster_status::describe;
use crate::proxy::{SendError, Upstream, UpstreamSource};
use crate::registry::Registry;
use crate::sessions::{Sessions, Unavailable};

/// Finds tunnels of this replica.
pub(crate) struct LocalUpstreams {
    registry: Registry,
    sessions: Sessions,
}

impl LocalUpstreams {
    pub(crate) fn new(registry: Registry, sessions: Sessions) -> Self {
        Self { registry, sessions }
    }

    fn session(&self, cluster: &str) -> Result<tunnel::Session, Unavailable> {
        // A tunnel of a cluster that is not registered any more ends at any moment.
        let object = self.registry.get(cluster);
        let object = object.ok_or(Unavailable::NotRegistered)?;
        if let Some(session) = self.sessions.newest(cluster) {
            return Ok(session);
        }
        let described = describe(&object, None, Timestamp::now());
        Err(match described.state {
            ClusterState::Revoked => Unavailable::Revoked,
            _ => Unavailable::NotConnected {
                since: described.last_seen.map(|seen| seen.0),
                message: described.message.unwrap_or_default(),
            },
        })
    }
}

impl UpstreamSource for LocalUpstreams {
    fn upstream(&self, cluster: &str) -> Result<Box<dyn Upstream>, SendError> {
        Ok(Box::new(self.session(cluster)?))
    }
}
