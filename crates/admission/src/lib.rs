//! Accepts connections, and limits those whose peers are not authenticated yet.
//!
//! Every peer in a cluster's network can connect to a listener of ours, and can keep the connection without proving who it
//! is. So a connection needs a [`Permit`] until its peer is authenticated, and not longer. A new connection always gets one:
//! when all permits are held, the source with the most of them loses its oldest. So a peer that opens many connections and
//! is slow only loses its own, and an authenticated peer needs its permit for the moment of a handshake.
//!
//! Read [`permits`] for the decision, which is pure, and [`Admission`] for the permits of a listener.
//!
//! | module | what it does |
//! |---|---|
//! | [`permits`] | decides which connection loses its permit |
//! | [`admission`] | the permits of one listener, or of several that share them |
//! | [`accept`] | listens, and accepts also after a failure |

mod accept;
mod admission;
mod permits;

pub use crate::accept::{accept, listen, raise_descriptor_limit};
pub use crate::admission::{Admission, Permit, Rejection};
pub use crate::permits::Limits;
