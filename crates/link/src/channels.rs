//! Several pipes over one WebSocket: one connection through the API server, and an agent in each of many pods.
//!
//! Whoever relays says which *places* there are, with numbers. The client opens *channels* to places; each is a pipe that
//! a link can travel on, and opening the same place again makes another channel, with another number, so that nothing
//! of an old one is mistaken for the new. Each channel has its own credit: one that nobody reads stops its own sender, and
//! none of the others.

mod frame;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use atomic_waker::AtomicWaker;
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, mpsc};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_util::sync::PollSender;

use self::frame::Frame;

/// What a sender may send in a channel before the receiver has read any of it: what a fast line carries in 40 ms.
const CREDIT: usize = 4 * 1024 * 1024;
/// Credit is given back in portions, so that it costs few messages.
const PORTION: usize = CREDIT / 4;
/// What one message carries at most.
const MESSAGE: usize = 128 * 1024;
/// Messages of all channels that wait for the WebSocket. Their bytes are bounded by this, and fairness comes from it.
const WAITING: usize = 16;
/// Channels that the other end may have open: one for each agent, and some that are about to end.
const MOST_CHANNELS: usize = 256;
/// What all channels together may hold that nobody has read yet. Each has its own credit; this is for many at once.
const MOST_UNREAD: usize = 64 * 1024 * 1024;
/// What a message costs beside its bytes, so that small ones are not free.
const OVERHEAD: usize = 64;
/// Answers that the other end may leave waiting. One that asks and does not listen is not worth more.
const MOST_WAITING: usize = 4096;
/// Keeps what is between us from forgetting the connection, and asks whether the other end is there.
const PING: Duration = Duration::from_secs(5);
/// The connection is lost when nothing has come for so long, not even an answer. The links above would find out about the
/// channels; who carries them has to know as well, because the next channel would be opened in the same dead connection.
const SILENCE: Duration = Duration::from_secs(15);

/// One end of a WebSocket that carries channels. Clones are the same end. The socket ends when the driver does.
#[derive(Clone, Debug)]
pub struct Channels {
    inner: Arc<Inner>,
    /// From channels to the driver: bytes.
    data: mpsc::Sender<Message>,
    /// From everybody to the driver: what must not wait for bytes.
    control: mpsc::UnboundedSender<Message>,
}

/// What the other end does.
#[derive(Debug)]
pub enum Event {
    /// It opens a channel to a place.
    Opened { place: u32, channel: Channel },
    /// It says something; what it means is not our matter.
    News(Bytes),
    /// It is done, and will not come back.
    Farewell,
    /// It ends the connection, for this reason. Nothing comes after it.
    Closed(String),
}

#[derive(Debug, Default)]
struct Inner {
    /// Every channel that is open, by number.
    open: Mutex<HashMap<u32, Open>>,
    next: AtomicU32,
    /// Channels that somebody here still has.
    held: AtomicUsize,
    /// From the last channel to whoever waits until there is none.
    released: Notify,
    /// What has come and was not read yet, with what it costs.
    unread: AtomicUsize,
    /// What waits to be told to the other end.
    waiting: AtomicUsize,
    hears_no_news: AtomicBool,
    farewell_was_said: AtomicBool,
    /// The driver has ended: a channel that is opened now is closed.
    ended: AtomicBool,
}

/// What the driver knows of a channel.
#[derive(Debug)]
struct Open {
    /// From the driver to the channel: bytes, or why there are no more.
    incoming: mpsc::UnboundedSender<Result<Bytes, String>>,
    outgoing: Arc<Outgoing>,
    incoming_credit: Arc<AtomicUsize>,
}

/// What a channel may send.
#[derive(Debug)]
struct Outgoing {
    credit: AtomicUsize,
    waker: AtomicWaker,
}

/// For the WebSocket of an end whose other end is not trusted: no message is longer than one of ours.
pub fn limits() -> tungstenite::protocol::WebSocketConfig {
    tungstenite::protocol::WebSocketConfig::default()
        .max_message_size(Some(MESSAGE + 1024))
        .max_frame_size(Some(MESSAGE + 1024))
}

