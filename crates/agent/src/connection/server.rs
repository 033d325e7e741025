//! The HTTP/2 server of a session.
//!
//! The library's flow control bounds each stream: one that is not read fills its window, and blocks nothing else. The
//! connection's window covers hundreds of full ones, so it does not bound their sum; the agent's budget does. Each stream
//! charges what waits in it, in both directions. When memory becomes scarce, the windows of all streams become smaller, and
//! responses are produced in smaller parts. When it is exhausted, the stream that holds most is reset.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use h2::server::{Connection, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderValue, Request, Response, header};
use http_body::Body as _;
use splitter::{Holder, InFlight, MeasuredReader, Memory};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tonic::body::Body;

use super::request_body::RequestBody;
use super::{
    CONNECTION_WINDOW, MAX_FRAME, MAX_HEADER_LIST, MAX_RESETS, MAX_STREAMS, SEND_BUFFER,
    STREAM_WINDOW,
};

/// The memory of a stream without its data.
const STREAM_COST: usize = 8 * 1024;
/// The window of a stream when memory is scarce.
const MIN_STREAM_WINDOW: u32 = 64 * 1024;

/// Serves a client until it disconnects. All requests end with it.
pub(super) async fn serve<IO, F>(
    io: IO,
    memory: &Memory,
    respond: impl Fn(Request<RequestBody>) -> F,
) -> Result<(), h2::Error>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let in_flight = Arc::<InFlight>::default();
    let measured = Arc::clone(&in_flight);
    let io = MeasuredReader::new(io, memory, move || Arc::clone(&measured));
    let mut connection = h2::server::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(Some(MAX_RESETS))
        .handshake(io)
        .await?;
    let mut window = STREAM_WINDOW;
    let mut exchanges = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = poll_fn(|context| {
                adapt_window(&mut connection, &mut window, memory);
                connection.poll_accept(context)
            }) => accepted,
            Some(_) = exchanges.join_next(), if !exchanges.is_empty() => continue,
        };
        let Some(accepted) = accepted else {
            return Ok(());
        };
        let (request, to_client): (Request<RecvStream>, SendResponse<Bytes>) = accepted?;
        let holder = memory.holder();
        let request = request.map(|stream| RequestBody::new(stream, &in_flight, holder.clone()));
        let response = respond(request);
        exchanges.spawn(exchange(response, to_client, holder));
    }
}

/// Makes the windows of streams smaller when memory is scarce, and large again afterwards.
fn adapt_window<IO: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut Connection<IO, Bytes>,
    window: &mut u32,
    memory: &Memory,
) {
    let wanted = stream_window(memory.free());
    // It fails while the client has not confirmed the change before.
    if wanted != *window && connection.set_initial_window_size(wanted).is_ok() {
        *window = wanted;
    }
}

/// The window of a stream when so many bytes are free. It changes in large steps, because the client confirms each.
fn stream_window(free: usize) -> u32 {
    let share = u32::try_from(free / 8).unwrap_or(u32::MAX);
    let mut window = STREAM_WINDOW;
    while window > share && window > MIN_STREAM_WINDOW {
        window /= 4;
    }
    window
}

/// Sends the response to a request.
async fn exchange(
    response: impl Future<Output = Response<Body>>,
    mut to_client: SendResponse<Bytes>,
    holder: Holder,
) {
    let _charge = holder.charge(STREAM_COST);
    let response = tokio::select! {
        biased;
        response = response => response,
        _ = poll_fn(|context| to_client.poll_reset(context)) => return,
        () = holder.evicted() => return to_client.send_reset(Reason::ENHANCE_YOUR_CALM),
    };
    let (mut head, body) = response.into_parts();
    let is_empty = body.is_end_stream();
    if let Some(length) = body.size_hint().exact().filter(|_| !is_empty) {
        let length = HeaderValue::from(length);
        head.headers.entry(header::CONTENT_LENGTH).or_insert(length);
    }
    let Ok(mut stream) = to_client.send_response(Response::from_parts(head, ()), is_empty) else {
        return;
    };
    if is_empty {
        return;
    }
    let mut sending = Sending {
        body,
        holder: holder.clone(),
        waiting: Arc::default(),
    };
    let reset = tokio::select! {
        biased;
        sent = poll_fn(|context| sending.poll(&mut stream, context)) => sent.err(),
        () = holder.evicted() => Some(Reason::ENHANCE_YOUR_CALM),
    };
    if let Some(reason) = reset {
        stream.send_reset(reason);
    }
}

