//! `standin mcp`: a Model Context Protocol server, so that coding agents can inspect sessions and end them.
//!
//! JSON-RPC 2.0 messages are lines on standard input and output. There are few methods and no notifications of the server,
//! so this is a loop that reads a request and writes its response.

mod tools;

use std::io::stdin;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::api::folder::Folder;
use crate::sessions::{SessionsDir, runtime};

/// The supported protocol versions, the newest first. The parts that are used here are the same in all of them.
const VERSIONS: &[&str] = &["2025-06-18", "2025-03-26", "2024-11-05"];

const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;
const PARSE_ERROR: i32 = -32700;

#[derive(Debug, Args)]
pub(crate) struct McpArguments {
    #[command(flatten)]
    sessions_dir: SessionsDir,
}

pub(crate) fn run(arguments: &McpArguments) -> Result<ExitCode> {
    let folder = arguments.sessions_dir.folder()?;
    let runtime = runtime()?;
    for line in stdin().lines() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let response = match serde_json::from_str::<Value>(&line) {
            Ok(message) => runtime.block_on(respond(&folder, &message)),
            Err(error) => Some(failure(&Value::Null, PARSE_ERROR, &error.to_string())),
        };
        if let Some(response) = response {
            println!("{response}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The response to a message. Notifications have none.
async fn respond(folder: &Folder, message: &Value) -> Option<Value> {
    let id = message.get("id")?;
    let method = message.get("method").and_then(Value::as_str)?;
    let nothing = Value::Null;
    let parameters = message.get("params").unwrap_or(&nothing);
    let result = match method {
        "initialize" => initialize(parameters),
        "ping" => json!({}),
        "tools/list" => json!({ "tools": tools::list() }),
        "tools/call" => match call(folder, parameters).await {
            Some(result) => result,
            None => return Some(failure(id, INVALID_PARAMS, "there is no such tool")),
        },
        other => {
            return Some(failure(
                id,
                METHOD_NOT_FOUND,
                &format!("there is no method {other}"),
            ));
        }
    };
    Some(json!({ "jsonrpc": "2.0", "id": id, "result": result }))
}

fn initialize(parameters: &Value) -> Value {
    let requested = parameters.get("protocolVersion").and_then(Value::as_str);
    let version = VERSIONS.iter().find(|version| Some(**version) == requested);
    json!({
        "protocolVersion": version.unwrap_or(&VERSIONS[0]),
        "capabilities": { "tools": {} },
        "serverInfo": { "name": "standin", "version": env!("CARGO_PKG_VERSION") },
        "instructions": "Sessions of Standin run a program of this machine as the stand-in for a service. Begin with \
            list_sessions. When something does not work, session_state and session_events with only_problems show what failed.",
    })
}

/// The error of a tool is part of its result, so that the model can read it.
async fn call(folder: &Folder, parameters: &Value) -> Option<Value> {
    let name = parameters.get("name").and_then(Value::as_str)?;
    let nothing = json!({});
    let arguments = parameters.get("arguments").unwrap_or(&nothing);
    let (text, is_error) = match tools::call(folder, name, arguments).await? {
        Ok(value) => (value.to_string(), false),
        Err(error) => (format!("{error:#}"), true),
    };
    Some(json!({ "content": [{ "type": "text", "text": text }], "isError": is_error }))
}

fn failure(id: &Value, code: i32, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}