impl Channels {
    /// The end, what the other end does, and the driver that must be run. The driver ends with the connection.
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
        let (data, waiting_data) = mpsc::channel(WAITING);
        let (control, waiting_control) = mpsc::unbounded_channel();
        let (events, what_happens) = mpsc::unbounded_channel();
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
                result = write(sink, waiting_data, waiting_control, &inner.waiting) => result,
                result = read(stream, for_reader, events) => result,
            }
        };
        (channels, what_happens, driver)
    }

    /// Opens a channel to a place. Whether anybody is there shows when it is used.
    pub fn open(&self, place: u32) -> Channel {
        let number = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let channel = self.channel(number);
        self.tell(&Frame::Open {
            channel: number,
            place,
        });
        channel
    }

    /// Says something to the other end.
    pub fn say(&self, news: Bytes) {
        self.tell(&Frame::News(news));
    }

    /// From an end that has nothing to say, what it says anyway is a fault, and ends the connection.
    pub fn hear_no_news(&self) {
        self.inner.hears_no_news.store(true, Ordering::Release);
    }

    /// Says that this end is done and will not come back.
    pub fn say_farewell(&self) {
        self.tell(&Frame::Farewell);
    }

    /// Ends the connection, with a reason that the other end's log may show.
    pub fn end(&self, reason: &'static str) {
        let frame = tungstenite::protocol::CloseFrame {
            code: tungstenite::protocol::frame::coding::CloseCode::Away,
            reason: reason.into(),
        };
        self.inner.waiting.fetch_add(1, Ordering::AcqRel);
        let _ = self.control.send(Message::Close(Some(frame)));
    }

    /// A driver that is gone hears nothing, and the channels say so.
    fn tell(&self, frame: &Frame) {
        self.inner.waiting.fetch_add(1, Ordering::AcqRel);
        let _ = self.control.send(Message::Binary(frame.encode()));
    }

    /// Waits until nobody here has a channel any more.
    pub async fn unused(&self) {
        loop {
            let released = self.inner.released.notified();
            let mut released = pin!(released);
            // From here on nothing is missed.
            released.as_mut().enable();
            if self.inner.held.load(Ordering::Acquire) == 0 {
                return;
            }
            released.await;
        }
    }

    fn channel(&self, number: u32) -> Channel {
        let (sender, incoming) = mpsc::unbounded_channel();
        let outgoing = Arc::new(Outgoing {
            credit: AtomicUsize::new(CREDIT),
            waker: AtomicWaker::new(),
        });
        let incoming_credit = Arc::new(AtomicUsize::new(CREDIT));
        let open = Open {
            incoming: sender,
            outgoing: Arc::clone(&outgoing),
            incoming_credit: Arc::clone(&incoming_credit),
        };
        self.inner.held.fetch_add(1, Ordering::AcqRel);
        let mut all = lock(&self.inner.open);
        // Whoever takes all away has said so before.
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

    /// Does what a frame says.
    fn take(&self, frame: Frame, events: &mpsc::UnboundedSender<Event>) -> io::Result<()> {
        match frame {
            Frame::Open { channel, place } => {
                if lock(&self.inner.open).contains_key(&channel) {
                    return Err(invalid("a channel was opened twice"));
                }
                if self.inner.held.load(Ordering::Acquire) >= MOST_CHANNELS {
                    self.tell(&Frame::Close {
                        channel,
                        why: format!(
                            "there are {MOST_CHANNELS} channels, and no more can be opened"
                        ),
                    });
                    return Ok(());
                }
                let channel = self.channel(channel);
                let _ = events.send(Event::Opened { place, channel });
            }
            Frame::Data { bytes, .. } if bytes.is_empty() => {
                return Err(invalid("a message has no bytes"));
            }
            Frame::Data { channel, bytes } => {
                // One that is closed already: the other end does not know yet.
                if let Some(open) = lock(&self.inner.open).get(&channel) {
                    spend(&open.incoming_credit, bytes.len())?;
                    let cost = bytes.len() + OVERHEAD;
                    if self.inner.unread.fetch_add(cost, Ordering::AcqRel) + cost > MOST_UNREAD {
                        return Err(invalid("more came than can be kept"));
                    }
                    let _ = open.incoming.send(Ok(bytes));
                }
            }
            Frame::Close { channel, why } => {
                if let Some(open) = lock(&self.inner.open).remove(&channel) {
                    if !why.is_empty() {
                        let _ = open.incoming.send(Err(why));
                    }
                    open.outgoing.waker.wake();
                }
            }
            Frame::Credit { channel, bytes } => {
                if let Some(open) = lock(&self.inner.open).get(&channel) {
                    let bytes = usize::try_from(bytes).unwrap_or(CREDIT);
                    open.outgoing.credit.fetch_add(bytes, Ordering::AcqRel);
                    open.outgoing.waker.wake();
                }
            }
            Frame::News(_) if self.inner.hears_no_news.load(Ordering::Acquire) => {
                return Err(invalid("nothing was to be said"));
            }
            Frame::News(news) => {
                let _ = events.send(Event::News(news));
            }
            Frame::Farewell => {
                if !self.inner.farewell_was_said.swap(true, Ordering::AcqRel) {
                    let _ = events.send(Event::Farewell);
                }
            }
        }
        Ok(())
    }
}

/// Channels end with their driver, however that ends.
struct CloseAll(Arc<Inner>);

