//! A port of a pod, through the API server. Each dial is a port-forward of its own.

use std::fmt;
use std::io;

use http::{Request, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kube::Client;
use link::Dial;
use link::websocket::{Role, Upgrade, WebSocketPipe, WebSocketStream};

use crate::error::chain;

/// How the connection to one port is carried, with one byte in front of each message.
const PROTOCOL: &str = "v4.channel.k8s.io";

/// Dials one port of a pod. The port must be open on the pod's own localhost.
#[derive(Clone)]
pub struct PortForward {
    client: Client,
    path: String,
}

impl PortForward {
    pub fn new(client: Client, namespace: &str, pod: &str, port: u16) -> Self {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/portforward?ports={port}");
        Self { client, path }
    }
}

impl Dial for PortForward {
    type Pipe = WebSocketPipe<TokioIo<Upgraded>>;

    async fn dial(&self) -> io::Result<Self::Pipe> {
        let upgrade = Upgrade::to(PROTOCOL);
        let request = upgrade
            .ask(Request::get(&self.path))
            .body(kube::client::Body::empty())
            .map_err(io::Error::other)?;
        let response = self
            .client
            .send(request)
            .await
            .map_err(|error| io::Error::other(chain(&error)))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refused(response.status()));
        }
        if !upgrade.is_accepted(response.headers()) {
            let text = "what answers for the API server is no WebSocket";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let upgraded = hyper::upgrade::on(response)
            .await
            .map_err(io::Error::other)?;
        let socket =
            WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await;
        Ok(WebSocketPipe::port_forward(socket))
    }
}

fn refused(status: StatusCode) -> io::Error {
    let kind = match status {
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => io::ErrorKind::PermissionDenied,
        StatusCode::NOT_FOUND => io::ErrorKind::NotFound,
        _ => io::ErrorKind::ConnectionRefused,
    };
    io::Error::new(
        kind,
        format!("the API server answers {status} to a port-forward"),
    )
}

impl fmt::Debug for PortForward {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("PortForward");
        debug.field("path", &self.path).finish_non_exhaustive()
    }
}
