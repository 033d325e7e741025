//! A tunnel agent: the real carrier, a scripted control stream, and no API server.

use std::sync::Arc;

use api::hub::{AgentMessage, HubMessage};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tunnel::lines::{LineReceiver, channel};
use tunnel::{Credentials, Ended, Status};

use super::http_client::client_config;
use super::{HANG, Identity, TestHub};
use crate::body::{Body, full};

/// The certificate of an agent, which a renewal replaces.
#[derive(Clone)]
pub(crate) struct TestCredentials(Arc<Mutex<(Identity, String)>>);

impl TestCredentials {
    pub(crate) fn new(certificate: &str, key: &str, authorities: &str) -> Self {
        let identity = Identity {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
        };
        Self(Arc::new(Mutex::new((identity, authorities.to_owned()))))
    }

    pub(crate) fn identity(&self) -> Identity {
        self.0.lock().0.clone()
    }

    pub(crate) fn authorities(&self) -> String {
        self.0.lock().1.clone()
    }

    pub(crate) fn replace(&self, certificate: &str, key: &str) {
        let identity = Identity {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
        };
        self.0.lock().0 = identity;
    }

    pub(crate) fn trust(&self, authorities: &str) {
        self.0.lock().1 = authorities.to_owned();
    }
}

impl Credentials for TestCredentials {
    fn tls(&self) -> Arc<ClientConfig> {
        client_config(&self.authorities(), Some(&self.identity()))
    }
}

pub(crate) struct TestAgent {
    pub(crate) credentials: TestCredentials,
    _status: watch::Receiver<Status>,
    received: tokio::sync::Mutex<mpsc::UnboundedReceiver<HubMessage>>,
    send: mpsc::UnboundedSender<AgentMessage>,
    _running: tokio::task::JoinHandle<Ended>,
    _stop: DropGuard,
}

impl TestAgent {
    /// Connects, and says hello.
    pub(crate) fn start(hub: &TestHub, cluster: &str, credentials: &TestCredentials) -> Self {
        let url = format!("wss://{}", hub.agents);
        let settings = tunnel::Settings {
            // The control stream stays open.
            drain_timeout: std::time::Duration::from_millis(100),
            ..tunnel::Settings::new(url, cluster)
        };
        let (report, received) = mpsc::unbounded_channel();
        let (send, messages) = mpsc::unbounded_channel();
        let (status_sender, status) = watch::channel(Status::Connecting);
        let messages = Arc::new(tokio::sync::Mutex::new(messages));
        let service = tower::service_fn(move |request: Request<tunnel::Body>| {
            let (report, messages) = (report.clone(), Arc::clone(&messages));
            async move { Ok::<_, std::io::Error>(control(request, report, messages)) }
        });
        let stop = CancellationToken::new();
        let running = tunnel::run(
            settings,
            Arc::new(credentials.clone()),
            service,
            status_sender,
            stop.clone(),
        );
        let _ = send.send(AgentMessage::Hello {
            version: "1.2.3".to_owned(),
            kubernetes_version: Some("v1.34.0".to_owned()),
        });
        Self {
            credentials: credentials.clone(),
            _status: status,
            received: tokio::sync::Mutex::new(received),
            send,
            _running: tokio::spawn(running),
            _stop: stop.drop_guard(),
        }
    }

    pub(crate) fn send(&self, message: AgentMessage) {
        self.send.send(message).unwrap();
    }

    /// The next message of the hub that a test is interested in.
    pub(crate) async fn receive<T>(&self, mut find: impl FnMut(HubMessage) -> Option<T>) -> T {
        let mut received = self.received.lock().await;
        let receiving = async {
            loop {
                if let Some(found) = find(received.recv().await.unwrap()) {
                    return found;
                }
            }
        };
        timeout(HANG, receiving).await.unwrap()
    }
}

/// Serves the control stream.
fn control(
    request: Request<tunnel::Body>,
    report: mpsc::UnboundedSender<HubMessage>,
    messages: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<AgentMessage>>>,
) -> Response<Body> {
    if request.uri().path() != "/.standin/control" {
        return Response::new(full("from the cluster"));
    }
    let mut received = LineReceiver::new(request.into_body());
    let (mut sender, body) = channel();
    tokio::spawn(async move {
        let mut messages = messages.lock().await;
        loop {
            tokio::select! {
                message = received.next() => match message {
                    Ok(Some(message)) => drop(report.send(message)),
                    _ => return,
                },
                Some(message) = messages.recv() => if sender.send(&message).await.is_err() {
                    return;
                },
            }
        }
    });
    Response::new(body.map_err(Into::into).boxed_unsync())
}
