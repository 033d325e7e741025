//! Links over networks that break, with time that only passes when everybody waits.

mod bounds;
mod endings;
mod failures;
mod http2;
mod moving;
mod network;
mod resuming;
mod transports;
