//! The memory of a session on the developer's machine.

use anyhow::Result;
use serde_json::json;

use super::programs::memory;
use super::site::{Server, Site, Transport};
use super::{Extent, Row};

pub(super) fn rows(site: &mut Site, _: &Extent) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for transport in [Transport::Tcp, Transport::Tls] {
        let mut inside = site.session_worker(transport)?;
        let hold =
            |count: usize| json!({"do": "hold", "address": Server::Echo.address(), "count": count});
        // The session is ready when the worker responds.
        inside.call(&hold(0))?;
        let name = transport.name();
        let idle = memory(inside.pid())?;
        rows.push(
            Row::new(format!("memory of standin exec, idle, {name}"), idle, "MiB").at_most(25.0),
        );
        inside.call(&hold(1000))?;
        let busy = memory(inside.pid())?;
        rows.push(
            Row::new(
                format!("memory of standin exec, 1,000 connections, {name}"),
                busy,
                "MiB",
            )
            .at_most(60.0),
        );
        if let Some(agent) = site.agent_pid().filter(|_| transport == Transport::Tcp) {
            let agent = memory(agent)?;
            rows.push(Row::new(
                "memory of its agent, 1,000 connections",
                agent,
                "MiB",
            ));
        }
    }
    Ok(rows)
}
