//! An operator, installed by its chart as users do it, with agents that wait on nodes.

use anyhow::Result;
use lab::Client;
use serde_json::json;

use crate::operator;

const NAMESPACE: &str = "mirrord";

/// It goes with the lab.
#[derive(Debug)]
pub(super) struct Operator {
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

    /// Waits until the API server knows that it is there.
    pub(super) fn wait(&self) -> Result<()> {
        operator::wait(&self.client)
    }
}
