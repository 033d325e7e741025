//! Checkout between neighbours that the tests own. What needs a real database is told by the stories of the lab.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy only knows the functions marked #[test]"
)]

mod neighbours; // inventory and pricing, as small as they can be
mod orders; // an order, and each neighbour that may be away
mod websocket; // echo, and the end
