//! JSON messages as lines of a body: how both ends of a tunnel talk about the tunnel itself.

use std::fmt;
use std::marker::PhantomData;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt as _;
use link::http2::{BodyDropped, BodySender, BoxError, StreamingBody, body};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum length of a line.
pub const MAX_LINE: usize = 256 * 1024;
/// Messages that wait to be sent.
const QUEUE: usize = 16;

/// Why messages cannot be exchanged any more.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error("a line has more than {MAX_LINE} bytes")]
    TooLong,
    #[error("a line is not the JSON of a message")]
    Malformed(#[from] serde_json::Error),
    #[error("the other end does not read messages any more")]
    Closed(#[from] BodyDropped),
    #[error("the messages have ended early")]
    Lost(#[source] BoxError),
}

/// Creates a body whose lines are the messages of its sender.
pub fn channel<T: Serialize>() -> (LineSender<T>, StreamingBody) {
    let (sender, body) = body(QUEUE);
    let sender = LineSender {
        sender,
        messages: PhantomData,
    };
    (sender, body)
}

/// Sends messages as lines of a body, which ends when the sender is dropped.
pub struct LineSender<T> {
    sender: BodySender,
    messages: PhantomData<fn(T)>,
}

impl<T: Serialize> LineSender<T> {
    /// Sends a message. Waits while the other end does not read.
    ///
    /// # Errors
    /// When the message is too long, or the other end has closed the stream.
    pub async fn send(&mut self, message: &T) -> Result<(), LineError> {
        let mut line = serde_json::to_vec(message)?;
        if line.len() > MAX_LINE {
            return Err(LineError::TooLong);
        }
        line.push(b'\n');
        Ok(self.sender.send_data(line.into()).await?)
    }
}

/// Receives messages from the lines of a body.
pub struct LineReceiver<B, T> {
    body: B,
    received: BytesMut,
    /// There is no line end before this position.
    searched: usize,
    messages: PhantomData<fn() -> T>,
}

impl<B, T> LineReceiver<B, T>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
    T: DeserializeOwned,
{
    pub fn new(body: B) -> Self {
        Self {
            body,
            received: BytesMut::new(),
            searched: 0,
            messages: PhantomData,
        }
    }

    /// The next message. `None` at the end.
    ///
    /// # Errors
    /// When a line is too long or no message, or the stream was cut.
    pub async fn next(&mut self) -> Result<Option<T>, LineError> {
        loop {
            let rest = &self.received[self.searched..];
            if let Some(position) = rest.iter().position(|byte| *byte == b'\n') {
                let line = self.received.split_to(self.searched + position + 1);
                self.searched = 0;
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            self.searched = self.received.len();
            if self.received.len() > MAX_LINE {
                return Err(LineError::TooLong);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.received.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(LineError::Lost(error.into())),
                None => return Ok(None),
            }
        }
    }
}

impl<T> fmt::Debug for LineSender<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LineSender").finish_non_exhaustive()
    }
}

impl<B, T> fmt::Debug for LineReceiver<B, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LineReceiver")
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    /// Receives everything, and returns the messages, and the error if there is one.
    async fn receive(
        body: impl Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
    ) -> (Vec<u32>, Option<String>) {
        let mut receiver = LineReceiver::new(body);
        let mut messages = Vec::new();
        loop {
            match receiver.next().await {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => return (messages, None),
                Err(error) => return (messages, Some(error.to_string())),
            }
        }
    }

    async fn check(text: &str, expected: &[u32], error: Option<&str>) {
        let (messages, found) = receive(Full::<Bytes>::from(text.to_owned())).await;
        assert_eq!(messages, expected);
        assert_eq!(found.as_deref(), error);
    }

    #[tokio::test]
    async fn lines_are_messages() {
        check("1\n2\n", &[1, 2], None).await;
        check("1\r\n\n2\n3", &[1, 2], None).await;
        check(
            "1\nx\n2\n",
            &[1],
            Some("a line is not the JSON of a message"),
        )
        .await;
        let long = "1".repeat(MAX_LINE + 1);
        check(&long, &[], Some("a line has more than 262144 bytes")).await;
    }

    #[tokio::test]
    async fn messages_are_received_as_they_were_sent() {
        let (mut sender, body) = channel();
        let sending = tokio::spawn(async move {
            for message in 0..1000_u32 {
                sender.send(&message).await.unwrap();
            }
        });
        let (messages, error) = receive(body).await;
        sending.await.unwrap();
        assert_eq!((messages, error), ((0..1000).collect(), None));
    }

    #[tokio::test]
    async fn a_sender_sees_that_there_is_no_receiver() {
        let (mut sender, body) = channel();
        drop(body);
        let error = sender.send(&1).await.unwrap_err();
        assert!(matches!(error, LineError::Closed(_)));
        let long = "x".repeat(MAX_LINE);
        let (mut sender, _body) = channel();
        assert!(matches!(sender.send(&long).await, Err(LineError::TooLong)));
    }
}
