//! Connections that a client upgrades, to WebSocket or SPDY: `exec`, `attach`, `port-forward`.
//!
//! HTTP/2 has no upgrades, so an upgraded connection is a stream whose two bodies are its two directions. Each direction
//! ends on its own.

use std::io;

use bytes::BytesMut;
use error_chain::error_chain;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_util::task::TaskTracker;
use tunnel::BodySender;
use tunnel::upgrade::{UPGRADE_HEADER, UPGRADED_HEADER, requested};

use crate::audit::AuditEntry;
use crate::body::{Body, full};
use crate::impersonate;

/// What Kubernetes clients upgrade to.
const PROTOCOLS: [&str; 2] = ["websocket", "SPDY/3.1"];
/// Parts that wait to be sent, besides the one that is being sent.
const QUEUE: usize = 1;
const BUFFER: usize = 16 * 1024;

/// A client's request for an upgrade.
pub(super) struct Upgrade {
    protocol: HeaderValue,
    client: OnUpgrade,
    /// To the server, as soon as the request is sent.
    sender: Option<BodySender>,
}

/// Whether the server has changed the protocol.
pub(super) fn is_upgraded(response: &Response<Body>) -> bool {
    response.status() == StatusCode::OK && response.headers().contains_key(UPGRADED_HEADER)
}

impl Upgrade {
    /// The upgrade that a request asks for. Others, such as that to HTTP/2, are not forwarded, and the request is made without
    /// them: then its body is not lost.
    pub(super) fn requested<B>(request: &mut Request<B>) -> Option<Self> {
        let protocol = requested(request.headers())?.clone();
        let is_known = PROTOCOLS
            .iter()
            .any(|known| protocol.as_bytes().eq_ignore_ascii_case(known.as_bytes()));
        // Other versions of HTTP have no such upgrades.
        let is_upgrade =
            is_known && !has_body(request.headers()) && request.version() == http::Version::HTTP_11;
        is_upgrade.then(|| Self {
            protocol,
            client: hyper::upgrade::on(request),
            sender: None,
        })
    }

    /// Makes the request one for an upgrade.
    pub(super) fn begin(&mut self, request: &mut Request<Body>) {
        let (sender, body) = tunnel::body(QUEUE);
        self.sender = Some(sender);
        *request.body_mut() = body.boxed_unsync();
        let headers = request.headers_mut();
        headers.insert(UPGRADE_HEADER, self.protocol.clone());
    }

    /// The response for the client. The bytes of the connection are copied in a task, at whose end the audit row is written.
    pub(super) fn finish(
        self,
        response: Response<Body>,
        mut entry: AuditEntry,
        tasks: &TaskTracker,
    ) -> Response<Body> {
        let (mut head, reader) = response.into_parts();
        let protocol = head.headers.remove(UPGRADED_HEADER);
        impersonate::clean_response(&mut head.headers);
        head.headers.remove(http::header::CONTENT_LENGTH);
        let mut response = Response::new(full(bytes::Bytes::new()));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.headers_mut() = head.headers;
        let headers = response.headers_mut();
        headers.insert(UPGRADE, protocol.unwrap_or(self.protocol));
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        entry.set_status(StatusCode::SWITCHING_PROTOCOLS);
        let (client, sender) = (self.client, self.sender);
        tasks.spawn(async move {
            let copied = async {
                let client = client.await.map_err(io::Error::other)?;
                copy(TokioIo::new(client), reader, sender).await
            };
            if let Err(error) = copied.await {
                entry.set_failed(&error_chain(&error));
            }
        });
        response
    }
}

fn has_body(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH);
    headers.contains_key(TRANSFER_ENCODING) || length.is_some_and(|length| length != "0")
}

/// Copies bytes until both directions have ended. Each ends on its own: a program may exit without reading all of its input, and
/// its output must still arrive.
async fn copy(
    connection: impl AsyncRead + AsyncWrite,
    reader: Body,
    sender: Option<BodySender>,
) -> io::Result<()> {
    let (mut read, mut write) = tokio::io::split(connection);
    let to_server = async {
        match sender {
            Some(sender) => send_all(&mut read, sender).await,
            None => Ok(()),
        }
    };
    let (sent, received) = tokio::join!(to_server, receive_all(reader, &mut write));
    received.and(sent)
}

async fn send_all(read: &mut (impl AsyncRead + Unpin), mut sender: BodySender) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(BUFFER);
        match read.read_buf(&mut buffer).await {
            Ok(0) => return Ok(()),
            Ok(_) => {
                let sent = sender.send_data(buffer.split().freeze()).await;
                sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
            }
            Err(error) => {
                sender.abort("the client's connection failed".into());
                return Err(error);
            }
        }
    }
}

async fn receive_all(mut reader: Body, write: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let received = write_frames(&mut reader, write).await;
    // Also after a failure: otherwise the client would keep its half open for ever.
    let ended = write.shutdown().await;
    received.and(ended)
}

async fn write_frames(reader: &mut Body, write: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    while let Some(frame) = reader.frame().await {
        if let Ok(data) = frame.map_err(io::Error::other)?.into_data() {
            write.write_all(&data).await?;
            write.flush().await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_upgrades_of_kubernetes_clients_without_a_body_are_upgrades() {
        let check = |protocol: &str, more: &[(&str, &str)], expected: bool| {
            let mut request = Request::post("/exec")
                .header("connection", "Upgrade, HTTP2-Settings")
                .header("upgrade", protocol);
            for (name, value) in more {
                request = request.header(*name, *value);
            }
            let mut request = request.body(()).unwrap();
            let upgrade = Upgrade::requested(&mut request);
            assert_eq!(upgrade.is_some(), expected, "{protocol} {more:?}");
        };
        check("websocket", &[], true);
        check("WebSocket", &[("content-length", "0")], true);
        check("SPDY/3.1", &[], true);
        check("h2c", &[], false);
        check("websocket", &[("content-length", "2")], false);
        check("SPDY/3.1", &[("transfer-encoding", "chunked")], false);
    }
}
