//! Several pipes over one WebSocket: one connection through the API server, and an agent in each of many pods.
//!
//! The relay reports which *endpoints* exist, with numbers. The client opens *channels* to endpoints. Each channel is a pipe
//! that can carry a link. Opening the same endpoint again creates another channel with another number, so that frames of an
//! old channel cannot be mistaken for those of the new one. Each channel has its own flow-control credit: a channel that is
//! not read only stops its own sender.

mod frame;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use atomic_waker::AtomicWaker;
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, mpsc};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_util::sync::PollSender;

use self::frame::Frame;

/// Bytes that a sender may send on a channel before the receiver reads any of them: what a fast network carries in 40 ms.
const INITIAL_CREDIT: usize = 4 * 1024 * 1024;
/// Credit is returned in portions of this size, so that it needs few messages.
const CREDIT_UPDATE: usize = INITIAL_CREDIT / 4;
/// Maximum number of bytes in one message.
const MAX_MESSAGE: usize = 128 * 1024;
/// Queue length for data messages of all channels. It bounds their memory, and makes channels share the WebSocket fairly.
const DATA_QUEUE_LENGTH: usize = 16;
/// Maximum number of channels that the peer may open: one for each agent, and some that are about to end.
const MAX_CHANNELS: usize = 256;
/// Maximum number of unread bytes of all channels together. Each channel also has its own credit.
const MAX_UNREAD: usize = 64 * 1024 * 1024;
/// Memory of a message in addition to its bytes, so that small messages are not free.
const MESSAGE_OVERHEAD: usize = 64;
/// Maximum number of pending control messages. A peer that sends requests and does not read the responses is disconnected.
const MAX_PENDING_CONTROL: usize = 4096;
/// Interval of pings. They keep idle connections open in proxies, and detect a dead peer.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// The connection is treated as lost when nothing, not even a pong, has been received for this long. The links above detect
/// dead channels themselves, but the carrier must know as well: it would open the next channel on the same dead connection.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(15);

/// One end of a WebSocket that carries channels. Clones share it. The socket is closed when the driver ends.
#[derive(Clone, Debug)]
pub struct Channels {
    inner: Arc<Inner>,
    /// Data messages of channels, to the driver.
    data: mpsc::Sender<Message>,
    /// Control messages, which must not wait behind data, to the driver.
    control: mpsc::UnboundedSender<Message>,
}

/// An event of the peer.
#[derive(Debug)]
pub enum Event {
    /// The peer has opened a channel to an endpoint.
    Opened { endpoint: u32, channel: Channel },
    /// The peer has sent an application message.
    Message(Bytes),
    /// The peer has finished, and will not reconnect.
    Finished,
    /// The peer has closed the connection, with this reason. This is the last event.
    Closed(String),
}

#[derive(Debug, Default)]
struct Inner {
    /// The open channels, by number.
    open: Mutex<HashMap<u32, OpenChannel>>,
    next: AtomicU32,
    /// Number of `Channel` values that exist.
    in_use: AtomicUsize,
    /// Notified when the last channel is dropped.
    released: Notify,
    /// Unread bytes of all channels, including the overhead of messages.
    unread: AtomicUsize,
    /// Number of pending control messages.
    pending_control: AtomicUsize,
    rejects_messages: AtomicBool,
    finished_received: AtomicBool,
    /// The driver has ended. Channels that are opened now are closed immediately.
    ended: AtomicBool,
}

/// The driver's state of a channel.
#[derive(Debug)]
struct OpenChannel {
    /// To the channel: bytes, or the reason of a close.
    incoming: mpsc::UnboundedSender<Result<Bytes, String>>,
    outgoing: Arc<Outgoing>,
    incoming_credit: Arc<AtomicUsize>,
}

/// The send credit of a channel.
#[derive(Debug)]
struct Outgoing {
    credit: AtomicUsize,
    waker: AtomicWaker,
}

/// The configuration of a WebSocket whose peer is not trusted: messages are not longer than ours.
pub fn websocket_config() -> tungstenite::protocol::WebSocketConfig {
    tungstenite::protocol::WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE + 1024))
        .max_frame_size(Some(MAX_MESSAGE + 1024))
}

