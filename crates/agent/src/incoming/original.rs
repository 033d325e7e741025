//! The original application, as a place where connections go.

use std::io;

use splitter::{Arrival, BoxFuture, BoxStream, Destination};

use super::fate::{Fate, FatefulSocket, Side};
use super::redirect;
use crate::agent::Agent;

/// The application of the target, past the redirection.
#[derive(Debug)]
pub(super) struct Original(pub(super) Agent);

impl Destination for Original {
    fn open<'a>(&'a self, arrival: &'a Arrival) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async move {
            let stream = redirect::connect_to_original(&self.0, arrival.server).await;
            let stream = stream.map_err(io::Error::other)?;
            let socket = FatefulSocket::new(stream, Side::Server, Fate::current());
            Ok(Box::new(socket) as BoxStream)
        })
    }
}
