//! Links over unreliable networks. Time is paused: it advances only when all tasks are idle.

mod bounds;
mod end_reasons;
mod failures;
mod handover;
mod http2;
mod network;
mod resuming;
mod transports;