impl Channels {
    /// Returns the channels, the events of the peer, and the driver, which must be polled. The driver ends with the
    /// connection.
    pub fn over<S>(
        socket: WebSocketStream<S>,
    ) -> (
        Self,
        mpsc::UnboundedReceiver<Event>,
        impl Future<Output = io::Result<()>> + Send,
    )
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (data, data_queue) = mpsc::channel(DATA_QUEUE_LENGTH);
        let (control, control_queue) = mpsc::unbounded_channel();
        let (events, event_receiver) = mpsc::unbounded_channel();
        let channels = Self {
            inner: Arc::default(),
            data,
            control,
        };
        let for_reader = channels.clone();
        let driver = async move {
            let inner = Arc::clone(&for_reader.inner);
            let _closes_all = CloseAll(Arc::clone(&inner));
            let (sink, stream) = socket.split();
            tokio::select! {
                result = write(sink, data_queue, control_queue, &inner.pending_control) => result,
                result = read(stream, for_reader, events) => result,
            }
        };
        (channels, event_receiver, driver)
    }

    /// Opens a channel to an endpoint. If the endpoint does not exist, using the channel fails.
    pub fn open(&self, endpoint: u32) -> Channel {
        let number = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let channel = self.channel(number);
        self.send_control(&Frame::Open {
            channel: number,
            endpoint,
        });
        channel
    }

    /// Sends an application message to the peer.
    pub fn send_message(&self, message: Bytes) {
        self.send_control(&Frame::Message(message));
    }

    /// Treats application messages of the peer as a protocol violation, which ends the connection.
    pub fn reject_messages(&self) {
        self.inner.rejects_messages.store(true, Ordering::Release);
    }

    /// Tells the peer that this end has finished and will not reconnect.
    pub fn send_finished(&self) {
        self.send_control(&Frame::Finished);
    }

    /// Closes the connection, with a reason for the peer's log.
    pub fn end(&self, reason: &'static str) {
        let frame = tungstenite::protocol::CloseFrame {
            code: tungstenite::protocol::frame::coding::CloseCode::Away,
            reason: reason.into(),
        };
        self.inner.pending_control.fetch_add(1, Ordering::AcqRel);
        let _ = self.control.send(Message::Close(Some(frame)));
    }

    /// Sends a control message. If the driver has ended it is discarded, and operations on the channels fail.
    fn send_control(&self, frame: &Frame) {
        self.inner.pending_control.fetch_add(1, Ordering::AcqRel);
        let _ = self.control.send(Message::Binary(frame.encode()));
    }

    /// Waits until all channels have been dropped.
    pub async fn all_released(&self) {
        loop {
            let released = self.inner.released.notified();
            let mut released = pin!(released);
            // From here on no notification is missed.
            released.as_mut().enable();
            if self.inner.in_use.load(Ordering::Acquire) == 0 {
                return;
            }
            released.await;
        }
    }

    fn channel(&self, number: u32) -> Channel {
        let (sender, incoming) = mpsc::unbounded_channel();
        let outgoing = Arc::new(Outgoing {
            credit: AtomicUsize::new(INITIAL_CREDIT),
            waker: AtomicWaker::new(),
        });
        let incoming_credit = Arc::new(AtomicUsize::new(INITIAL_CREDIT));
        let open = OpenChannel {
            incoming: sender,
            outgoing: Arc::clone(&outgoing),
            incoming_credit: Arc::clone(&incoming_credit),
        };
        self.inner.in_use.fetch_add(1, Ordering::AcqRel);
        let mut all = self.inner.open.lock();
        // `CloseAll` sets the flag before it removes all channels.
        if !self.inner.ended.load(Ordering::Acquire) {
            all.insert(number, open);
        }
        drop(all);
        Channel {
            number,
            channels: self.clone(),
            data: PollSender::new(self.data.clone()),
            incoming,
            unread: Bytes::new(),
            read: 0,
            incoming_credit,
            outgoing,
        }
    }

    /// Handles a frame of the peer.
    fn handle_frame(&self, frame: Frame, events: &mpsc::UnboundedSender<Event>) -> io::Result<()> {
        match frame {
            Frame::Open { channel, endpoint } => {
                if self.inner.open.lock().contains_key(&channel) {
                    return Err(invalid_data("a channel was opened twice"));
                }
                if self.inner.in_use.load(Ordering::Acquire) >= MAX_CHANNELS {
                    self.send_control(&Frame::Close {
                        channel,
                        why: format!(
                            "there are {MAX_CHANNELS} channels, and no more can be opened"
                        ),
                    });
                    return Ok(());
                }
                let channel = self.channel(channel);
                let _ = events.send(Event::Opened { endpoint, channel });
            }
            Frame::Data { bytes, .. } if bytes.is_empty() => {
                return Err(invalid_data("a data message is empty"));
            }
            Frame::Data { channel, bytes } => {
                // A missing channel was closed here, and the peer does not know yet.
                if let Some(open) = self.inner.open.lock().get(&channel) {
                    spend_credit(&open.incoming_credit, bytes.len())?;
                    let cost = bytes.len() + MESSAGE_OVERHEAD;
                    if self.inner.unread.fetch_add(cost, Ordering::AcqRel) + cost > MAX_UNREAD {
                        return Err(invalid_data("the peer exceeded the limit of unread bytes"));
                    }
                    let _ = open.incoming.send(Ok(bytes));
                }
            }
            Frame::Close { channel, why } => {
                if let Some(open) = self.inner.open.lock().remove(&channel) {
                    if !why.is_empty() {
                        let _ = open.incoming.send(Err(why));
                    }
                    open.outgoing.waker.wake();
                }
            }
            Frame::Credit { channel, bytes } => {
                if let Some(open) = self.inner.open.lock().get(&channel) {
                    let bytes = usize::try_from(bytes).unwrap_or(INITIAL_CREDIT);
                    open.outgoing.credit.fetch_add(bytes, Ordering::AcqRel);
                    open.outgoing.waker.wake();
                }
            }
            Frame::Message(_) if self.inner.rejects_messages.load(Ordering::Acquire) => {
                return Err(invalid_data("an application message was not expected"));
            }
            Frame::Message(message) => {
                let _ = events.send(Event::Message(message));
            }
            Frame::Finished => {
                if !self.inner.finished_received.swap(true, Ordering::AcqRel) {
                    let _ = events.send(Event::Finished);
                }
            }
        }
        Ok(())
    }
}

