//! The splitter over streams in memory, and in front of real programs.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot continue should stop"
)]

/// The application receives the client's bytes unchanged: property tests and a corpus.
mod exact;
/// The check that the fuzzer and the property tests share.
mod exact_check;
/// Slow or overloaded sessions do not affect others.
mod fairness;
/// In-memory upstreams for tests.
mod fixture;
/// Backpressure, and bodies without an end.
mod flow;
/// HTTP/1: routing of requests and responses.
mod http1;
/// HTTP/2: streams, trailers, resets, flow control.
mod http2;
/// HTTP/2 upstreams and clients for tests.
mod http2_fixture;
/// Hostile clients, and the budget for what is buffered.
mod memory;
/// Mirrors never slow the mirrored traffic.
mod mirror;
/// Real servers and clients over the loopback interface.
mod programs;
/// Sessions that fail, hang, connect and disconnect; conflicts between claims.
mod safety;
/// TLS with the target's certificates.
mod tls;
