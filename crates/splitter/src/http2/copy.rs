//! Copies of single streams, for sessions that want a copy of some of the requests.
//!
//! A copy goes beside its stream and never holds it up: what the session has not taken yet waits in memory, and when all
//! copies of a client's streams together are too far behind, the one that would need more ends.

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
use super::exchange::copy_of;
use super::upstream::Upstreams;
use crate::claims::HeldClaim;
use crate::copy::{Budget, LINGER};
use crate::http1::leg::Route;
use crate::settings::{Notice, Settings};

/// What a part of a stream takes beside its bytes, roughly.
const PART: usize = 64;
/// What a stream takes beside its body, roughly.
const STREAM: usize = 1024;

/// What waits in memory of one client's streams for one session.
#[derive(Debug)]
pub(super) struct ClientBudget {
    held: Arc<HeldClaim>,
    used: Budget,
    was_told: AtomicBool,
}

/// The end of a copy that a stream goes into. Dropping it before the end resets the copy.
pub(super) struct StreamCopy {
    budget: Arc<ClientBudget>,
    limits: Limits,
    /// From the stream to the task that delivers its copy. `None` when there is nothing more to say.
    parts: Option<mpsc::UnboundedSender<Part>>,
    /// Tells that task to give up.
    fell_behind: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
enum Part {
    Data(Bytes),
    End(Option<HeaderMap>),
}

impl StreamCopy {
    /// Starts a copy of a stream for a session, unless the session is too far behind.
    pub(super) fn start(
        upstreams: &Arc<Upstreams>,
        held: &Arc<HeldClaim>,
        parts: &Parts,
        is_empty: bool,
    ) -> Option<Self> {
        let budget = upstreams.copy_budget(held);
        let limits = Limits::new(&upstreams.way.port.settings);
        if !budget.take(STREAM, limits) {
            tell_dropped(&budget);
            return None;
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let (fell_behind, gives_up) = oneshot::channel();
        let delivery = Delivery {
            upstreams: upstreams.clone(),
            budget: budget.clone(),
            parts: receiver,
        };
        tokio::spawn(delivery.run(copy_of(parts), is_empty, gives_up));
        Some(Self {
            budget,
            limits,
            parts: Some(sender),
            fell_behind: Some(fell_behind),
        })
    }

    /// Adds a part of the body, unless the copy is too far behind.
    pub(super) fn push(&mut self, data: &Bytes) {
        let Some(parts) = &self.parts else {
            return;
        };
        if !self.budget.take(data.len() + PART, self.limits) {
            self.parts = None;
            if let Some(fell_behind) = self.fell_behind.take() {
                let _ = fell_behind.send(());
            }
        } else if parts.send(Part::Data(data.clone())).is_err() {
            self.budget.give(data.len() + PART);
            self.parts = None;
        }
    }

    /// The stream has ended.
    pub(super) fn end(&mut self, trailers: Option<&HeaderMap>) {
        if let Some(parts) = self.parts.take() {
            let _ = parts.send(Part::End(trailers.cloned()));
        }
    }
}

/// Brings a copy to its session.
struct Delivery {
    upstreams: Arc<Upstreams>,
    budget: Arc<ClientBudget>,
    parts: mpsc::UnboundedReceiver<Part>,
}

impl Delivery {
    async fn run(mut self, request: Request<()>, is_empty: bool, gives_up: oneshot::Receiver<()>) {
        tokio::select! {
            delivered = self.deliver(request, is_empty) => if delivered.is_none() {
                tracing::debug!(holder = %self.budget.held.claim.holder, "a copy of a stream ended early");
            },
            Ok(()) = gives_up => tell_dropped(&self.budget),
        }
    }

    /// `None` if it did not get there. Letting go of a stream resets it.
    async fn deliver(&mut self, request: Request<()>, is_empty: bool) -> Option<()> {
        let route = Route::Claim(self.budget.held.clone());
        let mut session = self.upstreams.ready(&route).await.ok()?;
        let (answer, mut stream) = session.send_request(request, is_empty).ok()?;
        let sending = async {
            if is_empty {
                return Ok(());
            }
            loop {
                match self.parts.recv().await.ok_or(())? {
                    Part::Data(data) => {
                        let length = data.len();
                        let sent = send_data(&mut stream, data, false, None).await;
                        self.budget.give(length + PART);
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
        let mut discarding = pin!(discard(answer));
        tokio::select! {
            sent = &mut sending => {
                sent.ok()?;
                let _ = timeout(LINGER, discarding).await;
            }
            () = &mut discarding => sending.await.ok()?,
        }
        Some(())
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.parts.close();
        let mut waiting = STREAM;
        while let Ok(part) = self.parts.try_recv() {
            if let Part::Data(data) = part {
                waiting += data.len() + PART;
            }
        }
        self.budget.give(waiting);
    }
}

/// Reads an answer to nobody.
async fn discard(answer: ResponseFuture) {
    let Ok(response) = answer.await else {
        return;
    };
    let mut body = response.into_body();
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
    }
}

/// Says once for each client that copies were dropped.
fn tell_dropped(budget: &ClientBudget) {
    if !budget.was_told.swap(true, Ordering::Relaxed) {
        budget.held.tell(Notice::CopyDropped);
    }
}

/// How much may wait of one client's streams, and of all that the session gets.
#[derive(Debug, Clone, Copy)]
struct Limits {
    client: usize,
    session: usize,
}

impl Limits {
    fn new(settings: &Settings) -> Self {
        Self {
            client: settings.copy_limit,
            session: settings.copies_limit,
        }
    }
}

impl ClientBudget {
    pub(super) fn new(held: &Arc<HeldClaim>) -> Self {
        Self {
            held: held.clone(),
            used: Budget::default(),
            was_told: AtomicBool::new(false),
        }
    }

    fn take(&self, amount: usize, limits: Limits) -> bool {
        if !self.used.take(amount, limits.client) {
            return false;
        }
        let fits = self.held.copies.take(amount, limits.session);
        if !fits {
            self.used.give(amount);
        }
        fits
    }

    fn give(&self, amount: usize) {
        self.used.give(amount);
        self.held.copies.give(amount);
    }
}
