//! Incoming: the target's traffic.
//!
//! So far the [`redirect`]: what arrives at chosen ports of the target reaches the agent. No session uses it yet.

pub mod redirect;
