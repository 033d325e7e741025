//! Forwards bodies from one stream to another.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use http::HeaderMap;

use super::mirror::StreamMirror;
use crate::memory::{Charge, Holder, InFlight, MeasuredStream};

/// A client's request body, buffered for as long as it may have to be replayed.
pub(super) struct RequestBody {
    stream: RecvStream,
    measured: MeasuredStream,
    holder: Holder,
    /// For data whose flow-control capacity has been released.
    charge: Charge,
    /// All data that has been read. `None` if it exceeded the limit, or if there was no memory for it.
    replay: Option<Vec<Bytes>>,
    replay_length: usize,
    limit: usize,
    /// Data that has been read and not sent. The flag says whether its flow-control capacity has been released.
    pending: VecDeque<(Bytes, bool)>,
    mirrors: Vec<StreamMirror>,
    progress: Arc<AtomicU64>,
}

/// Why a body was not forwarded completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// The sender failed or reset the stream.
    Sender(Reason),
    /// The receiver failed or reset the stream.
    Receiver(Reason),
}

impl RequestBody {
    pub(super) fn new(
        mut stream: RecvStream,
        limit: usize,
        holder: &Holder,
        in_flight: &Arc<InFlight>,
    ) -> Self {
        Self {
            measured: in_flight.add(&mut stream, holder),
            holder: holder.clone(),
            charge: holder.charge(0),
            stream,
            replay: Some(Vec::new()),
            replay_length: 0,
            limit,
            pending: VecDeque::new(),
            mirrors: Vec::new(),
            progress: Arc::default(),
        }
    }

    /// Counts the bytes that have been sent.
    pub(super) fn progress(&self) -> Arc<AtomicU64> {
        self.progress.clone()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.stream.is_end_stream()
    }

    /// Copies all data to the mirrors: what has been read, and what follows.
    pub(super) fn mirror_to(&mut self, mut mirrors: Vec<StreamMirror>) {
        for mirror in &mut mirrors {
            for (data, _) in &self.pending {
                mirror.push(data);
            }
        }
        self.mirrors = mirrors;
    }

    /// Reads the whole body, if it is not longer than `limit`. The data can still be sent.
    pub(super) async fn peek(&mut self, limit: usize) -> Option<BytesMut> {
        let mut content = BytesMut::new();
        for (data, _) in &self.pending {
            content.extend_from_slice(data);
        }
        while content.len() <= limit {
            if self.stream.is_end_stream() {
                return Some(content);
            }
            match self.stream.data().await {
                None => return Some(content),
                Some(Err(_)) => return None,
                Some(Ok(data)) => {
                    content.extend_from_slice(&data);
                    self.record(&data);
                    // Inspected data must not block the rest of the body.
                    self.measured.release(data.len());
                    self.charge.resize(self.replay_length);
                    self.pending.push_back((data, true));
                }
            }
        }
        None
    }

    /// Prepares for sending the body again. Returns false if that is not possible.
    pub(super) fn rewind(&mut self) -> bool {
        match &self.replay {
            None => false,
            Some(replay) => {
                self.pending = replay.iter().map(|data| (data.clone(), true)).collect();
                true
            }
        }
    }

    /// Records data that has been received, for replay and for mirrors.
    fn record(&mut self, data: &Bytes) {
        for mirror in &mut self.mirrors {
            mirror.push(data);
        }
        if let Some(replay) = &mut self.replay {
            self.replay_length += data.len();
            if self.replay_length > self.limit || !self.charge.try_grow(data.len()) {
                self.replay = None;
                // What is pending has been released, and is sent next.
                let pending = self.pending.iter().filter(|(_, is_released)| *is_released);
                self.charge
                    .resize(pending.map(|(data, _)| data.len()).sum());
            } else {
                replay.push(data.clone());
            }
        }
    }

    /// The next part of the body, and whether its flow-control capacity has been released.
    async fn next(&mut self) -> Result<Option<(Bytes, bool)>, Broken> {
        if let Some(part) = self.pending.pop_front() {
            return Ok(Some(part));
        }
        match self.stream.data().await {
            None => Ok(None),
            Some(Ok(data)) => {
                self.record(&data);
                // Buffered data must not use up the window: it may have to wait for another upstream.
                let is_buffered = self.replay.is_some();
                if is_buffered {
                    self.measured.release(data.len());
                }
                Ok(Some((data, is_buffered)))
            }
            Some(Err(error)) => Err(Broken::Sender(reason(&error))),
        }
    }

