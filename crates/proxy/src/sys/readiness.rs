//! Readiness of a descriptor in the runtime.

use std::io;

use interceptor::CloseEvents;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers the events with the current runtime.
pub(crate) fn register(events: CloseEvents) -> io::Result<AsyncFd<CloseEvents>> {
    // SAFETY: the events own their descriptor and never replace or close it before they are dropped.
    let registered = unsafe { AsyncFd::register_with_interest(events, Interest::READABLE) };
    registered.map_err(io::Error::from)
}
