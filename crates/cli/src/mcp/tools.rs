//! The tools of the MCP server.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use monitor::stream::Message;
use monitor::{Entry, Event, Level};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::api::client::Client;
use crate::api::folder::Folder;
use crate::sessions;

/// Rows and events of one response, unless another limit is requested.
const DEFAULT_LIMIT: u64 = 50;
/// How long to wait for the stored events of a session.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(5);

/// The tools, each with the schema of its arguments.
pub(super) fn list() -> Value {
    let id = json!({ "type": "string", "description": "The session's id, or its first digits" });
    let object = |properties: Value, required: &[&str]| json!({ "type": "object", "properties": properties, "required": required });
    let tool = |name: &str, description: &str, schema: Value, reads: bool| {
        json!({
            "name": name,
            "description": description,
            "inputSchema": schema,
            "annotations": { "readOnlyHint": reads, "destructiveHint": !reads },
        })
    };
    let limit = json!({ "type": "integer", "minimum": 1, "description": "The maximal number of results; the default is 50" });
    json!([
        tool(
            "list_sessions",
            "All sessions of this machine: target, program, ports, health, counters.",
            object(json!({}), &[]),
            true
        ),
        tool(
            "session_info",
            "A session: target, processes, ports, health, counters.",
            object(json!({ "id": id }), &["id"]),
            true
        ),
        tool(
            "session_counters",
            "The counters of a session.",
            object(json!({ "id": id }), &["id"]),
            true
        ),
        tool(
            "session_events",
            "The events of a session, the newest last: requests, connections, files, DNS queries, notices.",
            object(
                json!({
                    "id": id,
                    "after": { "type": "integer", "description": "Only events after the one with this number" },
                    "type": { "type": "string", "description": "Only events of this type, such as IncomingRequest, FileOp, DnsQuery, OutgoingConnection, Notice" },
                    "only_problems": { "type": "boolean", "description": "Only failures" },
                    "limit": limit,
                }),
                &["id"],
            ),
            true,
        ),
        tool(
            "session_state",
            "Statistics of a session by file, DNS name, peer or port, failures first. Names of variables, without values.",
            object(
                json!({
                    "id": id,
                    "section": { "enum": ["files", "dns", "peers", "ports", "env"] },
                    "limit": limit,
                }),
                &["id", "section"],
            ),
            true,
        ),
        tool(
            "session_config",
            "Every setting that is not a default, with its value and the reason for it.",
            object(json!({ "id": id }), &["id"]),
            true
        ),
        tool(
            "end_session",
            "Ends a session and all of its processes: by SIGTERM, and by SIGKILL after five seconds.",
            object(json!({ "id": id }), &["id"]),
            false
        ),
    ])
}

/// `None` if there is no such tool.
pub(super) async fn call(folder: &Folder, name: &str, arguments: &Value) -> Option<Result<Value>> {
    let tools = list();
    if !tools.as_array()?.iter().any(|tool| tool["name"] == name) {
        return None;
    }
    Some(perform(folder, name, arguments).await)
}

async fn perform(folder: &Folder, name: &str, arguments: &Value) -> Result<Value> {
    if name == "list_sessions" {
        return Ok(serde_json::to_value(sessions::all(folder).await)?);
    }
    let id = arguments.get("id").and_then(Value::as_str);
    let (id, client) = Client::find(folder, id.context("the argument `id` is missing")?)?;
    match name {
        "session_info" => Ok(serde_json::to_value(client.info().await?)?),
        "session_counters" => Ok(serde_json::to_value(client.info().await?.counters)?),
        "session_events" => events(&client, arguments).await,
        "session_state" => state(&client, arguments).await,
        "session_config" => {
            client.supported_info().await?;
            let config = client.config().await?.into_iter();
            let set = config.filter(|value| !value.is_default);
            Ok(serde_json::to_value(set.collect::<Vec<_>>())?)
        }
        "end_session" => {
            sessions::kill(&client, folder, &id).await?;
            Ok(json!({ "ended": id }))
        }
        other => bail!("there is no tool {other}"),
    }
}

async fn events(client: &Client, arguments: &Value) -> Result<Value> {
    let after = arguments.get("after").and_then(Value::as_u64);
    let kind = arguments.get("type").and_then(Value::as_str);
    let only_problems = arguments.get("only_problems") == Some(&Value::Bool(true));
    let last = client.supported_info().await?.counters.events;
    let mut found = Vec::new();
    let mut missed = 0;
    let mut seen = after.unwrap_or(0);
    let mut stream = client.events(after).await?;
    while seen < last {
        let Ok(Some(messages)) = timeout(EVENTS_TIMEOUT, stream.next()).await else {
            break;
        };
        for message in messages {
            match message {
                Message::Missed(count) => missed += count,
                Message::Counters(_) => {}
                Message::Event(mut entry) => {
                    seen = entry.seq;
                    entry.event.hide_values();
                    if !only_problems || is_problem(&entry) {
                        found.push(serde_json::to_value(entry)?);
                    }
                }
            }
        }
    }
    found.retain(|entry| kind.is_none_or(|kind| entry["type"] == kind));
    let left_out = found.len().saturating_sub(limit(arguments));
    Ok(
        json!({ "last": seen, "missed": missed, "left_out": left_out, "events": found.split_off(left_out) }),
    )
}

async fn state(client: &Client, arguments: &Value) -> Result<Value> {
    client.supported_info().await?;
    let mut state = client.state().await?;
    state
        .files
        .sort_by_key(|row| std::cmp::Reverse((row.failed, row.operations)));
    state
        .dns
        .sort_by_key(|row| std::cmp::Reverse((row.failed, row.queries)));
    state
        .peers
        .sort_by_key(|row| std::cmp::Reverse((row.failed, row.connections)));
    let limit = limit(arguments);
    let section = arguments
        .get("section")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let mut rows = match section {
        "files" => serde_json::to_value(state.files)?,
        "dns" => serde_json::to_value(state.dns)?,
        "peers" => serde_json::to_value(state.peers)?,
        "ports" => serde_json::to_value(state.ports)?,
        "env" => json!(
            state
                .env
                .into_iter()
                .map(|(name, _)| name)
                .collect::<Vec<_>>()
        ),
        other => bail!("`section` is one of files, dns, peers, ports and env, not `{other}`"),
    };
    let count = rows.as_array().map_or(0, Vec::len);
    if let Some(rows) = rows.as_array_mut() {
        rows.truncate(limit);
    }
    Ok(json!({ "left_out": count.saturating_sub(limit), "rows": rows }))
}

fn limit(arguments: &Value) -> usize {
    let limit = arguments
        .get("limit")
        .and_then(Value::as_u64)
        .unwrap_or(DEFAULT_LIMIT);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

fn is_problem(entry: &Entry) -> bool {
    match &entry.event {
        Event::FileOp { errno, .. } | Event::OutgoingConnection { errno, .. } => errno.is_some(),
        Event::DnsQuery { code, .. } => code != "NOERROR",
        Event::IncomingConnection { accepted, .. } => !accepted,
        Event::IncomingRequest { status, .. } => status.is_none_or(|status| status >= 500),
        Event::RequestsPassedOn { .. } => true,
        Event::Notice { level, .. } => *level == Level::Warning,
        _ => false,
    }
}
