//! Sessions through an operator: one WebSocket through the API server, and channels to an agent in each pod.

use std::fmt;
use std::io;

use api::connect::{
    CLIENT_CERTIFICATE_HEADER, CLIENT_HOSTNAME_HEADER, CLIENT_NAME_HEADER, CLIENT_VERSION_HEADER,
    ConnectParameters, Places, SESSION_ID_HEADER,
};
use api::session::SessionId;
use api::{GROUP_VERSION, SUBPROTOCOL, TargetPath};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use kube::Client;
use link::Dial;
use link::channels::{Channel, Channels, Event};
use link::tls::Identity;
use link::websocket::{Role, WebSocketStream, accept_key, new_key};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use crate::access::Cluster;
use crate::error::chain;

/// A session that an operator carries. The number and the identity are the same each time that it connects.
pub struct OperatorSession {
    client: Client,
    path: String,
    id: SessionId,
    certificate: String,
    hostname: String,
    username: String,
}

/// One connection of a session. It ends when it is dropped.
#[derive(Debug)]
pub struct OperatorConnection {
    channels: Channels,
    /// Where agents are, as the operator says.
    pub places: watch::Receiver<Places>,
    driver: AbortHandle,
}

/// Dials the agent of one place.
#[derive(Clone, Debug)]
pub struct PlaceDialer {
    channels: Channels,
    place: u32,
}

impl OperatorSession {
    pub fn new(
        cluster: &Cluster,
        namespace: &str,
        target: &TargetPath,
        parameters: &ConnectParameters,
        id: SessionId,
        identity: &Identity,
    ) -> Self {
        let path = format!(
            "/apis/{GROUP_VERSION}/proxy/namespaces/{namespace}/targets/{}?{}",
            target.address(),
            parameters.query()
        );
        Self {
            client: cluster.client.clone(),
            path,
            id,
            certificate: STANDARD.encode(identity.certificate()),
            hostname: String::new(),
            username: String::new(),
        }
    }

    /// Who is there, for people who list sessions.
    #[must_use]
    pub fn introduce(mut self, username: &str, hostname: &str) -> Self {
        username.clone_into(&mut self.username);
        hostname.clone_into(&mut self.hostname);
        self
    }

    /// Connects, when the session's agents are there. A refusal is the operator's own words.
    pub async fn connect(&self) -> io::Result<OperatorConnection> {
        let key = new_key();
        let request = self.request(&key).map_err(io::Error::other)?;
        let response = self
            .client
            .send(request)
            .await
            .map_err(|error| io::Error::other(chain(&error)))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refused(response).await);
        }
        let expected = HeaderValue::from_str(&accept_key(&key)).ok();
        let headers = response.headers();
        let protocol = HeaderValue::from_static(SUBPROTOCOL);
        if headers.get(header::SEC_WEBSOCKET_ACCEPT) != expected.as_ref()
            || headers.get(header::SEC_WEBSOCKET_PROTOCOL) != Some(&protocol)
        {
            let text =
                "another operator, which standin does not understand, answers in this cluster";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let upgraded = hyper::upgrade::on(response)
            .await
            .map_err(io::Error::other)?;
        let socket = TokioIo::new(upgraded);
        let socket = WebSocketStream::from_raw_socket(socket, Role::Client, None).await;
        let (channels, events, driver) = Channels::over(socket);
        let (known, places) = watch::channel(Places::default());
        let driver = tokio::spawn(async move {
            tokio::select! {
                _ = driver => {}
                () = listen(events, known) => {}
            }
        });
        Ok(OperatorConnection {
            channels,
            places,
            driver: driver.abort_handle(),
        })
    }

    fn request(&self, key: &str) -> http::Result<Request<kube::client::Body>> {
        Request::get(&self.path)
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, key)
            .header(header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL)
            .header(SESSION_ID_HEADER, self.id.0)
            .header(CLIENT_CERTIFICATE_HEADER, &self.certificate)
            .header(CLIENT_NAME_HEADER, &self.username)
            .header(CLIENT_HOSTNAME_HEADER, &self.hostname)
            .header(CLIENT_VERSION_HEADER, env!("CARGO_PKG_VERSION"))
            .body(kube::client::Body::empty())
    }
}

async fn listen(mut events: mpsc::UnboundedReceiver<Event>, known: watch::Sender<Places>) {
    while let Some(event) = events.recv().await {
        if let Event::News(news) = event
            && let Ok(places) = serde_json::from_slice(&news)
        {
            known.send_replace(places);
        }
    }
}

/// A refusal is a `Status`, as everywhere in Kubernetes.
async fn refused(response: http::Response<kube::client::Body>) -> io::Error {
    let code = response.status();
    let body = response.into_body().collect().await;
    let bytes = body
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let message = serde_json::from_slice::<serde_json::Value>(&bytes)
        .ok()
        .and_then(|status| Some(status.get("message")?.as_str()?.to_owned()))
        .unwrap_or_else(|| format!("the API server answers {code}"));
    let kind = match code {
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => io::ErrorKind::PermissionDenied,
        StatusCode::NOT_FOUND | StatusCode::GONE => io::ErrorKind::NotFound,
        StatusCode::SERVICE_UNAVAILABLE => io::ErrorKind::ConnectionRefused,
        _ => io::ErrorKind::InvalidInput,
    };
    io::Error::new(kind, message)
}

impl OperatorConnection {
    /// Dials the agent of a place; each dial is another channel.
    pub fn dialer(&self, place: u32) -> PlaceDialer {
        PlaceDialer {
            channels: self.channels.clone(),
            place,
        }
    }

    /// Says that the session is done, so that nobody waits for us.
    pub fn say_farewell(&self) {
        self.channels.say_farewell();
    }

    /// Ends when the connection has.
    pub async fn ended(&self) {
        let mut places = self.places.clone();
        while places.changed().await.is_ok() {}
    }
}

impl Drop for OperatorConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Dial for PlaceDialer {
    type Pipe = Channel;

    async fn dial(&self) -> io::Result<Channel> {
        Ok(self.channels.open(self.place))
    }
}

impl fmt::Debug for OperatorSession {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("OperatorSession");
        debug
            .field("id", &self.id)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
