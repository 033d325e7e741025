//! One connection of a session to the operator.

use std::fmt;
use std::io;
use std::pin::pin;

use api::connect::{
    CLIENT_CERTIFICATE_HEADER, CLIENT_HOSTNAME_HEADER, CLIENT_NAME_HEADER, CLIENT_VERSION_HEADER,
    ConnectParameters, Places, SESSION_ID_HEADER,
};
use api::session::SessionId;
use api::{GROUP_VERSION, TargetPath};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use link::Dial;
use link::channels::{Channel, Channels, Event, limits};
use link::tls::Identity;
use link::upgrade::PROTOCOL;
use link::websocket::{Role, Upgrade, WebSocketStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::refusal::{Answered, Asked};
use crate::access::Cluster;
use crate::error::{Error, Result};

/// A session that an operator carries. The number and the identity are the same each time that it connects.
pub struct OperatorSession {
    cluster: Cluster,
    asked: Asked,
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
    /// Why the connection has ended, from the driver to whoever waits for it.
    end: watch::Receiver<String>,
    driver: AbortHandle,
}

/// Dials the agent of one place.
#[derive(Clone, Debug)]
pub struct PlaceDialer {
    channels: Channels,
    place: u32,
}

impl OperatorSession {
    /// `id` is any number that no other session has.
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
            cluster: cluster.clone(),
            asked: Asked::session(namespace, target),
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
        self.username = header_text(username);
        self.hostname = header_text(hostname);
        self
    }

    /// The number by which others know the session.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Connects, when the session's agents are there.
    pub async fn connect(&self) -> Result<OperatorConnection> {
        let action = "connect to the operator";
        let upgrade = Upgrade::to(PROTOCOL);
        let request = self.request(&upgrade);
        let request = request.map_err(|error| Error::api(action, kube::Error::HttpError(error)))?;
        let response = self.cluster.client.send(request).await;
        let response = response.map_err(|error| self.cluster.first_error(action, error))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(Answered::read(response).await.explain(&self.asked));
        }
        if !upgrade.is_accepted(response.headers()) {
            return Err(Error::ForeignOperator);
        }
        let upgraded = hyper::upgrade::on(response).await;
        let upgraded = upgraded.map_err(|error| {
            self.cluster
                .first_error(action, kube::Error::HyperError(error))
        })?;
        let socket = TokioIo::new(upgraded);
        let socket = WebSocketStream::from_raw_socket(socket, Role::Client, Some(limits())).await;
        Ok(OperatorConnection::over(socket))
    }

    fn request(&self, upgrade: &Upgrade) -> http::Result<Request<kube::client::Body>> {
        upgrade
            .ask(Request::get(&self.path))
            .header(SESSION_ID_HEADER, self.id.0)
            .header(CLIENT_CERTIFICATE_HEADER, &self.certificate)
            .header(CLIENT_NAME_HEADER, &self.username)
            .header(CLIENT_HOSTNAME_HEADER, &self.hostname)
            .header(CLIENT_VERSION_HEADER, env!("CARGO_PKG_VERSION"))
            .body(kube::client::Body::empty())
    }
}

/// What a header can carry of a text.
fn header_text(text: &str) -> String {
    let plain = |character: char| match character {
        ' '..='~' => character,
        _ => '?',
    };
    text.chars().map(plain).collect()
}

impl OperatorConnection {
    pub(super) fn over<S>(socket: WebSocketStream<S>) -> Self
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let (channels, events, driver) = Channels::over(socket);
        let (known, places) = watch::channel(Places::default());
        let (ends, end) = watch::channel(String::new());
        let driver = tokio::spawn(async move {
            let mut listening = pin!(listen(events, known));
            let why = tokio::select! {
                biased;
                why = &mut listening => why,
                ended = driver => match ended {
                    // What came last may not have been heard yet.
                    Ok(()) => listening.await,
                    Err(error) => error.to_string(),
                },
            };
            ends.send_replace(why);
        });
        OperatorConnection {
            channels,
            places,
            end,
            driver: driver.abort_handle(),
        }
    }

    /// Dials the agent of a place; each dial is another channel.
    pub fn dialer(&self, place: u32) -> PlaceDialer {
        PlaceDialer {
            channels: self.channels.clone(),
            place,
        }
    }

    pub(super) fn open(&self, place: u32) -> Channel {
        self.channels.open(place)
    }

    /// Waits until nobody uses it any more.
    pub(super) async fn unused(&self) {
        self.channels.unused().await;
    }

    /// Says that the session is done, so that nobody waits for us.
    pub fn say_farewell(&self) {
        self.channels.say_farewell();
    }

    /// Ends when the connection has, with the reason if one was given.
    pub async fn ended(&self) -> String {
        let mut end = self.end.clone();
        while end.changed().await.is_ok() {}
        end.borrow().clone()
    }
}

async fn listen(
    mut events: mpsc::UnboundedReceiver<Event>,
    known: watch::Sender<Places>,
) -> String {
    while let Some(event) = events.recv().await {
        match event {
            Event::News(news) => {
                if let Ok(places) = serde_json::from_slice(&news) {
                    known.send_replace(places);
                }
            }
            Event::Closed(reason) => return reason,
            Event::Opened { .. } | Event::Farewell => {}
        }
    }
    String::new()
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
