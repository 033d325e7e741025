//! The target's application as a destination of connections.

use std::io;

use splitter::{BoxFuture, BoxStream, ConnectionMeta, Destination};

use super::redirect;
use super::reset::{ResetSocket, ResetState, Side};
use crate::agent::Agent;

/// The target's application, reached without going through the redirection.
#[derive(Debug)]
pub(super) struct ApplicationDestination(pub(super) Agent);

impl Destination for ApplicationDestination {
    fn open<'a>(&'a self, meta: &'a ConnectionMeta) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async move {
            let stream = redirect::connect_to_application(&self.0, meta.server).await;
            let stream = stream.map_err(io::Error::other)?;
            let socket = ResetSocket::new(stream, Side::Server, ResetState::current());
            Ok(Box::new(socket) as BoxStream)
        })
    }
}
