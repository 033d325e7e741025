//! A client's connection to its session, of either kind: the messages to the client, the end of the connection, and what the
//! relay writes into the session's object.

use api::connect::{AgentEndpoints, SESSION_ENDED};
use bytes::Bytes;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use link::channels::Channels;
use serde_json::{Value, json};

use super::resume::ClientSession;

/// The connection of a client whose session is stored as a `Session`.
pub(crate) struct ClientConnection<Session> {
    /// The name of the session's object.
    pub(crate) name: String,
    channels: Channels,
    sessions: Api<Session>,
}

impl<Session: ClientSession> ClientConnection<Session> {
    pub(crate) fn new(client: &Client, name: String, channels: Channels) -> Self {
        Self {
            name,
            channels,
            sessions: Api::all(client.clone()),
        }
    }

    pub(crate) fn send(&self, endpoints: &AgentEndpoints) {
        if let Ok(text) = serde_json::to_vec(endpoints) {
            self.channels.send_message(Bytes::from(text));
        }
    }

    /// Closes the connection, and not the session: the client reconnects.
    pub(crate) fn close(&self, reason: &'static str) {
        self.channels.end(reason);
    }

    /// Closes the connection because the session has ended. The client gets the reason, and does not reconnect. `sent` is the
    /// last message to it, and `session` the session's object.
    pub(crate) fn end(&self, sent: Option<AgentEndpoints>, session: Option<&Session>) {
        let closed = session.and_then(ClientSession::closed);
        self.end_with(sent, closed.map(|closed| closed.message.clone()));
    }

    /// Closes the connection because the user has lost the right to the session, which the controller then ends.
    pub(crate) async fn end_denied(&self, sent: Option<AgentEndpoints>, message: String) {
        tracing::info!(session = self.name, "right removed, ending session");
        // Only the relay writes this field.
        if let Err(error) = self.patch_status(&json!({"denied": message})).await {
            // A reconnect is refused anyway, and the session expires without one.
            tracing::warn!(session = self.name, %error, "denial was not recorded");
        }
        self.end_with(sent, Some(message));
    }

    fn end_with(&self, sent: Option<AgentEndpoints>, reason: Option<String>) {
        self.send(&AgentEndpoints {
            ended: reason,
            ..sent.unwrap_or_default()
        });
        self.channels.end(SESSION_ENDED);
    }

    /// The client has ended its session: the object is deleted without waiting for a reconnect.
    pub(crate) async fn finish(&self) {
        let parameters = DeleteParams::default();
        if let Err(error) = self.sessions.delete(&self.name, &parameters).await {
            tracing::debug!(session = self.name, %error, "session deletion failed");
        }
        self.channels.end(SESSION_ENDED);
    }

    /// Records in the object that the client is connected. Only the relay writes these fields.
    pub(crate) async fn heartbeat(&self, fields: &Value) {
        if let Err(error) = self.patch_status(fields).await {
            tracing::debug!(session = self.name, %error, "heartbeat failed");
        }
    }

    async fn patch_status(&self, fields: &Value) -> Result<(), kube::Error> {
        let patch = Patch::Merge(json!({ "status": fields }));
        let parameters = PatchParams::default();
        let patched = self
            .sessions
            .patch_status(&self.name, &parameters, &patch)
            .await;
        patched.map(drop)
    }
}