    /// Sends the body and the trailers.
    pub(super) async fn send(&mut self, to: &mut SendStream<Bytes>) -> Result<(), Broken> {
        loop {
            let next = tokio::select! {
                biased;
                next = self.next() => next?,
                reason = reset(to) => return Err(Broken::Receiver(reason)),
            };
            let Some((data, is_released)) = next else {
                let trailers = trailers(&mut self.stream).await?;
                self.end_mirrors(trailers.as_ref());
                return send_end(trailers, to).await;
            };
            let is_last = self.pending.is_empty() && self.stream.is_end_stream();
            let length = data.len();
            let progress = self.progress.clone();
            let measured = (!is_released).then_some(&mut self.measured);
            send_data(to, data, is_last, &self.holder, measured).await?;
            progress.fetch_add(length as u64 + 1, Ordering::Relaxed);
            if is_last {
                self.end_mirrors(None);
                return Ok(());
            }
        }
    }

    fn end_mirrors(&mut self, trailers: Option<&HeaderMap>) {
        for mirror in &mut self.mirrors {
            mirror.end(trailers);
        }
    }
}

/// Forwards a response body.
pub(super) async fn forward(
    from: &mut RecvStream,
    to: &mut SendStream<Bytes>,
    holder: &Holder,
    in_flight: &Arc<InFlight>,
) -> Result<(), Broken> {
    let mut measured = in_flight.add(from, holder);
    loop {
        let next = tokio::select! {
            biased;
            next = from.data() => next,
            reason = reset(to) => return Err(Broken::Receiver(reason)),
        };
        let Some(data) = next else {
            let trailers = trailers(from).await?;
            return send_end(trailers, to).await;
        };
        let data = data.map_err(|error| Broken::Sender(reason(&error)))?;
        let is_last = from.is_end_stream();
        send_data(to, data, is_last, holder, Some(&mut measured)).await?;
        if is_last {
            return Ok(());
        }
    }
}

/// Sends data as far as the receiver's window allows, and releases the same capacity to the sender.
pub(super) async fn send_data(
    to: &mut SendStream<Bytes>,
    mut data: Bytes,
    is_last: bool,
    holder: &Holder,
    mut sender: Option<&mut MeasuredStream>,
) -> Result<(), Broken> {
    loop {
        to.reserve_capacity(data.len());
        let capacity = if data.is_empty() {
            0
        } else {
            match poll_fn(|context| to.poll_capacity(context)).await {
                Some(Ok(capacity)) => capacity.min(data.len()),
                Some(Err(error)) => return Err(Broken::Receiver(reason(&error))),
                None => return Err(Broken::Receiver(reset_reason(to).await)),
            }
        };
        let part = holder.keep(data.split_to(capacity));
        let length = part.len();
        let ends = is_last && data.is_empty();
        if to.send_data(part, ends).is_err() {
            return Err(Broken::Receiver(reset_reason(to).await));
        }
        if let Some(sender) = &mut sender {
            sender.release(length);
        }
        if data.is_empty() {
            return Ok(());
        }
    }
}

/// Reads the trailers.
async fn trailers(from: &mut RecvStream) -> Result<Option<HeaderMap>, Broken> {
    let trailers = from.trailers().await;
    trailers.map_err(|error| Broken::Sender(reason(&error)))
}

/// Sends the trailers, or the end of the stream.
async fn send_end(trailers: Option<HeaderMap>, to: &mut SendStream<Bytes>) -> Result<(), Broken> {
    let sent = match trailers {
        Some(trailers) => to.send_trailers(trailers),
        None => to.send_data(Bytes::new(), true),
    };
    match sent {
        Ok(()) => Ok(()),
        Err(_) => Err(Broken::Receiver(reset_reason(to).await)),
    }
}

/// Waits until the receiver resets the stream.
async fn reset(stream: &mut SendStream<Bytes>) -> Reason {
    let reset = poll_fn(|context| stream.poll_reset(context)).await;
    reset.unwrap_or(Reason::CANCEL)
}

/// The reset reason of a stream that accepts no more data.
async fn reset_reason(stream: &mut SendStream<Bytes>) -> Reason {
    let reset = poll_fn(|context| match stream.poll_reset(context) {
        std::task::Poll::Pending => std::task::Poll::Ready(Ok(Reason::CANCEL)),
        ready => ready,
    });
    reset.await.unwrap_or(Reason::CANCEL)
}

pub(super) fn reason(error: &h2::Error) -> Reason {
    error.reason().unwrap_or(Reason::INTERNAL_ERROR)
}
