//! One connection of a session to the operator.

use std::fmt;
use std::io;
use std::pin::pin;

use api::connect::{
    AgentEndpoints, CLIENT_CERTIFICATE_HEADER, CLIENT_HOSTNAME_HEADER, CLIENT_NAME_HEADER,
    CLIENT_VERSION_HEADER, ConnectParameters, SESSION_ID_HEADER,
};
use api::session::SessionId;
use api::{GROUP_VERSION, TargetPath};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use link::Dial;
use link::channels::{Channel, Channels, Event, websocket_config};
use link::tls::Identity;
use link::upgrade::PROTOCOL;
use link::websocket::{Role, Upgrade, WebSocketStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::refusal::{ErrorResponse, RequestContext};
use crate::access::Cluster;
use crate::error::{Error, Result};

/// A session through an operator. Its id and the client's identity are the same for each connection.
pub struct OperatorSession {
    cluster: Cluster,
    context: RequestContext,
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
    /// The endpoints of agents, as the operator reports them.
    pub endpoints: watch::Receiver<AgentEndpoints>,
    /// Why the connection has ended, sent by the driver.
    end: watch::Receiver<String>,
    driver: AbortHandle,
}

/// Dials the agent of one endpoint.
#[derive(Clone, Debug)]
pub struct EndpointDialer {
    channels: Channels,
    endpoint: u32,
}

impl OperatorSession {
    /// `id` must be unique among sessions.
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
            context: RequestContext::session(namespace, target),
            path,
            id,
            certificate: STANDARD.encode(identity.certificate()),
            hostname: String::new(),
            username: String::new(),
        }
    }

    /// Sets the names of user and host that lists of sessions show.
    #[must_use]
    pub fn with_client_names(mut self, username: &str, hostname: &str) -> Self {
        self.username = header_text(username);
        self.hostname = header_text(hostname);
        self
    }

    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Connects. The operator accepts the connection once the session's agents are ready.
    pub async fn connect(&self) -> Result<OperatorConnection> {
        let action = "connect to the operator";
        let upgrade = Upgrade::to(PROTOCOL);
        let request = self.request(&upgrade);
        let request = request.map_err(|error| Error::api(action, kube::Error::HttpError(error)))?;
        let response = self.cluster.client.send(request).await;
        let response = response.map_err(|error| self.cluster.first_error(action, error))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(ErrorResponse::read(response).await.explain(&self.context));
        }
        if !upgrade.is_accepted(response.headers()) {
            return Err(Error::IncompatibleOperator);
        }
        let upgraded = hyper::upgrade::on(response).await;
        let upgraded = upgraded.map_err(|error| {
            self.cluster
                .first_error(action, kube::Error::HyperError(error))
        })?;
        let socket = TokioIo::new(upgraded);
        let socket =
            WebSocketStream::from_raw_socket(socket, Role::Client, Some(websocket_config())).await;
        Ok(OperatorConnection::over(socket))
    }

    fn request(&self, upgrade: &Upgrade) -> http::Result<Request<kube::client::Body>> {
        upgrade
            .add_headers(Request::get(&self.path))
            .header(SESSION_ID_HEADER, self.id.0)
            .header(CLIENT_CERTIFICATE_HEADER, &self.certificate)
            .header(CLIENT_NAME_HEADER, &self.username)
            .header(CLIENT_HOSTNAME_HEADER, &self.hostname)
            .header(CLIENT_VERSION_HEADER, env!("CARGO_PKG_VERSION"))
            .body(kube::client::Body::empty())
    }
}

/// Replaces the characters that a header cannot carry.
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
        let (endpoints_sender, endpoints) = watch::channel(AgentEndpoints::default());
        let (end_sender, end) = watch::channel(String::new());
        let driver = tokio::spawn(async move {
            let mut reading = pin!(read_events(events, endpoints_sender));
            let why = tokio::select! {
                biased;
                why = &mut reading => why,
                ended = driver => match ended {
                    // The last events may not have been read yet.
                    Ok(()) => reading.await,
                    Err(error) => error.to_string(),
                },
            };
            end_sender.send_replace(why);
        });
        OperatorConnection {
            channels,
            endpoints,
            end,
            driver: driver.abort_handle(),
        }
    }

    /// A dialer of the agent of an endpoint. Each dial opens another channel.
    pub fn dialer(&self, endpoint: u32) -> EndpointDialer {
        EndpointDialer {
            channels: self.channels.clone(),
            endpoint,
        }
    }

    pub(super) fn open(&self, endpoint: u32) -> Channel {
        self.channels.open(endpoint)
    }

    /// Waits until no channel is open any more.
    pub(super) async fn unused(&self) {
        self.channels.all_released().await;
    }

    /// Notifies the operator of the end of the session, so that it does not wait for the client to resume it.
    pub fn end_session(&self) {
        self.channels.send_finished();
    }

    /// Completes when the connection has ended, with the reason if the operator sent one.
    pub async fn ended(&self) -> String {
        let mut end = self.end.clone();
        while end.changed().await.is_ok() {}
        end.borrow().clone()
    }
}

async fn read_events(
    mut events: mpsc::UnboundedReceiver<Event>,
    endpoints_sender: watch::Sender<AgentEndpoints>,
) -> String {
    while let Some(event) = events.recv().await {
        match event {
            Event::Message(message) => {
                if let Ok(endpoints) = serde_json::from_slice(&message) {
                    endpoints_sender.send_replace(endpoints);
                }
            }
            Event::Closed(reason) => return reason,
            Event::Opened { .. } | Event::Finished => {}
        }
    }
    String::new()
}

impl Drop for OperatorConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Dial for EndpointDialer {
    type Pipe = Channel;

    async fn dial(&self) -> io::Result<Channel> {
        Ok(self.channels.open(self.endpoint))
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
