//! The splitter over streams in memory, and in front of real programs.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop"
)]

/// Whatever a client sends, the application sees it unchanged: properties and a corpus.
mod exact;
/// The check that the fuzzer and the properties share.
mod exact_check;
/// Sessions that are slow or flooded, and everybody else.
mod fairness;
/// Bodies that are long, or have no end.
mod flow;
/// HTTP/1: who gets which request, and what becomes of answers.
mod http1;
/// HTTP/2: streams, trailers, resets, windows.
mod http2;
/// Places that speak HTTP/2.
mod http2_stage;
/// Copies that never slow what they are a copy of.
mod mirror;
/// Real servers and clients over the loopback interface.
mod programs;
/// Sessions that fail, hang, come and go.
mod safety;
/// Places that connections go to, in memory.
mod stage;
/// TLS with the target's certificates.
mod tls;
