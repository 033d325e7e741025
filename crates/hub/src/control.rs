//! The control stream of a tunnel: what hub and agent tell each other about the tunnel itself.
//!
//! The hub sends every authority that the agent has to trust, at the start and whenever they change, and announces its
//! shutdown. The agent says its versions, asks for new certificates, and confirms authorities that it has stored.

use std::sync::Arc;

use api::hub::{AgentMessage, HubMessage, Registered};
use authority::{Facts, SigningRequest};
use error_chain::error_chain;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use tunnel::lines::{LineError, LineReceiver, LineSender, channel};

use crate::error::{Error, Result};
use crate::sessions::Tunnel;
use crate::{Hub, registration};

/// Where an agent serves the control stream.
const CONTROL_PATH: &str = "http://agent/.standin/control";
/// How much of a version is kept.
const MAX_VERSION: usize = 64;

/// The length of a fingerprint in hex.
const FINGERPRINT: usize = 64;
/// Of authorities that an agent trusts.
const MAX_AUTHORITIES: usize = 8;

/// Why a control stream has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error("cannot open the control stream")]
    Open(#[from] tunnel::Error),
    #[error("the agent has responded to the control stream with {0}")]
    Refused(StatusCode),
    #[error("the control stream has failed")]
    Messages(#[from] LineError),
    #[error("the agent has ended the control stream")]
    Ended,
}

/// Runs a control stream until it ends.
pub(crate) async fn run(hub: &Arc<Hub>, tunnel: &Arc<Tunnel>) -> Result<(), ControlError> {
    let (mut sender, body) = channel::<HubMessage>();
    let mut request = Request::new(body.map_err(Into::into).boxed_unsync());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = http::Uri::from_static(CONTROL_PATH);
    let mut certificates = hub.certificates.clone();
    let authorities = certificates.borrow_and_update().authorities.clone();
    // In the body before the response arrives, which an agent may send after the first message.
    sender.send(&trust(authorities.bundle())).await?;
    let response = tunnel.session.send(request).await?;
    if response.status() != StatusCode::OK {
        return Err(ControlError::Refused(response.status()));
    }
    let mut messages = LineReceiver::<_, AgentMessage>::new(response.into_body());
    let mut is_draining = false;
    loop {
        tokio::select! {
            message = messages.next() => match message? {
                Some(message) => receive(hub, tunnel, &mut sender, message).await?,
                None => return Err(ControlError::Ended),
            },
            changed = certificates.changed() => if changed.is_ok() {
                let authorities = certificates.borrow_and_update().authorities.clone();
                sender.send(&trust(authorities.bundle())).await?;
            },
            () = hub.draining.cancelled(), if !is_draining => {
                is_draining = true;
                sender.send(&HubMessage::Draining).await?;
            }
        }
    }
}

fn trust(bundle: &str) -> HubMessage {
    HubMessage::Authorities {
        ca_bundle: bundle.to_owned(),
    }
}

async fn receive(
    hub: &Arc<Hub>,
    tunnel: &Arc<Tunnel>,
    sender: &mut LineSender<HubMessage>,
    message: AgentMessage,
) -> Result<(), ControlError> {
    let cluster = &tunnel.cluster;
    match message {
        AgentMessage::Hello {
            version,
            kubernetes_version,
        } => hub.sessions.update(tunnel, |details| {
            details.agent_version = Some(shortened(&version));
            details.kubernetes_version = kubernetes_version.as_deref().map(shortened);
        }),
        AgentMessage::Renew { csr } => {
            let response = match renew(hub, tunnel, &csr).await {
                Ok(registered) => {
                    let expires_at = registered.expires_at.0;
                    tracing::info!(cluster, %expires_at, "agent certificate renewed");
                    HubMessage::Certificate(registered)
                }
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::warn!(cluster, error, "agent certificate not renewed");
                    HubMessage::Failed { error }
                }
            };
            sender.send(&response).await?;
        }
        AgentMessage::Trusts { authorities } => {
            let authorities = authorities.into_iter().filter(|it| it.len() == FINGERPRINT);
            let authorities: Vec<String> = authorities.take(MAX_AUTHORITIES).collect();
            let fields = serde_json::json!({ "trustedAuthorities": authorities });
            // Without it, a rotation of the authority waits for this agent.
            if let Err(error) = hub.registry.patch_status(cluster, &fields).await {
                let error = error_chain(&error);
                tracing::warn!(cluster, error, "cluster status not written");
            }
        }
        AgentMessage::Unknown => {}
    }
    Ok(())
}

async fn renew(hub: &Hub, tunnel: &Tunnel, csr: &str) -> Result<Registered> {
    let request = SigningRequest::from_pem(csr)?;
    let previous = tunnel.details().certificate;
    let now = Timestamp::now();
    if previous.is_expired(now) {
        let name = tunnel.cluster.clone();
        return Err(Error::Expired { name });
    }
    let renewed = registration::renew(hub, &tunnel.cluster, &previous, &request, now).await?;
    let certificate = Facts::from_pem(&renewed.cert)?;
    hub.sessions
        .update(tunnel, |details| details.certificate = certificate);
    Ok(renewed)
}

fn shortened(version: &str) -> String {
    version.chars().take(MAX_VERSION).collect()
}
