//! The agent's listener, and the authentication of its clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use link::tls::{
    AcceptedStream, Fingerprint, Identity, TlsAcceptor, accept_link, acceptor,
    acceptor_for_clients, client_fingerprint,
};
use link::upgrade::accept_upgrade;
use link::{Abort, Accepted, Admit, Link, LinkServer, Pipe, ServerSettings, SharedToken, Token};
use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

/// The delay after a failed `accept`.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// The maximum number of unauthenticated connections, so that they cannot exhaust the resources of sessions.
const MAX_UNAUTHENTICATED: usize = 512;
/// How long the TLS handshake may take.
const TLS_TIMEOUT: Duration = Duration::from_secs(10);

/// How the agent authenticates its client.
#[derive(Debug)]
pub(super) enum ClientAuth {
    /// The client presents this secret, with or without TLS.
    Token { token: String, tls: bool },
    /// The client has the key of this certificate. The agent stores no secret that could be stolen.
    Certificate {
        client: Fingerprint,
        /// The operator's certificate: its owner may end the agent and change the grant.
        ended_by: Option<Fingerprint>,
    },
}

impl ClientAuth {
    /// The secret that the client presents again in `Hello`.
    pub(super) fn token(&self) -> &str {
        match self {
            Self::Token { token, .. } => token,
            Self::Certificate { .. } => "",
        }
    }

    fn admission(&self) -> Result<Admission> {
        Ok(match self {
            Self::Token { token, .. } => {
                Admission::Token(SharedToken(Token::new(token.as_bytes())?))
            }
            Self::Certificate { .. } => Admission::Authenticated,
        })
    }

    /// The TLS acceptor and the fingerprint of its certificate, which is for this run only.
    fn acceptor(&self) -> Result<Option<(TlsAcceptor, Fingerprint)>> {
        let identity = Identity::generate().context("cannot generate a certificate")?;
        let acceptor = match self {
            Self::Token { tls: false, .. } => return Ok(None),
            Self::Token { .. } => acceptor(&identity)?,
            Self::Certificate { client, ended_by } => {
                let allowed: Vec<_> = [*client].into_iter().chain(*ended_by).collect();
                acceptor_for_clients(&identity, &allowed)?
            }
        };
        Ok(Some((acceptor, identity.fingerprint())))
    }
}

enum Admission {
    Token(SharedToken),
    /// TLS has authenticated the client already.
    Authenticated,
}

impl Admit for Admission {
    async fn admit(&self, token: &Token) -> Result<String, String> {
        match self {
            Self::Token(shared) => shared.admit(token).await,
            Self::Authenticated => Ok(String::new()),
        }
    }
}

/// The socket on which clients connect.
pub(super) struct AgentListener {
    listener: TcpListener,
    pub(super) address: SocketAddr,
    /// The fingerprint of the agent's certificate, if it uses TLS.
    pub(super) certificate: Option<Fingerprint>,
    tls: Option<TlsAcceptor>,
    ended_by: Option<Fingerprint>,
    server: LinkServer<Admission>,
    unauthenticated: Arc<Semaphore>,
}

/// An accepted connection whose client is not authenticated yet.
pub(super) struct UnauthenticatedConnection {
    _permit: OwnedSemaphorePermit,
    connection: TcpStream,
    tls: Option<TlsAcceptor>,
    ended_by: Option<Fingerprint>,
    server: LinkServer<Admission>,
    pub(super) peer: SocketAddr,
}

/// The purpose of an authenticated connection.
pub(super) enum ConnectionPurpose {
    /// A new session.
    Session(Link),
    /// An existing session resumes.
    Resumption,
    /// The operator, which may end the agent.
    Operator(Box<AcceptedStream<BufReader<TcpStream>>>),
}

impl AgentListener {
    pub(super) async fn bind(
        listen: SocketAddr,
        auth: &ClientAuth,
        settings: ServerSettings,
    ) -> Result<Self> {
        let listener = super::listen(listen).await?;
        let address = listener.local_addr()?;
        let tls = auth.acceptor()?;
        Ok(Self {
            listener,
            address,
            certificate: tls.as_ref().map(|(_, certificate)| *certificate),
            tls: tls.map(|(acceptor, _)| acceptor),
            ended_by: match auth {
                ClientAuth::Certificate { ended_by, .. } => *ended_by,
                ClientAuth::Token { .. } => None,
            },
            server: LinkServer::new(settings, auth.admission()?),
            unauthenticated: Arc::new(Semaphore::new(MAX_UNAUTHENTICATED)),
        })
    }

    /// Aborts all sessions and sends their clients the reason.
    pub(super) fn close(&self, reason: &str) {
        self.server.abort_all(&Abort {
            code: 0,
            text: reason.to_owned(),
        });
    }

    /// Waits for the next connection.
    pub(super) async fn accept(&self) -> UnauthenticatedConnection {
        loop {
            let accepted = self.listener.accept().await;
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&self.unauthenticated).acquire_owned().await else {
                continue;
            };
            match accepted {
                Ok((connection, peer)) => {
                    return UnauthenticatedConnection {
                        _permit: permit,
                        connection,
                        peer,
                        tls: self.tls.clone(),
                        ended_by: self.ended_by,
                        server: self.server.clone(),
                    };
                }
                // The process has no free file descriptor, or the client has disconnected already. Both are temporary and
                // do not affect sessions.
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }
}

impl UnauthenticatedConnection {
    /// Authenticates the client and determines the purpose of the connection.
    pub(super) async fn authenticate(mut self) -> Result<ConnectionPurpose> {
        link::set_tcp_options(&self.connection)?;
        match self.tls {
            None => handshake(&self.server, self.connection).await,
            Some(tls) => {
                let secured = async {
                    let upgraded = accept_upgrade(&mut self.connection).await;
                    upgraded.context("the client did not request a link")?;
                    accept_link(&tls, self.connection)
                        .await
                        .context("the TLS handshake failed")
                };
                let pipe = timeout(TLS_TIMEOUT, secured)
                    .await
                    .context("the TLS handshake timed out")??;
                if self.ended_by.is_some() && client_fingerprint(&pipe) == self.ended_by {
                    return Ok(ConnectionPurpose::Operator(Box::new(pipe)));
                }
                handshake(&self.server, pipe).await
            }
        }
    }
}

async fn handshake(server: &LinkServer<Admission>, pipe: impl Pipe) -> Result<ConnectionPurpose> {
    match server
        .accept(pipe)
        .await
        .context("the link handshake failed")?
    {
        Accepted::New(link) => Ok(ConnectionPurpose::Session(link)),
        Accepted::Resumed(_) => {
            tracing::debug!("session resumed");
            Ok(ConnectionPurpose::Resumption)
        }
    }
}
