//! The agent's listener, and the authentication of its clients.

use std::net::SocketAddr;
use std::time::Duration;

use admission::{Admission, Limits, Permit, accept};
use anyhow::{Context, Result};
use link::tls::{Fingerprint, Identity, TlsAcceptor, accept_link, acceptor, acceptor_for_clients};
use link::upgrade::accept_upgrade;
use link::{Abort, Accepted, Admit, Link, LinkServer, Pipe, ServerSettings, SharedToken, Token};
use tokio::net::{TcpListener, TcpStream};

/// The permits of unauthenticated connections, so that they cannot exhaust the resources of sessions.
pub(super) const LIMITS: Limits = Limits {
    total: 512,
    per_source: 256,
};
/// How long a client may take until it is authenticated.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(10);

/// How the agent authenticates its client.
#[derive(Debug)]
pub(super) enum ClientAuth {
    /// The client presents this secret, with or without TLS.
    Token { token: String, tls: bool },
    /// The client has the key of this certificate. The agent stores no secret that could be stolen.
    Certificate(Fingerprint),
}

impl ClientAuth {
    /// The secret that the client presents again in `Hello`.
    pub(super) fn token(&self) -> &str {
        match self {
            Self::Token { token, .. } => token,
            Self::Certificate(_) => "",
        }
    }

    fn link_auth(&self) -> Result<LinkAuth> {
        Ok(match self {
            Self::Token { token, .. } => {
                LinkAuth::Token(SharedToken(Token::new(token.as_bytes())?))
            }
            Self::Certificate(_) => LinkAuth::Authenticated,
        })
    }

    /// The TLS acceptor and the fingerprint of its certificate, which is for this run only.
    fn acceptor(&self) -> Result<Option<(TlsAcceptor, Fingerprint)>> {
        let identity = Identity::generate().context("cannot generate a certificate")?;
        let acceptor = match self {
            Self::Token { tls: false, .. } => return Ok(None),
            Self::Token { .. } => acceptor(&identity)?,
            Self::Certificate(client) => acceptor_for_clients(&identity, &[*client])?,
        };
        Ok(Some((acceptor, identity.fingerprint())))
    }
}

/// How the first message of a link is authenticated.
enum LinkAuth {
    Token(SharedToken),
    /// TLS has authenticated the client already.
    Authenticated,
}

impl Admit for LinkAuth {
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
    /// Whether TLS authenticates clients. Otherwise the first message of the link does.
    tls_authenticates: bool,
    server: LinkServer<LinkAuth>,
    admission: Admission,
}

/// An accepted connection whose client is not authenticated yet.
pub(super) struct UnauthenticatedConnection {
    permit: Permit,
    connection: TcpStream,
    tls: Option<TlsAcceptor>,
    /// Whether TLS authenticates clients. Otherwise the first message of the link does.
    tls_authenticates: bool,
    server: LinkServer<LinkAuth>,
    pub(super) peer: SocketAddr,
}

/// The purpose of an authenticated connection.
pub(super) enum ConnectionPurpose {
    /// A new session.
    Session(Link),
    /// An existing session resumes.
    Resumption,
}

impl AgentListener {
    /// Listeners may share the permits of their unauthenticated connections.
    pub(super) async fn bind(
        listen: SocketAddr,
        auth: &ClientAuth,
        settings: ServerSettings,
        admission: Admission,
    ) -> Result<Self> {
        let listener = super::listen(listen).await?;
        let address = listener.local_addr()?;
        let tls = auth.acceptor()?;
        Ok(Self {
            listener,
            address,
            certificate: tls.as_ref().map(|(_, certificate)| *certificate),
            tls: tls.map(|(acceptor, _)| acceptor),
            tls_authenticates: matches!(auth, ClientAuth::Certificate(_)),
            server: LinkServer::new(settings, auth.link_auth()?),
            admission,
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
        let (connection, peer) = accept(&self.listener).await;
        UnauthenticatedConnection {
            permit: self.admission.admit(peer),
            connection,
            peer,
            tls: self.tls.clone(),
            tls_authenticates: self.tls_authenticates,
            server: self.server.clone(),
        }
    }
}

impl UnauthenticatedConnection {
    /// Authenticates the client and determines the purpose of the connection.
    pub(super) async fn authenticate(self) -> Result<ConnectionPurpose> {
        let Self {
            mut permit,
            connection,
            tls,
            tls_authenticates,
            server,
            ..
        } = self;
        link::set_tcp_options(&connection)?;
        let Some(tls) = tls else {
            let handshake = handshake(&server, connection);
            return permit.run(AUTHENTICATION_TIMEOUT, handshake).await?;
        };
        let pipe = permit
            .run(AUTHENTICATION_TIMEOUT, secure(&tls, connection))
            .await??;
        if tls_authenticates {
            drop(permit);
            return handshake(&server, pipe).await;
        }
        let handshake = handshake(&server, pipe);
        permit.run(AUTHENTICATION_TIMEOUT, handshake).await?
    }
}

/// Accepts TLS, which rejects clients without the right certificate.
async fn secure(tls: &TlsAcceptor, mut connection: TcpStream) -> Result<impl Pipe + use<>> {
    let upgraded = accept_upgrade(&mut connection).await;
    upgraded.context("the client did not request a link")?;
    let accepted = accept_link(tls, connection).await;
    accepted.context("the TLS handshake failed")
}

async fn handshake(server: &LinkServer<LinkAuth>, pipe: impl Pipe) -> Result<ConnectionPurpose> {
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

#[cfg(test)]
mod tests;
