//! Who speaks first, and what.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::time::Sleep;

use super::Way;
use crate::claims::HeldClaim;
use crate::detect::{Protocol, detect, is_http2_settings};
use crate::http1::leg::{Leg, Route};
use crate::relay::Unanswered;
use crate::stream::{Arrival, BoxFuture, BoxStream, Outbox, Read, Rewound, poll_read};

/// What the first bytes told.
pub(super) struct First {
    pub(super) protocol: Protocol,
    /// What the client has sent.
    pub(super) bytes: BytesMut,
    /// A connection that was made meanwhile.
    pub(super) leg: Option<Leg>,
    /// What came from there.
    pub(super) to_client: Outbox,
}

/// Waits for the first bytes, from whichever side. Meanwhile the connection is made for which the client may be waiting:
/// in many protocols the server speaks first. Where clients have been seen to speak first, that is done only for clients
/// that do not. `None` if there is nobody to connect to.
pub(super) async fn first(
    way: &Way,
    client: &mut BoxStream,
    arrival: &Arrival,
    owner: Option<&Arc<HeldClaim>>,
    have_certificates: bool,
) -> Option<First> {
    let settings = &way.port.settings;
    let mut waiting = Waiting {
        have_certificates,
        bytes: BytesMut::new(),
        opening: None,
        leg: None,
        to_client: Outbox::default(),
        server_speaks_http2: false,
        silence: way
            .port
            .expects_clients_to_speak()
            .then(|| Box::pin(tokio::time::sleep(settings.silence))),
        patience: None,
    };
    let protocol = poll_fn(|context| {
        if let Poll::Ready(protocol) = waiting.poll_client(client, context) {
            return Poll::Ready(Some(protocol));
        }
        if !waiting.bytes.is_empty() {
            let patience = waiting
                .patience
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(settings.head_within)));
            if patience.as_mut().poll(context).is_ready() {
                return Poll::Ready(Some(Protocol::Raw));
            }
        }
        if let Some(silence) = &mut waiting.silence {
            if silence.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            waiting.silence = None;
        }
        loop {
            if waiting.leg.is_none() {
                let opening = waiting
                    .opening
                    .get_or_insert_with(|| Box::pin(way.open_owner(owner, arrival)));
                match opening.as_mut().poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(None) => return Poll::Ready(None),
                    Poll::Ready(leg) => waiting.leg = leg,
                }
            }
            if waiting.server_speaks_http2 {
                return Poll::Pending;
            }
            match ready!(waiting.poll_server(context)) {
                Server::Speaks => return Poll::Ready(Some(Protocol::Raw)),
                Server::Greets => return Poll::Pending,
                Server::Failed { held, was_orderly } => {
                    let unanswered = Unanswered {
                        request: Some(BytesMut::new()),
                        was_orderly,
                    };
                    way.tell_unanswered(&held, &unanswered);
                    waiting.opening = Some(Box::pin(way.open_owner(None, arrival)));
                }
            }
        }
    })
    .await?;
    Some(First {
        protocol,
        bytes: waiting.bytes,
        leg: waiting.leg,
        to_client: waiting.to_client,
    })
}

struct Waiting<'a> {
    have_certificates: bool,
    bytes: BytesMut,
    opening: Option<BoxFuture<'a, Option<Leg>>>,
    leg: Option<Leg>,
    to_client: Outbox,
    /// The server has sent its settings, and waits for the client.
    server_speaks_http2: bool,
    silence: Option<Pin<Box<Sleep>>>,
    patience: Option<Pin<Box<Sleep>>>,
}

impl Waiting<'_> {
    fn poll_client(&mut self, client: &mut BoxStream, context: &mut Context<'_>) -> Poll<Protocol> {
        loop {
            let read = poll_read(client, context, |bytes, _| {
                self.bytes.extend_from_slice(bytes);
            });
            match read {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(Read::Bytes(()))) => {
                    if let Some(protocol) = detect(&self.bytes, self.have_certificates) {
                        return Poll::Ready(protocol);
                    }
                }
                // The end is passed on as well, and so is whatever broke.
                Poll::Ready(Ok(Read::End) | Err(_)) => return Poll::Ready(Protocol::Raw),
            }
        }
    }

    fn poll_server(&mut self, context: &mut Context<'_>) -> Poll<Server> {
        let Some(mut leg) = self.leg.take() else {
            return Poll::Pending;
        };
        let mut first = BytesMut::new();
        let read = poll_read(&mut leg.stream, context, |bytes, _| {
            first.extend_from_slice(bytes);
        });
        if read.is_ready() && is_http2_settings(&first) {
            self.server_speaks_http2 = true;
            leg.stream = Box::new(Rewound::new(first, leg.stream));
            self.leg = Some(leg);
            return Poll::Ready(Server::Greets);
        }
        if let (Poll::Ready(Ok(Read::End) | Err(_)), Route::Claim(held)) = (&read, &leg.route) {
            return Poll::Ready(Server::Failed {
                held: held.clone(),
                was_orderly: matches!(read, Poll::Ready(Ok(_))),
            });
        }
        self.to_client.push(&first);
        self.leg = Some(leg);
        // Whether it speaks or ends, it does so before the client.
        read.map(|_| Server::Speaks)
    }
}

/// What a server does before the client speaks.
enum Server {
    Speaks,
    /// It sends its HTTP/2 settings, and waits for the client.
    Greets,
    /// It is a session's, and has gone.
    Failed {
        held: Arc<HeldClaim>,
        was_orderly: bool,
    },
}
