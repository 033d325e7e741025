//! What can be asked of sessions.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use monitor::stream::Message;
use monitor::{Entry, Event, Level};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::api::client::Client;
use crate::api::folder::Folder;
use crate::sessions;

/// Rows and events of one answer, unless more are asked for.
const FEW: u64 = 50;
/// How long a session has to hand over the events that it keeps.
const PATIENCE: Duration = Duration::from_secs(5);

/// Each tool with a schema of its arguments.
pub(super) fn list() -> Value {
    let id = json!({ "type": "string", "description": "The session's id, or its beginning" });
    let object = |properties: Value, required: &[&str]| json!({ "type": "object", "properties": properties, "required": required });
    let tool = |name: &str, description: &str, schema: Value, reads: bool| {
        json!({
            "name": name,
            "description": description,
            "inputSchema": schema,
            "annotations": { "readOnlyHint": reads, "destructiveHint": !reads },
        })
    };
    let limit = json!({ "type": "integer", "minimum": 1, "description": "The most that is answered; 50 without it" });
    json!([
        tool(
            "list_sessions",
            "All sessions of this machine: target, program, ports, health, counters.",
            object(json!({}), &[]),
            true
        ),
        tool(
            "session_info",
            "What a session is: target, processes, ports, health, counters.",
            object(json!({ "id": id }), &["id"]),
            true
        ),
        tool(
            "session_counters",
            "Sums of everything that a session did.",
            object(json!({ "id": id }), &["id"]),
            true
        ),
        tool(
            "session_events",
            "What happened in a session, the newest last: requests, connections, files, names, notices.",
            object(
                json!({
                    "id": id,
                    "after": { "type": "integer", "description": "Only events after the one with this number" },
                    "type": { "type": "string", "description": "Only events of this type, such as IncomingRequest, FileOp, DnsQuery, OutgoingConnection, Notice" },
                    "only_problems": { "type": "boolean", "description": "Only what failed" },
                    "limit": limit,
                }),
                &["id"],
            ),
            true,
        ),
        tool(
            "session_state",
            "What a session did by file, name, peer or port, what failed first. Names of variables, without values.",
            object(
                json!({
                    "id": id,
                    "section": { "enum": ["files", "names", "peers", "ports", "env"] },
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
            "Ends a session and all of its processes: asks them to, and after five seconds makes them.",
            object(json!({ "id": id }), &["id"]),
            false
        ),
    ])
}

/// Nothing, if there is no such tool.
pub(super) async fn call(folder: &Folder, name: &str, arguments: &Value) -> Option<Result<Value>> {
    let names = list();
    let known = names.as_array()?.iter().any(|tool| tool["name"] == name);
    if !known {
        return None;
    }
    Some(perform(folder, name, arguments).await)
}

async fn perform(folder: &Folder, name: &str, arguments: &Value) -> Result<Value> {
    if name == "list_sessions" {
        return Ok(serde_json::to_value(sessions::all(folder).await)?);
    }
    let id = arguments.get("id").and_then(Value::as_str);
    let (id, client) = Client::find(folder, id.context("say which session: `id`")?)?;
    match name {
        "session_info" => Ok(serde_json::to_value(client.info().await?)?),
        "session_counters" => Ok(serde_json::to_value(client.info().await?.counters)?),
        "session_events" => events(&client, arguments).await,
        "session_state" => state(&client, arguments).await,
        "session_config" => {
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
    let last = client.info().await?.counters.events;
    let mut found = Vec::new();
    let mut missed = 0;
    let mut seen = after.unwrap_or(0);
    let mut stream = client.events(after).await?;
    while seen < last {
        let Ok(Some(messages)) = timeout(PATIENCE, stream.next()).await else {
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
    let mut state = client.state().await?;
    state
        .files
        .sort_by_key(|row| std::cmp::Reverse((row.failed, row.operations)));
    state
        .names
        .sort_by_key(|row| std::cmp::Reverse((row.failed, row.queries)));
    state
        .peers
        .sort_by_key(|row| std::cmp::Reverse((row.failed, row.connections)));
    let most = limit(arguments);
    let section = arguments
        .get("section")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let mut rows = match section {
        "files" => serde_json::to_value(state.files)?,
        "names" => serde_json::to_value(state.names)?,
        "peers" => serde_json::to_value(state.peers)?,
        "ports" => serde_json::to_value(state.ports)?,
        "env" => json!(
            state
                .env
                .into_iter()
                .map(|(name, _)| name)
                .collect::<Vec<_>>()
        ),
        other => bail!("`section` is one of files, names, peers, ports and env, not `{other}`"),
    };
    let count = rows.as_array().map_or(0, Vec::len);
    if let Some(rows) = rows.as_array_mut() {
        rows.truncate(most);
    }
    Ok(json!({ "left_out": count.saturating_sub(most), "rows": rows }))
}

fn limit(arguments: &Value) -> usize {
    let limit = arguments
        .get("limit")
        .and_then(Value::as_u64)
        .unwrap_or(FEW);
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
