//! An operator with node agents, installed with its chart like users do.

use anyhow::Result;
use lab::Client;
use serde_json::json;

use crate::operator;

pub(in crate::bench) const NAMESPACE: &str = "mirrord";

/// It is removed with the lab.
#[derive(Debug)]
pub(in crate::bench) struct Operator {
    client: Client,
}

impl Operator {
    pub(super) fn install(client: &Client) -> Result<Self> {
        let values = json!({"operator": {"agent": {"mode": "node"}}});
        operator::install(client, NAMESPACE, "install", &values)?;
        operator::wait_for_nodes(client, NAMESPACE)?;
        Ok(Self {
            client: client.clone(),
        })
    }

    /// Waits until the API server considers it available.
    pub(super) fn wait(&self) -> Result<()> {
        operator::wait(&self.client)
    }
}
