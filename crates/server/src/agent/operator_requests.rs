//! Requests of the operator to the agent of one session.

use std::time::Duration;

use ::agent::Agent;
use anyhow::{Context, Result, ensure};
use api::node::{MAX_REQUEST_BYTES, NodeRequest, NodeResponse, encode_message};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::port_reports::{filter_patterns, report_ports};

/// How long to wait for a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn handle(
    mut pipe: impl AsyncRead + AsyncWrite + Unpin,
    agent: &Agent,
    end: mpsc::Sender<()>,
) -> Result<()> {
    let request = timeout(REQUEST_TIMEOUT, read_request(&mut pipe)).await??;
    let (grant, name) = match serde_json::from_slice(&request) {
        Ok(NodeRequest::Grant { grant, name }) => (grant, name),
        Ok(NodeRequest::Ports { patterns, .. }) => {
            return report_ports(pipe, agent.watch_ports(), filter_patterns(patterns)).await;
        }
        // The agent also ends if it cannot parse the request: it may be a rule of a newer version.
        _ => return Ok(end.send(()).await?),
    };
    let changed = super::regrant(agent, grant).await;
    let response = NodeResponse {
        error: changed.as_ref().err().map(|error| format!("{error:#}")),
        ..NodeResponse::default()
    };
    pipe.write_all(&encode_message(&response)?).await?;
    pipe.shutdown().await?;
    changed.with_context(|| format!("changing the grant of {name}"))
}

pub(super) async fn read_request(pipe: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>> {
    let length = pipe.read_u32().await?;
    ensure!(length <= MAX_REQUEST_BYTES, "the request is too long");
    let mut request = vec![0; usize::try_from(length)?];
    pipe.read_exact(&mut request).await?;
    Ok(request)
}
