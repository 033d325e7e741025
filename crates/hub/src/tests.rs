//! Tests of a whole hub, over real TLS on localhost and a stubbed API server.

mod certificates;
mod connecting;
mod http;
mod registration;
mod replicas;
mod revocation;
