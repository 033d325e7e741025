//! The HTTP API of the page.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use monitor::{ConfigValue, PROTOCOL_VERSION, SessionInfo, State as SessionState};
use serde::Serialize;
use serde_json::json;

use super::Shared;
use super::hub::Source;
use crate::api::client::NoResponse;
use crate::sessions::hide_values;

/// All details of a session except its events.
#[derive(Debug, Serialize)]
struct Detail {
    info: SessionInfo,
    state: SessionState,
    config: Vec<ConfigValue>,
    shows_env_values: bool,
}

pub(super) async fn list(State(shared): State<Shared>) -> Response {
    Json(shared.hub.infos()).into_response()
}

pub(super) async fn detail(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    let Some((info, source)) = shared.hub.find(&id) else {
        return not_found(&id);
    };
    let details = match source {
        Source::Recording(recording) => Ok((info, recording.0.clone(), recording.1.clone())),
        Source::Session(client) => {
            async {
                let info = client.supported_info().await?;
                let (state, config) = (client.state().await?, client.config().await?);
                anyhow::Ok((info, state, config))
            }
            .await
        }
    };
    let (info, mut state, config) = match details {
        Ok(details) => details,
        Err(error) => return failed(&error),
    };
    if !shared.hub.shows_values {
        hide_values(&mut state);
    }
    Json(Detail {
        info,
        state,
        config,
        shows_env_values: shared.hub.shows_values,
    })
    .into_response()
}

pub(super) async fn kill(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    match shared.hub.find(&id) {
        None => not_found(&id),
        Some((_, Source::Recording(_))) => {
            shared.hub.remove(&id);
            StatusCode::ACCEPTED.into_response()
        }
        Some((_, Source::Session(client))) => match client.kill().await {
            Ok(()) => (StatusCode::ACCEPTED, Json(json!({"status": "ending"}))).into_response(),
            Err(error) => failed(&error),
        },
    }
}

pub(super) async fn version(State(shared): State<Shared>) -> Response {
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "protocol_version": PROTOCOL_VERSION,
        "licence": env!("CARGO_PKG_LICENSE"),
        "operator": shared.operator.status(),
    }))
    .into_response()
}

/// The response if a session that exists could not be read or ended.
fn failed(error: &anyhow::Error) -> Response {
    let status = match error.is::<NoResponse>() {
        true => StatusCode::GATEWAY_TIMEOUT,
        false => StatusCode::BAD_GATEWAY,
    };
    (status, Json(json!({"error": format!("{error:#}")}))).into_response()
}

fn not_found(id: &str) -> Response {
    let message = json!({"error": format!("there is no session {id}")});
    (StatusCode::NOT_FOUND, Json(message)).into_response()
}
