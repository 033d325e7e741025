//! The project's certificate authority: creates it, signs certificates with it, and decides when to renew them.
//!
//! Nothing here reads a clock, a file or the network: the time is an argument, and certificates and keys are text. So
//! everything that decides can be tested with tables.
//!
//! - [`Authority`] signs; what it signs is described by a [`Profile`].
//! - [`Facts`] is what a certificate says, for any certificate.
//! - [`life`] decides whether a certificate is still accepted, and when it has to be renewed.
//! - [`rotation`] replaces an authority by a new one without a moment at which a peer cannot verify a certificate.

mod authority;
mod error;
mod facts;
mod key;
pub mod life;
mod pem;
mod request;
pub mod rotation;

pub use self::authority::{Authority, Issued, Profile, Usage};
pub use self::error::Error;
pub use self::facts::Facts;
pub use self::key::{KeyHash, PrivateKey};
pub use self::request::SigningRequest;

#[cfg(test)]
mod fixtures;
