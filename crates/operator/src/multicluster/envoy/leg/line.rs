//! One connection to a member, for one client's session.

use std::io;
use std::pin::pin;

use api::connect::{Places, SESSION_IS_OVER};
use link::channels::{Channels, Event};
use link::websocket::WebSocketStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// Why a member is not connected.
#[derive(Debug)]
pub(super) struct NotConnected {
    pub(super) text: String,
    /// The member has no such session, so no agent of it either.
    pub(super) is_over: bool,
}

impl NotConnected {
    pub(super) fn for_now(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            is_over: false,
        }
    }
}

/// What a member has to say.
#[derive(Debug)]
pub(super) enum Word {
    Places(Places),
    /// Nothing more comes over this connection.
    End(NotConnected),
}

/// Ends when it is dropped.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) channels: Channels,
    words: mpsc::UnboundedReceiver<Event>,
    driver: AbortOnDropHandle<io::Result<()>>,
}

impl Line {
    pub(super) fn over<S>(socket: WebSocketStream<S>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (channels, words, driver) = Channels::over(socket);
        Self {
            channels,
            words,
            driver: AbortOnDropHandle::new(tokio::spawn(driver)),
        }
    }

    /// Can be dropped and called again. After the end it must not be called any more.
    pub(super) async fn next(&mut self) -> Word {
        loop {
            let event = tokio::select! {
                // What came last is heard before the end.
                biased;
                event = self.words.recv() => event,
                ended = &mut self.driver => return Word::End(lost(ended)),
            };
            match event {
                Some(Event::News(news)) => {
                    if let Ok(places) = serde_json::from_slice(&news) {
                        return Word::Places(places);
                    }
                }
                Some(Event::Closed(text)) => {
                    let is_over = text == SESSION_IS_OVER;
                    return Word::End(NotConnected { text, is_over });
                }
                Some(Event::Opened { .. } | Event::Farewell) => {}
                None => return Word::End(lost((&mut self.driver).await)),
            }
        }
    }

    /// Waits until the connection ends, whatever is said before that.
    pub(super) async fn end(&mut self) -> NotConnected {
        loop {
            if let Word::End(why) = self.next().await {
                return why;
            }
        }
    }

    /// Keeps it until nobody has a channel any more, or it ends.
    pub(super) async fn leave(mut self) {
        let channels = self.channels.clone();
        let unused = pin!(channels.unused());
        tokio::select! {
            () = unused => {}
            _ = self.end() => {}
        }
    }
}

fn lost(ended: Result<io::Result<()>, tokio::task::JoinError>) -> NotConnected {
    match ended {
        Ok(Err(error)) => NotConnected::for_now(format!("the connection is lost: {error}")),
        Ok(Ok(())) | Err(_) => NotConnected::for_now("the connection has ended"),
    }
}
