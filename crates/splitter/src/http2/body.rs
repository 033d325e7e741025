//! Bodies on their way from one stream to another.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use http::HeaderMap;

use super::copy::StreamCopy;

/// What a client sends, kept for as long as it may have to be sent elsewhere.
pub(super) struct Intake {
    stream: RecvStream,
    /// What has been read, unless it was too much.
    kept: Option<Vec<Bytes>>,
    kept_length: usize,
    limit: usize,
    /// What has been read and is to be sent, with whether the sender already may send more instead.
    waiting: VecDeque<(Bytes, bool)>,
    copies: Vec<StreamCopy>,
    progress: Arc<AtomicU64>,
}

/// Why a body did not get through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// The one that sends it gave up.
    Sender(Reason),
    /// The one that receives it gave up.
    Receiver(Reason),
}

impl Intake {
    pub(super) fn new(stream: RecvStream, limit: usize) -> Self {
        Self {
            stream,
            kept: Some(Vec::new()),
            kept_length: 0,
            limit,
            waiting: VecDeque::new(),
            copies: Vec::new(),
            progress: Arc::default(),
        }
    }

    /// Counts what has been sent.
    pub(super) fn progress(&self) -> Arc<AtomicU64> {
        self.progress.clone()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.stream.is_end_stream()
    }

    /// Copies what has been read and all that follows.
    pub(super) fn copy_to(&mut self, mut copies: Vec<StreamCopy>) {
        for copy in &mut copies {
            for (data, _) in &self.waiting {
                copy.push(data);
            }
        }
        self.copies = copies;
    }

    /// The whole body, if it is not longer than `limit`. Nothing of it is lost for sending.
    pub(super) async fn peek(&mut self, limit: usize) -> Option<BytesMut> {
        let mut content = BytesMut::new();
        for (data, _) in &self.waiting {
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
                    // What is looked at must not stop the rest from coming.
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    self.keep(&data);
                    self.waiting.push_back((data, true));
                }
            }
        }
        None
    }

    /// Whether all that has been read can be read again.
    pub(super) fn rewind(&mut self) -> bool {
        match &self.kept {
            None => false,
            Some(kept) => {
                self.waiting = kept.iter().map(|data| (data.clone(), true)).collect();
                true
            }
        }
    }

    /// Keeps data that has just come, for those who get it later or get a copy.
    fn keep(&mut self, data: &Bytes) {
        for copy in &mut self.copies {
            copy.push(data);
        }
        if let Some(kept) = &mut self.kept {
            self.kept_length += data.len();
            if self.kept_length > self.limit {
                self.kept = None;
            } else {
                kept.push(data.clone());
            }
        }
    }

    /// The next part of the body, and whether its sender already may send more instead.
    async fn next(&mut self) -> Result<Option<(Bytes, bool)>, Broken> {
        if let Some(part) = self.waiting.pop_front() {
            return Ok(Some(part));
        }
        match self.stream.data().await {
            None => Ok(None),
            Some(Ok(data)) => {
                // Kept data must not use up the window: it may have to wait for another place.
                let is_kept = self.kept.is_some();
                self.keep(&data);
                if is_kept {
                    let _ = self.stream.flow_control().release_capacity(data.len());
                }
                Ok(Some((data, is_kept)))
            }
            Some(Err(error)) => Err(Broken::Sender(reason(&error))),
        }
    }

    /// Sends the body and what follows it.
    pub(super) async fn send(&mut self, to: &mut SendStream<Bytes>) -> Result<(), Broken> {
        loop {
            let next = tokio::select! {
                biased;
                next = self.next() => next?,
                reason = reset(to) => return Err(Broken::Receiver(reason)),
            };
            let Some((data, is_released)) = next else {
                let trailers = trailers(&mut self.stream).await?;
                self.end_copies(trailers.as_ref());
                return send_end(trailers, to).await;
            };
            let is_last = self.waiting.is_empty() && self.stream.is_end_stream();
            let length = data.len();
            let progress = self.progress.clone();
            let flow = (!is_released).then(|| self.stream.flow_control().clone());
            send_data(to, data, is_last, flow).await?;
            progress.fetch_add(length as u64 + 1, Ordering::Relaxed);
            if is_last {
                self.end_copies(None);
                return Ok(());
            }
        }
    }

    fn end_copies(&mut self, trailers: Option<&HeaderMap>) {
        for copy in &mut self.copies {
            copy.end(trailers);
        }
    }
}

/// Passes an answer's body on.
pub(super) async fn pass_on(
    from: &mut RecvStream,
    to: &mut SendStream<Bytes>,
) -> Result<(), Broken> {
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
        let flow = from.flow_control().clone();
        send_data(to, data, is_last, Some(flow)).await?;
        if is_last {
            return Ok(());
        }
    }
}

/// Sends data as the receiver takes it, and lets the sender go on as far.
pub(super) async fn send_data(
    to: &mut SendStream<Bytes>,
    mut data: Bytes,
    is_last: bool,
    mut flow: Option<h2::FlowControl>,
) -> Result<(), Broken> {
    loop {
        to.reserve_capacity(data.len());
        let capacity = if data.is_empty() {
            0
        } else {
            match poll_fn(|context| to.poll_capacity(context)).await {
                Some(Ok(capacity)) => capacity.min(data.len()),
                Some(Err(error)) => return Err(Broken::Receiver(reason(&error))),
                None => return Err(Broken::Receiver(given_reason(to).await)),
            }
        };
        let part = data.split_to(capacity);
        let length = part.len();
        let ends = is_last && data.is_empty();
        if to.send_data(part, ends).is_err() {
            return Err(Broken::Receiver(given_reason(to).await));
        }
        if let Some(flow) = &mut flow {
            let _ = flow.release_capacity(length);
        }
        if data.is_empty() {
            return Ok(());
        }
    }
}

/// What follows a body.
async fn trailers(from: &mut RecvStream) -> Result<Option<HeaderMap>, Broken> {
    let trailers = from.trailers().await;
    trailers.map_err(|error| Broken::Sender(reason(&error)))
}

/// Sends the trailers, or the end alone.
async fn send_end(trailers: Option<HeaderMap>, to: &mut SendStream<Bytes>) -> Result<(), Broken> {
    let sent = match trailers {
        Some(trailers) => to.send_trailers(trailers),
        None => to.send_data(Bytes::new(), true),
    };
    match sent {
        Ok(()) => Ok(()),
        Err(_) => Err(Broken::Receiver(given_reason(to).await)),
    }
}

/// Waits until the receiver gives up.
async fn reset(stream: &mut SendStream<Bytes>) -> Reason {
    let reset = poll_fn(|context| stream.poll_reset(context)).await;
    reset.unwrap_or(Reason::CANCEL)
}

/// The reason with which a stream that does not take anything any more was reset.
async fn given_reason(stream: &mut SendStream<Bytes>) -> Reason {
    let reset = poll_fn(|context| match stream.poll_reset(context) {
        std::task::Poll::Pending => std::task::Poll::Ready(Ok(Reason::CANCEL)),
        ready => ready,
    });
    reset.await.unwrap_or(Reason::CANCEL)
}

pub(super) fn reason(error: &h2::Error) -> Reason {
    error.reason().unwrap_or(Reason::INTERNAL_ERROR)
}
