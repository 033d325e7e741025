//! The hub's side: answers an agent's upgrade request, and returns sessions.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{Empty, Full};
use hyper_util::rt::TokioIo;
use link::websocket::accept_key;
use link::{LinkServer, SharedToken, Token};
use tokio::time::timeout;

use crate::error::Error;
use crate::greeting::{
    CLUSTER_HEADER, SUBPROTOCOL, VERSION, VERSION_HEADER, is_compatible, version,
};
use crate::session::Session;
use crate::settings::AcceptorSettings;
use crate::websocket::{Role, WebSocketPipe};

/// Accepts the tunnels of agents. Clones share their sessions.
#[derive(Clone)]
pub struct Acceptor {
    server: LinkServer<SharedToken>,
    settings: Arc<AcceptorSettings>,
}

/// The result of an upgrade.
#[derive(Debug)]
pub enum Accepted {
    /// An agent has opened a tunnel.
    New(Session),
    /// An agent has resumed its tunnel after an interruption. Its session continues.
    Resumed,
}

impl Acceptor {
    pub fn new(settings: AcceptorSettings) -> Self {
        // The peers are authenticated before, so none is ever admitted by its token.
        let no_token = SharedToken(Token::default());
        Self {
            server: LinkServer::new(settings.link(), no_token),
            settings: Arc::new(settings),
        }
    }

    /// Answers the upgrade request of an authenticated agent. `peer` is the name of its cluster, as its certificate says.
    ///
    /// The response goes back to the agent. The future has to be polled in a task of its own, because the upgrade is only
    /// complete when the response was sent.
    ///
    /// # Errors
    /// When the request is no upgrade to a tunnel of this version, or claims another cluster.
    pub fn accept<B>(
        &self,
        peer: &str,
        request: &mut Request<B>,
    ) -> Result<
        (
            Response<Empty<Bytes>>,
            impl Future<Output = Result<Accepted, Error>> + Send + use<B>,
        ),
        Refused,
    > {
        let ours = self.settings.version;
        let (theirs, key) = check(request.headers(), peer, ours)?;
        let response = switching_protocols(&key, ours).ok_or_else(|| Refused {
            status: StatusCode::BAD_REQUEST,
            text: "the WebSocket key cannot be used".to_owned(),
            version: ours,
        })?;
        let upgrade = hyper::upgrade::on(request);
        let (server, peer) = (self.server.clone(), peer.to_owned());
        let settings = Arc::clone(&self.settings);
        let accepting = async move {
            let lost = |error: std::io::Error| Error::Lost {
                address: peer.clone(),
                source: Arc::new(error),
            };
            let upgraded = timeout(settings.handshake_timeout, upgrade).await;
            let upgraded = upgraded
                .map_err(|_| lost(std::io::ErrorKind::TimedOut.into()))?
                .map_err(|error| lost(std::io::Error::other(error)))?;
            let pipe = WebSocketPipe::new(TokioIo::new(upgraded), Role::Server);
            match server.accept_authenticated(pipe, &peer).await {
                Ok(link::Accepted::New(link)) => {
                    let session = Session::start(link, theirs, settings.limits).await?;
                    Ok(Accepted::New(session))
                }
                Ok(link::Accepted::Resumed(_)) => Ok(Accepted::Resumed),
                Err(error) => Err(Error::Link(error)),
            }
        };
        Ok((response, accepting))
    }

    /// The number of sessions, also of those that are interrupted.
    pub fn sessions(&self) -> usize {
        self.server.links()
    }
}

/// The agent's version and its WebSocket key.
fn check(headers: &HeaderMap, peer: &str, ours: u16) -> Result<(u16, String), Refused> {
    let refused = |status, text: String| Refused {
        status,
        text,
        version: ours,
    };
    let is = |name, expected: &str| {
        headers.get(name).is_some_and(|value: &HeaderValue| {
            value.as_bytes().eq_ignore_ascii_case(expected.as_bytes())
        })
    };
    let theirs = version(headers);
    let key = headers
        .get(header::SEC_WEBSOCKET_KEY)
        .and_then(|key| key.to_str().ok());
    let (Some(theirs), Some(key), true) = (theirs, key, is(header::UPGRADE, "websocket")) else {
        let text = "this address is for tunnel agents, which open a WebSocket here. An agent that sees this is behind something that terminates HTTP: use TCP passthrough";
        return Err(refused(StatusCode::UPGRADE_REQUIRED, text.to_owned()));
    };
    if !is_compatible(ours, theirs) {
        let text = format!(
            "the hub uses version {ours} of the tunnel protocol and the agent version {theirs}: upgrade the older one"
        );
        return Err(refused(StatusCode::UPGRADE_REQUIRED, text));
    }
    if !is(header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL) {
        let text = format!("the agent has to ask for the subprotocol {SUBPROTOCOL}");
        return Err(refused(StatusCode::BAD_REQUEST, text));
    }
    match headers.get(CLUSTER_HEADER) {
        Some(claimed) if claimed.as_bytes() == peer.as_bytes() => Ok((theirs, key.to_owned())),
        Some(claimed) => {
            let claimed = String::from_utf8_lossy(claimed.as_bytes());
            let text = format!(
                "the agent claims to be cluster `{claimed}`, but its certificate is for `{peer}`"
            );
            Err(refused(StatusCode::FORBIDDEN, text))
        }
        None => {
            let text = "the agent does not say which cluster it is for".to_owned();
            Err(refused(StatusCode::BAD_REQUEST, text))
        }
    }
}

fn switching_protocols(key: &str, version: u16) -> Option<Response<Empty<Bytes>>> {
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_ACCEPT, accept_key(key))
        .header(header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL)
        .header(VERSION_HEADER, version)
        .body(Empty::new())
        .ok()
}

/// A request that opens no tunnel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refused {
    pub status: StatusCode,
    /// For people.
    pub text: String,
    version: u16,
}

impl Refused {
    /// Refuses an agent for a reason of the hub, such as a certificate that is revoked. The agent shows the text.
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
            version: VERSION,
        }
    }

    /// The response, with the reason as JSON.
    pub fn response(&self) -> Response<Full<Bytes>> {
        let body = serde_json::json!({ "error": self.text }).to_string();
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        headers.insert(VERSION_HEADER, HeaderValue::from(self.version));
        if self.status == StatusCode::UPGRADE_REQUIRED {
            headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        }
        response
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Acceptor");
        debug
            .field("sessions", &self.sessions())
            .finish_non_exhaustive()
    }
}
