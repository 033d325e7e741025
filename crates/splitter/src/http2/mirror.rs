//! Mirrors of single streams, for sessions that mirror some of the requests.
//!
//! A mirror never slows its stream: data that the session has not accepted yet is buffered. When the mirrors of a client's
//! streams reach the memory limit, the one that would exceed it is dropped.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use h2::client::ResponseFuture;
use http::request::Parts;
use http::{HeaderMap, Request};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::body::send_data;
use super::connections::Http2Connections;
use super::exchange::clone_head;
use crate::claims::ActiveClaim;
use crate::http1::upstream::Route;
use crate::mirror::{DRAIN_TIMEOUT, MirrorBudget};
use crate::settings::{Notice, Settings};

/// Approximate memory of a part of a stream, without its data.
const PART_OVERHEAD: usize = 64;
/// Approximate memory of a stream, without its body.
const STREAM_OVERHEAD: usize = 8 * 1024;

/// Counts the bytes that are buffered for mirrors of one client's streams to one session.
#[derive(Debug)]
pub(super) struct ClientBudget {
    active: Arc<ActiveClaim>,
    used: MirrorBudget,
    was_notified: AtomicBool,
}

/// The input of a stream's mirror. Dropping it before the end resets the mirrored stream.
pub(super) struct StreamMirror {
    budget: Arc<ClientBudget>,
    limits: Limits,
    /// To the delivery task. `None` when the mirror has ended.
    parts: Option<mpsc::UnboundedSender<Part>>,
    /// Tells the delivery task that the mirror was dropped.
    dropped: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
enum Part {
    Data(Bytes),
    End(Option<HeaderMap>),
}

impl StreamMirror {
    /// Starts a mirror of a stream, unless the memory limit is reached.
    pub(super) fn start(
        connections: &Arc<Http2Connections>,
        active: &Arc<ActiveClaim>,
        parts: &Parts,
        is_empty: bool,
    ) -> Option<Self> {
        let budget = connections.mirror_budget(active);
        let limits = Limits::new(&connections.upstreams.port.settings);
        if !budget.reserve(STREAM_OVERHEAD, limits) {
            notify_dropped(&budget);
            return None;
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let (dropped, on_drop) = oneshot::channel();
        let delivery = Delivery {
            connections: connections.clone(),
            budget: budget.clone(),
            parts: receiver,
        };
        tokio::spawn(delivery.run(clone_head(parts), is_empty, on_drop));
        Some(Self {
            budget,
            limits,
            parts: Some(sender),
            dropped: Some(dropped),
        })
    }

    /// Adds a part of the body. Drops the mirror if the memory limit is reached.
    pub(super) fn push(&mut self, data: &Bytes) {
        let Some(parts) = &self.parts else {
            return;
        };
        if !self.budget.reserve(data.len() + PART_OVERHEAD, self.limits) {
            self.parts = None;
            if let Some(dropped) = self.dropped.take() {
                let _ = dropped.send(());
            }
        } else if parts.send(Part::Data(data.clone())).is_err() {
            self.budget.release(data.len() + PART_OVERHEAD);
            self.parts = None;
        }
    }

    /// Ends the mirrored stream.
    pub(super) fn end(&mut self, trailers: Option<&HeaderMap>) {
        if let Some(parts) = self.parts.take() {
            let _ = parts.send(Part::End(trailers.cloned()));
        }
    }
}

/// Delivers a mirrored stream to its session.
struct Delivery {
    connections: Arc<Http2Connections>,
    budget: Arc<ClientBudget>,
    parts: mpsc::UnboundedReceiver<Part>,
}

impl Delivery {
    async fn run(mut self, request: Request<()>, is_empty: bool, on_drop: oneshot::Receiver<()>) {
        tokio::select! {
            delivered = self.deliver(request, is_empty) => if delivered.is_none() {
                tracing::debug!(holder = %self.budget.active.claim.holder, "stream mirror ended early");
            },
            Ok(()) = on_drop => notify_dropped(&self.budget),
        }
    }

    /// Returns `None` if the delivery failed. Dropping an h2 stream resets it.
    async fn deliver(&mut self, request: Request<()>, is_empty: bool) -> Option<()> {
        let route = Route::Claim(self.budget.active.clone());
        let mut session = self.connections.ready(&route).await.ok()?;
        let (response, mut stream) = session.send_request(request, is_empty).ok()?;
        let sending = async {
            if is_empty {
                return Ok(());
            }
            loop {
                match self.parts.recv().await.ok_or(())? {
                    Part::Data(data) => {
                        let length = data.len();
                        let sent =
                            send_data(&mut stream, data, false, self.connections.holder(), None)
                                .await;
                        self.budget.release(length + PART_OVERHEAD);
                        sent.map_err(drop)?;
                    }
                    Part::End(Some(trailers)) => {
                        return stream.send_trailers(trailers).map_err(drop);
                    }
                    Part::End(None) => {
                        return stream.send_data(Bytes::new(), true).map_err(drop);
                    }
                }
            }
        };
        let mut sending = pin!(sending);
        let mut discarding = pin!(discard(response));
        tokio::select! {
            sent = &mut sending => {
                sent.ok()?;
                let _ = timeout(DRAIN_TIMEOUT, discarding).await;
            }
            () = &mut discarding => sending.await.ok()?,
        }
        Some(())
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.parts.close();
        let mut pending = STREAM_OVERHEAD;
        while let Ok(part) = self.parts.try_recv() {
            if let Part::Data(data) = part {
                pending += data.len() + PART_OVERHEAD;
            }
        }
        self.budget.release(pending);
    }
}

/// Reads and discards a response.
async fn discard(response: ResponseFuture) {
    let Ok(response) = response.await else {
        return;
    };
    let mut body = response.into_body();
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
    }
}

/// Notifies the session that mirrors were dropped, once per client connection.
fn notify_dropped(budget: &ClientBudget) {
    if !budget.was_notified.swap(true, Ordering::Relaxed) {
        budget.active.notify(Notice::MirrorDropped);
    }
}

/// Maximum number of buffered bytes for one client's streams, and for the session.
#[derive(Debug, Clone, Copy)]
struct Limits {
    client: usize,
    session: usize,
}

impl Limits {
    fn new(settings: &Settings) -> Self {
        Self {
            client: settings.mirror_limit,
            session: settings.session_mirror_limit,
        }
    }
}

impl ClientBudget {
    pub(super) fn new(active: &Arc<ActiveClaim>) -> Self {
        Self {
            active: active.clone(),
            used: MirrorBudget::default(),
            was_notified: AtomicBool::new(false),
        }
    }

    fn reserve(&self, amount: usize, limits: Limits) -> bool {
        if !self.used.reserve(amount, limits.client) {
            return false;
        }
        let fits = self.active.mirror_budget.reserve(amount, limits.session);
        if !fits {
            self.used.release(amount);
        }
        fits
    }

    fn release(&self, amount: usize) {
        self.used.release(amount);
        self.active.mirror_budget.release(amount);
    }
}
