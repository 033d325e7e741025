//! The life of an agent: it gets a certificate, keeps a tunnel with it, and registers again when the certificate is of no use
//! any more and there is a new token.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use backoff::Backoff;
use error_chain::error_chain;
use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::api_server::ApiServer;
use crate::condition::Condition;
use crate::connection::{Connector, Outcome};
use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::registration;
use crate::report::REGISTER_AGAIN;
use crate::service::Gate;
use crate::settings::Settings;
use crate::state::{self, Credential, Next, Reason, TokenDigest};
use crate::store::Store;
use crate::trust::Trust;

/// The delays between attempts to register.
const MIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// The delay after a failure that only an administrator can repair. A new token is noticed earlier.
const HOPELESS_DELAY: Duration = Duration::from_secs(60);
/// How often the file with the token is read while the agent waits.
const TOKEN_INTERVAL: Duration = Duration::from_secs(2);

pub(crate) struct Agent {
    settings: Settings,
    trust: Trust,
    api_server: Arc<ApiServer>,
    store: Store,
    condition: Arc<Condition>,
}

impl Agent {
    pub(crate) fn new(settings: Settings, condition: Arc<Condition>) -> Result<Self> {
        let ca_file = settings.server_ca_file.as_deref();
        let trust = Trust::new(settings.server_pin, ca_file)?;
        let api_server = Arc::new(ApiServer::new(&settings.api_server)?);
        let store = Store::new(Arc::clone(&api_server), settings.state_secret.clone());
        Ok(Self {
            settings,
            trust,
            api_server,
            store,
            condition,
        })
    }

    pub(crate) async fn run(&self, shutdown: &CancellationToken) -> Result<()> {
        let gate = Arc::new(Gate {
            cluster: self.settings.cluster.clone(),
            allow_list: self.settings.allow_list.clone(),
            api_server: Arc::clone(&self.api_server),
        });
        let mut settings = tunnel::Settings::new(
            self.settings.server.to_string(),
            self.settings.cluster.clone(),
        );
        settings.proxy = self.settings.proxy.clone();
        let mut refused = None;
        loop {
            let Some(credential) = self.credential(refused.take(), shutdown).await else {
                return Ok(());
            };
            let cluster = &self.settings.cluster;
            let (trust, store) = (self.trust.clone(), self.store.clone());
            let connector = Connector {
                settings: settings.clone(),
                identity: Arc::new(Identity::new(cluster, credential, trust, store)?),
                gate: Arc::clone(&gate),
                condition: Arc::clone(&self.condition),
            };
            let can_register = |reason| self.can_register(reason);
            match connector.run(can_register, shutdown).await {
                Outcome::Shutdown => return Ok(()),
                Outcome::Register(reason) => refused = Some(reason),
                Outcome::Failed(error) => return Err(Error::Tunnel(Box::new(error))),
            }
        }
    }

    /// Returns a certificate that is stored, or registers until there is one. `None` at the shutdown.
    async fn credential(
        &self,
        mut refused: Option<String>,
        shutdown: &CancellationToken,
    ) -> Option<Credential> {
        let mut backoff = Backoff::new(MIN_BACKOFF, MAX_BACKOFF);
        let mut last_reason = None;
        loop {
            let token = self.token();
            let delay = match self.next(token.as_deref(), refused.as_deref()).await {
                Ok((Next::Connect, credential)) => match credential {
                    Some(credential) => return Some(credential),
                    None => HOPELESS_DELAY,
                },
                Ok((Next::Register(reason), _)) => {
                    tracing::info!(%reason, "registering");
                    match self.register(token.as_deref().unwrap_or_default()).await {
                        Ok(credential) => return Some(credential),
                        Err(error) => {
                            let is_temporary = self.report(&error);
                            if !is_temporary && matches!(reason, Reason::Refused(_)) {
                                // The certificate that there is may be accepted again.
                                refused = None;
                                continue;
                            }
                            if is_temporary {
                                backoff.next_delay()
                            } else {
                                HOPELESS_DELAY
                            }
                        }
                    }
                }
                Ok((Next::WaitForToken(reason), _)) => {
                    if last_reason.as_ref() != Some(&reason) {
                        let hint = REGISTER_AGAIN;
                        tracing::error!(%reason, hint, "registration token needed");
                        self.condition.set_problem(reason.to_string());
                        last_reason = Some(reason);
                    }
                    HOPELESS_DELAY
                }
                Err(error) => {
                    self.report(&error);
                    backoff.next_delay()
                }
            };
            tokio::select! {
                () = self.wait(delay, token.as_deref()) => {}
                () = shutdown.cancelled() => return None,
            }
        }
    }

    async fn next(
        &self,
        token: Option<&str>,
        refused: Option<&str>,
    ) -> Result<(Next, Option<Credential>)> {
        let secret = self.store.read().await?;
        let token = token.map(TokenDigest::of);
        let cluster = &self.settings.cluster;
        let now = Timestamp::now();
        let next = state::next(&secret, cluster, token.as_ref(), refused, now);
        Ok((next, state::credential(&secret)))
    }

    /// Whether there is a token that was not used yet, for an agent that the hub refuses.
    async fn can_register(&self, reason: String) -> bool {
        let token = self.token();
        let next = self.next(token.as_deref(), Some(&reason)).await;
        matches!(next, Ok((Next::Register(_), _)))
    }

    async fn register(&self, token: &str) -> Result<Credential> {
        let registering = registration::register(&self.settings, &self.trust, &self.store, token);
        let credential = registering.await?;
        tracing::info!(cluster = self.settings.cluster, "registered");
        Ok(credential)
    }

    /// Logs why there is no certificate. Returns whether a repetition could help.
    fn report(&self, error: &Error) -> bool {
        let reason = error_chain(error);
        self.condition.set_problem(reason.clone());
        match error {
            Error::Registration(failure) if !failure.is_temporary() => {
                tracing::error!(reason, "registration refused");
                false
            }
            _ => {
                tracing::warn!(reason, "registration failed, retrying");
                true
            }
        }
    }

    /// Waits, but not longer than until there is another token.
    async fn wait(&self, delay: Duration, token: Option<&str>) {
        let deadline = Instant::now() + delay;
        while Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            sleep(TOKEN_INTERVAL.min(left)).await;
            if self.token().as_deref() != token {
                return;
            }
        }
    }

    /// The registration token, if there is one now.
    fn token(&self) -> Option<String> {
        let file = self.settings.registration_token_file.as_ref()?;
        let token = fs::read_to_string(file).ok()?;
        let token = token.trim();
        (!token.is_empty()).then(|| token.to_owned())
    }
}
