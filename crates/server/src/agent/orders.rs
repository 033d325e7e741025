//! What the operator says to an agent of one session, which is there for nobody else.

use std::time::Duration;

use ::agent::Agent;
use anyhow::{Context, Result, ensure};
use api::node::{MOST_BYTES, NodeAnswer, NodeRequest, message};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::telling::{self, tell_ports};

/// Whoever says nothing came to end the agent, as operators of earlier versions do.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) async fn follow(
    mut pipe: impl AsyncRead + AsyncWrite + Unpin,
    agent: &Agent,
    end: mpsc::Sender<()>,
) -> Result<()> {
    let request = timeout(PATIENCE, read(&mut pipe)).await;
    let (grant, name) = match request {
        Ok(Ok(NodeRequest::Grant { grant, name })) => (grant, name),
        Ok(Ok(NodeRequest::Ports { patterns, .. })) => {
            return tell_ports(pipe, agent.watch_ports(), telling::patterns(patterns)).await;
        }
        // Also what is not understood: it may be a rule.
        _ => return Ok(end.send(()).await?),
    };
    let changed = super::regrant(agent, grant).await;
    let answer = NodeAnswer {
        error: changed.as_ref().err().map(|error| format!("{error:#}")),
        ..NodeAnswer::default()
    };
    pipe.write_all(&message(&answer)?).await?;
    pipe.shutdown().await?;
    changed.with_context(|| format!("an order for {name}"))
}

async fn read(pipe: &mut (impl AsyncRead + Unpin)) -> Result<NodeRequest> {
    let length = pipe.read_u32().await?;
    ensure!(length <= MOST_BYTES, "the request is too long");
    let mut request = vec![0; usize::try_from(length)?];
    pipe.read_exact(&mut request).await?;
    Ok(serde_json::from_slice(&request)?)
}
