//! Connections of clients, before they are sessions: what they must show, and where they arrive.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use link::tls::{
    AcceptedStream, Fingerprint, Identity, TlsAcceptor, accept_link, acceptor,
    acceptor_for_clients, client_of,
};
use link::upgrade::accept_upgrade;
use link::{Abort, Accepted, Admit, Link, LinkServer, Pipe, ServerSettings, SharedToken, Token};
use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

/// Before the next connection is accepted, when one could not be.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections whose client is not known yet. Strangers must not use up what sessions need.
const UNKNOWN_AT_ONCE: usize = 512;
/// How long a client may take to speak TLS.
const TLS_PATIENCE: Duration = Duration::from_secs(10);

/// How the agent knows its client.
#[derive(Debug)]
pub(super) enum Proof {
    /// It shows this secret, with or without TLS around it.
    Token { token: String, tls: bool },
    /// It has the key of this certificate. There is nothing to steal from the agent.
    Certificate {
        client: Fingerprint,
        /// Who has the key of this one may end the agent, and say what sessions may do.
        ended_by: Option<Fingerprint>,
    },
}

impl Proof {
    /// The secret that the session shows once more.
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
            Self::Certificate { .. } => Admission::AlreadyKnown,
        })
    }

    /// What speaks TLS, and the fingerprint of its certificate, which is of this run alone.
    fn acceptor(&self) -> Result<Option<(TlsAcceptor, Fingerprint)>> {
        let identity = Identity::generate().context("a certificate cannot be made")?;
        let acceptor = match self {
            Self::Token { tls: false, .. } => return Ok(None),
            Self::Token { .. } => acceptor(&identity)?,
            Self::Certificate { client, ended_by } => {
                let known: Vec<_> = [*client].into_iter().chain(*ended_by).collect();
                acceptor_for_clients(&identity, &known)?
            }
        };
        Ok(Some((acceptor, identity.fingerprint())))
    }
}

enum Admission {
    Token(SharedToken),
    /// TLS has let in only the one.
    AlreadyKnown,
}

impl Admit for Admission {
    async fn admit(&self, token: &Token) -> Result<String, String> {
        match self {
            Self::Token(shared) => shared.admit(token).await,
            Self::AlreadyKnown => Ok(String::new()),
        }
    }
}

/// Where clients arrive.
pub(super) struct Door {
    listener: TcpListener,
    pub(super) address: SocketAddr,
    /// The fingerprint of what it shows, where it speaks TLS.
    pub(super) certificate: Option<Fingerprint>,
    tls: Option<TlsAcceptor>,
    ended_by: Option<Fingerprint>,
    server: LinkServer<Admission>,
    unknown: Arc<Semaphore>,
}

/// A connection that somebody made.
pub(super) struct Arrival {
    _unknown: OwnedSemaphorePermit,
    connection: TcpStream,
    tls: Option<TlsAcceptor>,
    ended_by: Option<Fingerprint>,
    server: LinkServer<Admission>,
    pub(super) from: SocketAddr,
}

/// What somebody came for.
pub(super) enum Purpose {
    /// A new session.
    Session(Link),
    /// A session that is here continues.
    Continuation,
    /// Somebody who may end the agent.
    Orders(Box<AcceptedStream<BufReader<TcpStream>>>),
}

impl Door {
    pub(super) async fn open(
        listen: SocketAddr,
        proof: &Proof,
        settings: ServerSettings,
    ) -> Result<Self> {
        let listener = super::listen(listen).await?;
        let address = listener.local_addr()?;
        let tls = proof.acceptor()?;
        Ok(Self {
            listener,
            address,
            certificate: tls.as_ref().map(|(_, certificate)| *certificate),
            tls: tls.map(|(acceptor, _)| acceptor),
            ended_by: match proof {
                Proof::Certificate { ended_by, .. } => *ended_by,
                Proof::Token { .. } => None,
            },
            server: LinkServer::new(settings, proof.admission()?),
            unknown: Arc::new(Semaphore::new(UNKNOWN_AT_ONCE)),
        })
    }

    /// Gives up all sessions, and tells their clients why.
    pub(super) fn close(&self, why: &str) {
        self.server.abort_all(&Abort {
            code: 0,
            text: why.to_owned(),
        });
    }

    pub(super) async fn next(&self) -> Arrival {
        loop {
            let accepted = self.listener.accept().await;
            // Nobody closes it.
            let Ok(unknown) = Arc::clone(&self.unknown).acquire_owned().await else {
                continue;
            };
            match accepted {
                Ok((connection, from)) => {
                    return Arrival {
                        _unknown: unknown,
                        connection,
                        from,
                        tls: self.tls.clone(),
                        ended_by: self.ended_by,
                        server: self.server.clone(),
                    };
                }
                // No descriptor is left, or the client is gone already. Both pass, and sessions go on meanwhile.
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

impl Arrival {
    /// Finds out who it is and what for.
    pub(super) async fn purpose(mut self) -> Result<Purpose> {
        link::set_tcp_options(&self.connection)?;
        match self.tls {
            None => greet(&self.server, self.connection).await,
            Some(tls) => {
                let secured = async {
                    let upgraded = accept_upgrade(&mut self.connection).await;
                    upgraded.context("no link is asked for")?;
                    accept_link(&tls, self.connection).await.context("no TLS")
                };
                let pipe = timeout(TLS_PATIENCE, secured)
                    .await
                    .context("the client is silent")??;
                if self.ended_by.is_some() && client_of(&pipe) == self.ended_by {
                    return Ok(Purpose::Orders(Box::new(pipe)));
                }
                greet(&self.server, pipe).await
            }
        }
    }
}

async fn greet(server: &LinkServer<Admission>, pipe: impl Pipe) -> Result<Purpose> {
    match server.accept(pipe).await.context("refused")? {
        Accepted::New(link) => Ok(Purpose::Session(link)),
        Accepted::Resumed(_) => {
            tracing::debug!("a session continues");
            Ok(Purpose::Continuation)
        }
    }
}
