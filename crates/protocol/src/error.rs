//! Everything a peer can get wrong.

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A request or a stream that does not follow the protocol. Whoever receives it is right, and whoever sent it has a bug
/// or is of another version; the detail says where to look.
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

    #[error("a datagram of {0} bytes is announced, which is longer than any can be")]
    DatagramTooLong(u64),

    #[error("a datagram's frame is malformed: {0}")]
    BadDatagram(&'static str),
}
