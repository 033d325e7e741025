//! The hub: clusters that can only dial out connect to it, and Kubernetes clients reach their API servers through it.
#![allow(
    dead_code,
    reason = "the listeners, which use the proxy, are not there yet"
)]

mod audit;
mod authenticate;
mod authorize;
mod body;
mod cache;
mod impersonate;
mod kubernetes_request;
mod status;
mod user;
