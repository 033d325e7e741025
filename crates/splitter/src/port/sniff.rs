//! Reads the first bytes of a connection, from the client or from the server, to detect its protocol.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::time::Sleep;

use super::Upstreams;
use crate::claims::ActiveClaim;
use crate::detect::{Protocol, detect, is_http2_settings};
use crate::http1::upstream::{Route, UpstreamConnection};
use crate::relay::NoResponse;
use crate::stream::{BoxFuture, BoxStream, ConnectionMeta, Read, Rewind, WriteBuffer, poll_read};

/// The result of sniffing a connection.
pub(super) struct Sniffed {
    pub(super) protocol: Protocol,
    /// The bytes that the client has sent.
    pub(super) bytes: BytesMut,
    /// An upstream connection that was opened in the meantime.
    pub(super) upstream: Option<UpstreamConnection>,
    /// The bytes that the upstream has sent.
    pub(super) to_client: WriteBuffer,
}

/// Waits for the first bytes from either side. It opens an upstream connection at the same time, because in many protocols
/// the server speaks first and the client waits for it. On ports where clients usually speak first, the upstream connection
/// is only opened for clients that stay silent. Returns `None` if no upstream can be reached.
pub(super) async fn sniff(
    upstreams: &Upstreams,
    client: &mut BoxStream,
    meta: &ConnectionMeta,
    owner: Option<&Arc<ActiveClaim>>,
    have_certificates: bool,
) -> Option<Sniffed> {
    let settings = &upstreams.port.settings;
    let mut sniffer = Sniffer {
        read_size: settings.memory.read_size(),
        have_certificates,
        bytes: BytesMut::new(),
        opening: None,
        upstream: None,
        to_client: WriteBuffer::default(),
        server_sent_http2_settings: false,
        silence_timer: upstreams
            .port
            .clients_usually_speak_first()
            .then(|| Box::pin(tokio::time::sleep(settings.client_silence_timeout))),
        head_timer: None,
    };
    let protocol = poll_fn(|context| {
        if let Poll::Ready(protocol) = sniffer.poll_client(client, context) {
            return Poll::Ready(Some(protocol));
        }
        if !sniffer.bytes.is_empty() {
            let head_timer = sniffer
                .head_timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(settings.head_timeout)));
            if head_timer.as_mut().poll(context).is_ready() {
                return Poll::Ready(Some(Protocol::Raw));
            }
        }
        if let Some(silence_timer) = &mut sniffer.silence_timer {
            if silence_timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            sniffer.silence_timer = None;
        }
        loop {
            if sniffer.upstream.is_none() {
                let opening = sniffer
                    .opening
                    .get_or_insert_with(|| Box::pin(upstreams.open_owner(owner, meta)));
                match opening.as_mut().poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(None) => return Poll::Ready(None),
                    Poll::Ready(upstream) => sniffer.upstream = upstream,
                }
            }
            if sniffer.server_sent_http2_settings {
                return Poll::Pending;
            }
            match ready!(sniffer.poll_server(context)) {
                ServerEvent::SpokeFirst => return Poll::Ready(Some(Protocol::Raw)),
                ServerEvent::Http2Settings => return Poll::Pending,
                ServerEvent::SessionFailed {
                    active,
                    closed_cleanly,
                } => {
                    let no_response = NoResponse {
                        request: Some(BytesMut::new()),
                        closed_cleanly,
                    };
                    upstreams.report_no_response(&active, &no_response);
                    sniffer.opening = Some(Box::pin(upstreams.open_owner(None, meta)));
                }
            }
        }
    })
    .await?;
    Some(Sniffed {
        protocol,
        bytes: sniffer.bytes,
        upstream: sniffer.upstream,
        to_client: sniffer.to_client,
    })
}

struct Sniffer<'a> {
    read_size: usize,
    have_certificates: bool,
    bytes: BytesMut,
    opening: Option<BoxFuture<'a, Option<UpstreamConnection>>>,
    upstream: Option<UpstreamConnection>,
    to_client: WriteBuffer,
    /// The server has sent its HTTP/2 settings, and waits for the client.
    server_sent_http2_settings: bool,
    silence_timer: Option<Pin<Box<Sleep>>>,
    head_timer: Option<Pin<Box<Sleep>>>,
}

impl Sniffer<'_> {
    fn poll_client(&mut self, client: &mut BoxStream, context: &mut Context<'_>) -> Poll<Protocol> {
        loop {
            let read = poll_read(client, self.read_size, context, |bytes, _| {
                self.bytes.extend_from_slice(bytes);
            });
            match read {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(Read::Bytes(()))) => {
                    if let Some(protocol) = detect(&self.bytes, self.have_certificates) {
                        return Poll::Ready(protocol);
                    }
                }
                // The end of the stream, or its error, is forwarded as well.
                Poll::Ready(Ok(Read::End) | Err(_)) => return Poll::Ready(Protocol::Raw),
            }
        }
    }

    fn poll_server(&mut self, context: &mut Context<'_>) -> Poll<ServerEvent> {
        let Some(mut upstream) = self.upstream.take() else {
            return Poll::Pending;
        };
        let mut first = BytesMut::new();
        let read = poll_read(&mut upstream.stream, self.read_size, context, |bytes, _| {
            first.extend_from_slice(bytes);
        });
        if read.is_ready() && is_http2_settings(&first) {
            self.server_sent_http2_settings = true;
            upstream.stream = Box::new(Rewind::new(first, upstream.stream));
            self.upstream = Some(upstream);
            return Poll::Ready(ServerEvent::Http2Settings);
        }
        if let (Poll::Ready(Ok(Read::End) | Err(_)), Route::Claim(active)) =
            (&read, &upstream.route)
        {
            return Poll::Ready(ServerEvent::SessionFailed {
                active: active.clone(),
                closed_cleanly: matches!(read, Poll::Ready(Ok(_))),
            });
        }
        self.to_client.push(&first);
        self.upstream = Some(upstream);
        // The server has either sent bytes or ended its stream before the client has sent anything.
        read.map(|_| ServerEvent::SpokeFirst)
    }
}

/// What a server does before the client has sent anything.
enum ServerEvent {
    SpokeFirst,
    /// The server has sent its HTTP/2 settings, and waits for the client.
    Http2Settings,
    /// The server is a session, and has failed.
    SessionFailed {
        active: Arc<ActiveClaim>,
        closed_cleanly: bool,
    },
}
