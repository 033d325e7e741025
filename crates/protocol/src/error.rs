//! Protocol violations by a peer.

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A request or a stream that violates the protocol. The sender has a bug or another version; the text says which part
/// is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("the request has no header `{0}`: the sender may be older than this side")]
    MissingHeader(&'static str),

    #[error("the header `{name}` must be {expected}")]
    BadHeader {
        name: &'static str,
        expected: &'static str,
    },

    #[error("a datagram of {0} bytes exceeds the maximum")]
    DatagramTooLong(u64),

    #[error("a datagram's frame is malformed: {0}")]
    BadDatagram(&'static str),
}