/// Closes all channels when the driver ends.
struct CloseAll(Arc<Inner>);

impl Drop for CloseAll {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        // Dropping the senders ends the streams of all readers.
        let lost = std::mem::take(&mut *self.0.open.lock());
        for channel in lost.into_values() {
            channel.outgoing.waker.wake();
        }
    }
}

fn spend_credit(credit: &AtomicUsize, bytes: usize) -> io::Result<()> {
    credit
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |credit| {
            credit.checked_sub(bytes)
        })
        .map(drop)
        .map_err(|_| invalid_data("the peer exceeded its credit"))
}

async fn read<S>(
    mut stream: S,
    channels: Channels,
    events: mpsc::UnboundedSender<Event>,
) -> io::Result<()>
where
    S: futures_util::Stream<Item = tungstenite::Result<Message>> + Unpin,
{
    loop {
        let next = tokio::time::timeout(SILENCE_TIMEOUT, stream.next()).await;
        let Some(message) = next.map_err(|_| silence_error())? else {
            return Ok(());
        };
        match message.map_err(io::Error::other)? {
            Message::Binary(bytes) => {
                channels.handle_frame(Frame::decode(bytes)?, &events)?;
                if channels.inner.pending_control.load(Ordering::Acquire) > MAX_PENDING_CONTROL {
                    return Err(invalid_data(
                        "the peer does not read responses to its requests",
                    ));
                }
            }
            Message::Text(_) => {
                return Err(invalid_data(
                    "a text message was received, only binary messages are allowed",
                ));
            }
            Message::Close(frame) => {
                let reason = frame.map_or_else(String::new, |frame| frame.reason.to_string());
                let _ = events.send(Event::Closed(reason));
                return Ok(());
            }
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }
}

async fn write<S>(
    mut sink: S,
    mut data: mpsc::Receiver<Message>,
    mut control: mpsc::UnboundedReceiver<Message>,
    waiting: &AtomicUsize,
) -> io::Result<()>
where
    S: futures_util::Sink<Message, Error = tungstenite::Error> + Unpin,
{
    let mut pings = tokio::time::interval(PING_INTERVAL);
    pings.tick().await;
    loop {
        let next = tokio::select! {
            biased;
            next = control.recv() => {
                waiting.fetch_sub(1, Ordering::AcqRel);
                next
            }
            next = data.recv() => next,
            _ = pings.tick() => Some(Message::Ping(Bytes::new())),
        };
        let Some(message) = next else {
            return Ok(());
        };
        let is_last = message.is_close();
        sink.feed(message).await.map_err(io::Error::other)?;
        // Flushed only when no further messages are queued.
        if is_last || data.is_empty() && control.is_empty() {
            sink.flush().await.map_err(io::Error::other)?;
        }
        if is_last {
            return Ok(());
        }
    }
}

/// A bidirectional byte stream. The end of either direction ends both.
pub struct Channel {
    number: u32,
    channels: Channels,
    data: PollSender<Message>,
    incoming: mpsc::UnboundedReceiver<Result<Bytes, String>>,
    unread: Bytes,
    /// Bytes that were read and not returned as credit yet.
    read: usize,
    incoming_credit: Arc<AtomicUsize>,
    outgoing: Arc<Outgoing>,
}

impl Channel {
    /// Closes the channel with a reason. The peer's next read fails with it.
    pub fn refuse(self, why: &str) {
        self.close(why);
    }

    /// Closes the channel. Notifies the peer, unless the peer has closed it.
    fn close(&self, why: &str) {
        if self
            .channels
            .inner
            .open
            .lock()
            .remove(&self.number)
            .is_some()
        {
            self.channels.send_control(&Frame::Close {
                channel: self.number,
                why: why.to_owned(),
            });
        }
    }

    /// Subtracts bytes from the unread total.
    fn release_unread(&self, bytes: &Bytes) {
        let unread = &self.channels.inner.unread;
        unread.fetch_sub(bytes.len() + MESSAGE_OVERHEAD, Ordering::AcqRel);
    }

    fn is_open(&self) -> bool {
        self.channels.inner.open.lock().contains_key(&self.number)
    }

    fn return_credit(&mut self, bytes: usize) {
        self.read += bytes;
        if self.read >= CREDIT_UPDATE {
            self.incoming_credit.fetch_add(self.read, Ordering::AcqRel);
            self.channels.send_control(&Frame::Credit {
                channel: self.number,
                bytes: u32::try_from(self.read).unwrap_or(u32::MAX),
            });
            self.read = 0;
        }
    }

    /// How many bytes may be sent now. Never zero.
    fn poll_credit(&self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let available = || match self.outgoing.credit.load(Ordering::Acquire) {
            _ if !self.is_open() => Some(Err(closed_error())),
            0 => None,
            credit => Some(Ok(credit)),
        };
        if let Some(found) = available() {
            return Poll::Ready(found);
        }
        self.outgoing.waker.register(context.waker());
        // Credit may have been received before the waker was registered.
        available().map_or(Poll::Pending, Poll::Ready)
    }
}

impl AsyncRead for Channel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.unread.is_empty() {
            match ready!(self.incoming.poll_recv(context)) {
                Some(Ok(bytes)) => {
                    self.release_unread(&bytes);
                    self.unread = bytes;
                }
                Some(Err(why)) => {
                    let kind = io::ErrorKind::ConnectionRefused;
                    return Poll::Ready(Err(io::Error::new(kind, why)));
                }
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = self.unread.len().min(buffer.remaining());
        buffer.put_slice(&self.unread.split_to(length));
        self.return_credit(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Channel {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if slices.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let credit = ready!(self.poll_credit(context))?;
        ready!(self.data.poll_reserve(context)).map_err(|_| closed_error())?;
        let (message, length) = frame::data(self.number, slices, credit.min(MAX_MESSAGE));
        // Only this channel spends its credit, so it is still available.
        self.outgoing.credit.fetch_sub(length, Ordering::AcqRel);
        self.data
            .send_item(Message::Binary(message))
            .map_err(|_| closed_error())?;
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The driver flushes when its queues are empty.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The close frame is sent as data, because it must follow the bytes that were written.
        let channel = self.get_mut();
        if channel.is_open() {
            let _ = ready!(channel.data.poll_reserve(context));
            let frame = Frame::Close {
                channel: channel.number,
                why: String::new(),
            };
            channel.channels.inner.open.lock().remove(&channel.number);
            let _ = channel.data.send_item(Message::Binary(frame.encode()));
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close("");
        // A closed channel receives nothing more.
        while let Ok(left) = self.incoming.try_recv() {
            if let Ok(bytes) = left {
                self.release_unread(&bytes);
            }
        }
        if self.channels.inner.in_use.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.channels.inner.released.notify_waiters();
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Channel({})", self.number)
    }
}

fn closed_error() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the channel is closed")
}

fn silence_error() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the other end does not respond")
}

fn invalid_data(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests;
