//! Upgraded HTTP/1.1 connections as streams of the tunnel: WebSocket, SPDY, or any other protocol.
//!
//! HTTP/2 has no upgrades. So the hub sends the same request with the name of the protocol in a header of its own; the
//! request's body is what the client sends after the upgrade, and the response's body what the server sends. The agent opens
//! the upgrade at the upstream server, and responds 200 with the server's headers, or with the server's own response if that
//! refuses.
//!
//! Each direction ends on its own, as that of a TCP connection does.

use std::io;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use link::http2::{BodySender, BoxBody, boxed};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::body::Body;
use crate::error::Error;
use crate::session::Session;

/// The protocol that the client asks for.
pub const UPGRADE_HEADER: HeaderName = HeaderName::from_static("standin-tunnel-upgrade");
/// The protocol that the server has changed to.
pub const UPGRADED_HEADER: HeaderName = HeaderName::from_static("standin-tunnel-upgraded");

/// Parts that wait to be sent, besides the one that is being sent.
const QUEUE: usize = 1;
/// The buffer of a direction is small while there is little to read, because most upgraded connections are idle.
const MIN_BUFFER: usize = 2 * 1024;
const MAX_BUFFER: usize = 64 * 1024;

/// The response to a request for an upgrade.
#[derive(Debug)]
pub enum Outcome {
    Upgraded(Upgraded),
    /// The server's own response.
    Refused(Response<Body>),
}

/// An upgraded connection to a server behind the agent.
#[derive(Debug)]
pub struct Upgraded {
    /// The headers of the server's response, with `Upgrade` and without other headers of the connection.
    pub headers: HeaderMap,
    /// What the server sends.
    pub reader: Body,
    /// To the server. Dropping it ends this direction.
    pub writer: BodySender,
}

/// How many bytes an upgraded connection has carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// Into the tunnel.
    pub sent: u64,
    /// Out of the tunnel.
    pub received: u64,
}

/// Whether a request asks for an upgrade, and to which protocol.
pub fn requested(headers: &HeaderMap) -> Option<&HeaderValue> {
    let connection = headers.get_all(header::CONNECTION);
    let is_upgrade = connection
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|value| value.trim().eq_ignore_ascii_case("upgrade"));
    headers.get(header::UPGRADE).filter(|_| is_upgrade)
}

impl Session {
    /// Asks for an upgrade at the server behind the agent. The request has to have an `Upgrade` header.
    ///
    /// # Errors
    /// As [`Session::send`].
    pub async fn upgrade(&self, mut request: Request<()>) -> Result<Outcome, Error> {
        let headers = request.headers_mut();
        let Some(protocol) = headers.remove(header::UPGRADE) else {
            let text = "the request asks for no protocol".to_owned();
            return Err(Error::Upgrade(text));
        };
        headers.remove(header::CONNECTION);
        headers.insert(UPGRADE_HEADER, protocol);
        let (writer, body) = link::http2::body(QUEUE);
        let request = boxed(request.map(|()| body));
        let response = self.send(request).await?;
        if response.status() != StatusCode::OK {
            return Ok(Outcome::Refused(response));
        }
        let (mut head, reader) = response.into_parts();
        let Some(protocol) = head.headers.remove(UPGRADED_HEADER) else {
            // A server that ignores the request for an upgrade.
            return Ok(Outcome::Refused(Response::from_parts(head, reader)));
        };
        head.headers.insert(header::UPGRADE, protocol);
        Ok(Outcome::Upgraded(Upgraded {
            headers: head.headers,
            reader,
            writer,
        }))
    }
}

/// The response for a client that asked for an upgrade, and what has to be done after it.
#[derive(Debug)]
pub struct Forwarded {
    pub response: Response<Body>,
    /// Copies the bytes of the upgraded connection. It has to run in a task of its own.
    pub copying: Option<Copying>,
}

/// An upgraded connection of a client, and its stream in the tunnel.
#[derive(Debug)]
pub struct Copying {
    client: OnUpgrade,
    /// A session that is dropped would close the tunnel.
    _session: Session,
    upgraded: Upgraded,
}

/// Forwards a client's request for an upgrade, on the hub's side.
///
/// # Errors
/// As [`Session::send`].
pub async fn forward<B>(session: &Session, mut request: Request<B>) -> Result<Forwarded, Error> {
    let client = hyper::upgrade::on(&mut request);
    match session.upgrade(request.map(drop)).await? {
        Outcome::Refused(response) => Ok(Forwarded {
            response,
            copying: None,
        }),
        Outcome::Upgraded(upgraded) => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            *response.headers_mut() = upgraded.headers.clone();
            let upgrade = HeaderValue::from_static("Upgrade");
            response.headers_mut().insert(header::CONNECTION, upgrade);
            Ok(Forwarded {
                response,
                copying: Some(Copying {
                    client,
                    upgraded,
                    _session: session.clone(),
                }),
            })
        }
    }
}

impl Copying {
    /// Copies bytes in both directions until both have ended, or the connection or the tunnel fails.
    ///
    /// # Errors
    /// When the client's connection fails, or the tunnel.
    pub async fn run(self) -> io::Result<Copied> {
        let client = self.client.await.map_err(io::Error::other)?;
        let Upgraded { reader, writer, .. } = self.upgraded;
        copy(TokioIo::new(client), reader, writer).await
    }
}

