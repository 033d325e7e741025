//! The messages between hub and agent, on a stream that the hub opens at the beginning of a tunnel: certificates,
//! authorities, and the shutdown of a hub's replica.

use std::sync::Arc;
use std::time::Duration;

use api::hub::{AgentMessage, HubMessage, Registered};
use authority::PrivateKey;
use error_chain::error_chain;
use http::{Request, Response};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tunnel::lines::{self, LineError, LineReceiver, LineSender};

use crate::api_server::ApiServer;
use crate::body::{self, Body};
use crate::error::Result;
use crate::identity::Identity;
use crate::renewal::{self, Renewal};

/// How long the first message waits for the version of the API server.
const VERSION_TIMEOUT: Duration = Duration::from_secs(2);
/// When authorities that could not be stored are tried again.
const STORE_INTERVAL: SignedDuration = SignedDuration::from_secs(10);

/// The control streams of one tunnel.
pub(crate) struct Control {
    pub(crate) identity: Arc<Identity>,
    pub(crate) api_server: Arc<ApiServer>,
    /// Set when the hub's replica shuts down.
    pub(crate) draining: watch::Sender<bool>,
}

impl Control {
    /// Starts a conversation, which ends with the request's body.
    pub(crate) fn respond(self: Arc<Self>, request: Request<tunnel::Body>) -> Response<Body> {
        let (sender, messages) = lines::channel();
        let receiver = LineReceiver::new(request.into_body());
        tokio::spawn(async move {
            let mut conversation = Conversation {
                control: self,
                sender,
                renewal: None,
                authorities: None,
            };
            if let Err(error) = conversation.run(receiver).await {
                // The end of the tunnel has its own event.
                tracing::debug!(error = error_chain(&error), "control stream ended");
            }
        });
        Response::new(body::of(messages))
    }
}

struct Conversation {
    control: Arc<Control>,
    sender: LineSender<AgentMessage>,
    /// The last request for a certificate.
    renewal: Option<Attempt>,
    /// Authorities that are not stored yet.
    authorities: Option<String>,
}

struct Attempt {
    time: Timestamp,
    key: PrivateKey,
}

impl Conversation {
    async fn run(
        &mut self,
        mut receiver: LineReceiver<tunnel::Body, HubMessage>,
    ) -> Result<(), LineError> {
        let version = timeout(VERSION_TIMEOUT, self.control.api_server.version()).await;
        let hello = AgentMessage::Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kubernetes_version: version.ok().and_then(Result::ok),
        };
        self.sender.send(&hello).await?;
        loop {
            let wait = self.renew_if_due().await?;
            tokio::select! {
                message = receiver.next() => match message? {
                    Some(message) => self.handle(message).await?,
                    None => return Ok(()),
                },
                () = sleep(wait.unsigned_abs()) => self.store_authorities().await?,
            }
        }
    }

    async fn handle(&mut self, message: HubMessage) -> Result<(), LineError> {
        match message {
            HubMessage::Certificate(registered) => self.take_certificate(registered).await,
            HubMessage::Authorities { ca_bundle } => {
                self.authorities = Some(ca_bundle);
                self.store_authorities().await?;
            }
            HubMessage::Draining => {
                tracing::info!("hub replica shuts down");
                self.control.draining.send_replace(true);
            }
            HubMessage::Failed { error } => {
                tracing::warn!(error, "hub could not renew the certificate");
            }
            HubMessage::Unknown => {}
        }
        Ok(())
    }

    /// Asks for a certificate if it is time. Returns how long to wait until the next decision.
    async fn renew_if_due(&mut self) -> Result<SignedDuration, LineError> {
        let now = Timestamp::now();
        let current = self.control.identity.current();
        let last = self.renewal.as_ref().map(|attempt| attempt.time);
        let wait = match renewal::next(&current.facts, last, now) {
            Renewal::Wait(wait) => wait,
            Renewal::Ask => {
                self.renew(now).await?;
                SignedDuration::ZERO
            }
        };
        Ok(match &self.authorities {
            Some(_) => wait.min(STORE_INTERVAL),
            None => wait,
        })
    }

    /// Asks for a certificate for a new key. The old certificate stays in use until the new one is stored.
    async fn renew(&mut self, now: Timestamp) -> Result<(), LineError> {
        let name = &self.control.identity.current().facts.common_name;
        let made = PrivateKey::generate().and_then(|key| Ok((key.request_pem(name)?, key)));
        match made {
            Ok((csr, key)) => {
                self.renewal = Some(Attempt { time: now, key });
                self.sender.send(&AgentMessage::Renew { csr }).await
            }
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "certificate renewal failed");
                Ok(())
            }
        }
    }

    async fn take_certificate(&mut self, registered: Registered) {
        let Some(attempt) = &self.renewal else {
            return;
        };
        let Registered {
            cert, ca_bundle, ..
        } = registered;
        let identity = &self.control.identity;
        match identity.renew(cert, ca_bundle, &attempt.key).await {
            Ok(()) => {
                let expires = identity.current().facts.not_after;
                tracing::info!(%expires, "certificate renewed");
                self.renewal = None;
            }
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "certificate renewal failed");
            }
        }
    }

    /// Stores announced authorities, and confirms them to the hub, which may use them then.
    async fn store_authorities(&mut self) -> Result<(), LineError> {
        let Some(bundle) = &self.authorities else {
            return Ok(());
        };
        match self.control.identity.trust(bundle).await {
            Ok(authorities) => {
                self.authorities = None;
                self.sender
                    .send(&AgentMessage::Trusts { authorities })
                    .await
            }
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "authorities not stored");
                Ok(())
            }
        }
    }
}