/// A response body that is being sent.
struct Sending {
    body: Body,
    holder: Holder,
    waiting: Arc<Waiting>,
}

/// Data of a response that the library has not written yet.
#[derive(Default)]
struct Waiting {
    bytes: AtomicUsize,
    /// Wakes the sender when some of it has been written.
    sender: AtomicWaker,
}

/// A part of a response.
struct Part {
    data: Bytes,
    waiting: Arc<Waiting>,
}

impl Sending {
    /// Sends the body as far as the client's window and the memory allow. The error is the reason for a reset.
    fn poll(
        &mut self,
        stream: &mut SendStream<Bytes>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Reason>> {
        loop {
            ready!(poll_window(stream, context))?;
            ready!(self.poll_memory(context));
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            let sent = match frame {
                None => stream.send_data(Bytes::new(), true),
                Some(Err(error)) => return Poll::Ready(Err(reason_of(&error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let is_last = self.body.is_end_stream();
                        let sent = stream.send_data(self.part(data), is_last);
                        if sent.is_ok() && !is_last {
                            continue;
                        }
                        sent
                    }
                    Err(frame) => match frame.into_trailers() {
                        Ok(trailers) => {
                            // No more data is sent.
                            stream.reserve_capacity(0);
                            stream.send_trailers(trailers)
                        }
                        Err(_) => continue,
                    },
                },
            };
            // It fails if the client has reset the stream, or has disconnected.
            return Poll::Ready(sent.map_err(|_| Reason::CANCEL));
        }
    }

    /// Waits while too much of this response has not been written: less is allowed when memory is scarce.
    fn poll_memory(&self, context: &mut Context<'_>) -> Poll<()> {
        let limit = (self.holder.memory().free() / 128).clamp(1, SEND_BUFFER);
        if self.waiting.bytes.load(Ordering::Acquire) < limit {
            return Poll::Ready(());
        }
        self.waiting.sender.register(context.waker());
        match self.waiting.bytes.load(Ordering::Acquire) < limit {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn part(&self, data: Bytes) -> Bytes {
        if data.is_empty() {
            return data;
        }
        self.waiting.bytes.fetch_add(data.len(), Ordering::AcqRel);
        let part = Part {
            data: self.holder.keep(data),
            waiting: Arc::clone(&self.waiting),
        };
        Bytes::from_owner(part)
    }
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let length = self.data.len();
        self.waiting.bytes.fetch_sub(length, Ordering::AcqRel);
        self.waiting.sender.wake();
    }
}

/// The reason for the end of a response: that of the stream whose data it forwards, if there is one.
fn reason_of(error: &tonic::Status) -> Reason {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return error.reason().unwrap_or(Reason::INTERNAL_ERROR);
        }
        source = error.source();
    }
    Reason::INTERNAL_ERROR
}

/// Waits until the client's window has room. The size of a part of the body is not known before it is read, so room for one
/// byte is enough.
fn poll_window(
    stream: &mut SendStream<Bytes>,
    context: &mut Context<'_>,
) -> Poll<Result<(), Reason>> {
    stream.reserve_capacity(1);
    if stream.capacity() > 0 {
        return match stream.poll_reset(context) {
            Poll::Pending => Poll::Ready(Ok(())),
            Poll::Ready(_) => Poll::Ready(Err(Reason::CANCEL)),
        };
    }
    loop {
        match ready!(stream.poll_capacity(context)) {
            Some(Ok(0)) => {}
            Some(Ok(_)) => return Poll::Ready(Ok(())),
            Some(Err(_)) | None => return Poll::Ready(Err(Reason::CANCEL)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::stream_window;

    #[test]
    fn windows_become_smaller_when_memory_is_scarce() {
        let kibibytes = |free: usize| stream_window(free) / 1024;
        assert_eq!(kibibytes(64 << 20), 4096);
        assert_eq!(kibibytes(32 << 20), 4096);
        assert_eq!(kibibytes(31 << 20), 1024);
        assert_eq!(kibibytes(7 << 20), 256);
        assert_eq!(kibibytes(0), 64);
    }
}