/// Serves a hub's request for an upgrade, on the agent's side: opens the upgrade over a new connection to the upstream
/// server. The request's headers are those for the server. Bytes are copied in a task of their own.
///
/// # Errors
/// When the upstream server does not answer with HTTP.
pub async fn serve(
    request: Request<Body>,
    upstream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<Response<BoxBody>, Error> {
    let (mut head, reader) = request.into_parts();
    let protocol = head.headers.remove(UPGRADE_HEADER);
    let protocol = protocol.ok_or_else(|| Error::Upgrade("it is none".to_owned()))?;
    head.headers.insert(header::UPGRADE, protocol);
    let upgrade = HeaderValue::from_static("Upgrade");
    head.headers.insert(header::CONNECTION, upgrade);
    head.version = http::Version::HTTP_11;
    let path = head.uri.path_and_query().cloned();
    head.uri = path.map_or_else(Default::default, http::Uri::from);
    let failed = |error: hyper::Error| Error::Upgrade(error_chain::error_chain(&error));
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(upstream));
    let (mut send, connection) = handshake.await.map_err(failed)?;
    tokio::spawn(connection.with_upgrades());
    let request = Request::from_parts(head, http_body_util::Empty::<Bytes>::new());
    let mut response = send.send_request(request).await.map_err(failed)?;
    // Only this end says that.
    response.headers_mut().remove(UPGRADED_HEADER);
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(response.map(box_incoming));
    }
    switch(response, reader).await
}

/// Copies an upstream connection that has changed its protocol, and describes it to the hub.
async fn switch(
    mut response: Response<Incoming>,
    reader: Body,
) -> Result<Response<BoxBody>, Error> {
    let upgraded = hyper::upgrade::on(&mut response).await;
    let upstream = upgraded.map_err(|error| Error::Upgrade(error_chain::error_chain(&error)))?;
    let (writer, body) = link::http2::body(QUEUE);
    tokio::spawn(async move {
        if let Err(error) = copy(TokioIo::new(upstream), reader, writer).await {
            tracing::debug!(%error, "upgraded connection failed");
        }
    });
    let mut headers = std::mem::take(response.headers_mut());
    headers.remove(header::CONNECTION);
    let protocol = headers.remove(header::UPGRADE);
    let unnamed = HeaderValue::from_static("");
    headers.insert(UPGRADED_HEADER, protocol.unwrap_or(unnamed));
    let mut response = Response::new(body.boxed_unsync());
    *response.headers_mut() = headers;
    Ok(response)
}

fn box_incoming(body: Incoming) -> BoxBody {
    body.map_err(Into::into).boxed_unsync()
}

/// Copies bytes between a connection and a stream of the tunnel until both directions have ended. Each ends on its own: a
/// program may exit without reading all of its input, and its output must still arrive.
///
/// # Errors
/// When either direction has failed.
pub async fn copy(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    reader: Body,
    writer: BodySender,
) -> io::Result<Copied> {
    let (mut read, mut write) = tokio::io::split(connection);
    let (sent, received) = tokio::join!(
        copy_into_tunnel(&mut read, writer),
        copy_out_of_tunnel(reader, &mut write),
    );
    Ok(Copied {
        sent: sent?,
        received: received?,
    })
}

async fn copy_into_tunnel(
    connection: &mut (impl AsyncRead + Unpin),
    mut writer: BodySender,
) -> io::Result<u64> {
    let mut total = 0;
    let mut size = MIN_BUFFER;
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(size);
        match connection.read_buf(&mut buffer).await {
            Ok(0) => return Ok(total),
            Ok(count) => {
                total += count as u64;
                size = next_size(size, count);
                let sent = writer.send_data(buffer.split().freeze()).await;
                sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
            }
            Err(error) => {
                let kind = error.kind();
                writer.abort(error.into());
                return Err(kind.into());
            }
        }
    }
}

/// The size of the next read: larger after one that was full, smaller after one that was nearly empty.
fn next_size(size: usize, count: usize) -> usize {
    if count >= size {
        (size * 2).min(MAX_BUFFER)
    } else if count < size / 4 {
        (size / 2).max(MIN_BUFFER)
    } else {
        size
    }
}

async fn copy_out_of_tunnel(
    mut reader: Body,
    connection: &mut (impl AsyncWrite + Unpin),
) -> io::Result<u64> {
    let copied = write_frames(&mut reader, connection).await;
    // Also after a failure: otherwise the other side would keep its half open for ever.
    let ended = connection.shutdown().await;
    let total = copied?;
    ended.map(|()| total)
}

async fn write_frames(
    reader: &mut Body,
    connection: &mut (impl AsyncWrite + Unpin),
) -> io::Result<u64> {
    let mut total = 0;
    while let Some(frame) = reader.frame().await {
        let Ok(data) = frame.map_err(io::Error::other)?.into_data() else {
            continue;
        };
        total += data.len() as u64;
        connection.write_all(&data).await?;
        connection.flush().await?;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_requests_ask_for_an_upgrade() {
        let check = |connection: &[&'static str], upgrade: Option<&'static str>, expected| {
            let mut headers = HeaderMap::new();
            for value in connection {
                headers.append(header::CONNECTION, HeaderValue::from_static(value));
            }
            if let Some(upgrade) = upgrade {
                headers.insert(header::UPGRADE, HeaderValue::from_static(upgrade));
            }
            assert_eq!(requested(&headers).is_some(), expected);
        };
        check(&["Upgrade"], Some("websocket"), true);
        check(&["keep-alive, upgrade"], Some("SPDY/3.1"), true);
        check(&["keep-alive", "Upgrade"], Some("SPDY/3.1"), true);
        check(&["keep-alive"], Some("websocket"), false);
        check(&[], Some("websocket"), false);
        check(&["Upgrade"], None, false);
    }

    #[test]
    fn the_buffer_follows_what_is_read() {
        let mut size = MIN_BUFFER;
        for _ in 0..20 {
            size = next_size(size, size);
        }
        assert_eq!(size, MAX_BUFFER);
        for _ in 0..20 {
            size = next_size(size, 1);
        }
        assert_eq!(size, MIN_BUFFER);
    }
}
