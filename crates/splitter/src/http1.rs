//! HTTP/1: splits a connection by request, and forwards its bytes unchanged.
//!
//! Nothing is ever re-encoded. The bytes of a request are forwarded to its upstream, and the bytes of the response to the
//! client, exactly as they were received: only message boundaries are parsed. [`head`] and [`body`] find them, and reject
//! every message that two parsers could read differently. After such a message the rest of the connection goes unchanged to
//! the original application, which then receives the same bytes as without the proxy.
//!
//! [`connection`] is the I/O around them: it reads, selects routes, and forwards bytes.

pub(crate) mod body;
pub(crate) mod connection;
pub(crate) mod head;
pub(crate) mod response;
pub(crate) mod upstream;