impl Drop for CloseAll {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        // Whoever reads a channel sees its end: this drops the senders.
        let lost = std::mem::take(&mut *lock(&self.0.open));
        for channel in lost.into_values() {
            channel.outgoing.waker.wake();
        }
    }
}

fn spend(credit: &AtomicUsize, bytes: usize) -> io::Result<()> {
    credit
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |credit| {
            credit.checked_sub(bytes)
        })
        .map(drop)
        .map_err(|_| invalid("more came than was allowed"))
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
        let next = tokio::time::timeout(SILENCE, stream.next()).await;
        let Some(message) = next.map_err(|_| silent())? else {
            return Ok(());
        };
        match message.map_err(io::Error::other)? {
            Message::Binary(bytes) => {
                channels.take(Frame::decode(bytes)?, &events)?;
                if channels.inner.waiting.load(Ordering::Acquire) > MOST_WAITING {
                    return Err(invalid("more is asked than is listened to"));
                }
            }
            Message::Text(_) => return Err(invalid("text came where only bytes do")),
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
    let mut pings = tokio::time::interval(PING);
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
        // What waits goes along.
        if is_last || data.is_empty() && control.is_empty() {
            sink.flush().await.map_err(io::Error::other)?;
        }
        if is_last {
            return Ok(());
        }
    }
}

/// A stream of bytes in both directions. The end of either side is the end of both.
pub struct Channel {
    number: u32,
    channels: Channels,
    data: PollSender<Message>,
    incoming: mpsc::UnboundedReceiver<Result<Bytes, String>>,
    unread: Bytes,
    /// Bytes that were read and not given back yet.
    read: usize,
    incoming_credit: Arc<AtomicUsize>,
    outgoing: Arc<Outgoing>,
}

impl Channel {
    /// Ends the channel and says why, for whoever reads the other end.
    pub fn refuse(self, why: &str) {
        self.close(why);
    }

    /// Also tells the other end, unless it knows.
    fn close(&self, why: &str) {
        if lock(&self.channels.inner.open)
            .remove(&self.number)
            .is_some()
        {
            self.channels.tell(&Frame::Close {
                channel: self.number,
                why: why.to_owned(),
            });
        }
    }

    /// Something that was unread is not any more.
    fn forget(&self, bytes: &Bytes) {
        let unread = &self.channels.inner.unread;
        unread.fetch_sub(bytes.len() + OVERHEAD, Ordering::AcqRel);
    }

    fn is_open(&self) -> bool {
        lock(&self.channels.inner.open).contains_key(&self.number)
    }

    fn give_back(&mut self, bytes: usize) {
        self.read += bytes;
        if self.read >= PORTION {
            self.incoming_credit.fetch_add(self.read, Ordering::AcqRel);
            self.channels.tell(&Frame::Credit {
                channel: self.number,
                bytes: u32::try_from(self.read).unwrap_or(u32::MAX),
            });
            self.read = 0;
        }
    }

    /// How many bytes may be sent now. More than none.
    fn poll_credit(&self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let look = || match self.outgoing.credit.load(Ordering::Acquire) {
            _ if !self.is_open() => Some(Err(closed())),
            0 => None,
            credit => Some(Ok(credit)),
        };
        if let Some(found) = look() {
            return Poll::Ready(found);
        }
        self.outgoing.waker.register(context.waker());
        // Some may have come before we were registered.
        look().map_or(Poll::Pending, Poll::Ready)
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
                    self.forget(&bytes);
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
        self.give_back(length);
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
        ready!(self.data.poll_reserve(context)).map_err(|_| closed())?;
        let (message, length) = frame::data(self.number, slices, credit.min(MESSAGE));
        // Only we take from it, so there is still as much.
        self.outgoing.credit.fetch_sub(length, Ordering::AcqRel);
        self.data
            .send_item(Message::Binary(message))
            .map_err(|_| closed())?;
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The driver flushes when nothing more waits.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // What was written goes first: data and control travel apart until here.
        let channel = self.get_mut();
        if channel.is_open() {
            let _ = ready!(channel.data.poll_reserve(context));
            let frame = Frame::Close {
                channel: channel.number,
                why: String::new(),
            };
            lock(&channel.channels.inner.open).remove(&channel.number);
            let _ = channel.data.send_item(Message::Binary(frame.encode()));
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close("");
        // Nothing more comes for a channel that is not open.
        while let Ok(left) = self.incoming.try_recv() {
            if let Ok(bytes) = left {
                self.forget(&bytes);
            }
        }
        if self.channels.inner.held.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.channels.inner.released.notify_waiters();
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Channel({})", self.number)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the channel is closed")
}

fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the other end is silent")
}

fn invalid(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests;
