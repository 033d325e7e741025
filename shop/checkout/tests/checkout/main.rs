//! Checkout with fake inventory and pricing services. Tests with a real database are in the crate `e2e`.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy only knows the functions marked #[test]"
)]

mod neighbours; // minimal inventory and pricing
mod orders; // an order, and each service that may be unreachable
mod websocket; // echo, and shutdown
