//! HTTP/1: requests told apart in a stream of bytes that is passed on as it is.
//!
//! Nothing is ever written anew. A request's bytes go to where it belongs, and the answer's bytes come back, exactly as
//! they came: only their boundaries are looked for. [`head`] and [`body`] find them, and do not accept what one program
//! would read differently from another. Where they find such a thing, the rest of the connection goes to the original
//! application untouched, which then sees what it would have seen without us.
//!
//! [`connection`] is the shell: it reads, judges, and moves bytes.

pub(crate) mod body;
pub(crate) mod connection;
pub(crate) mod head;
pub(crate) mod leg;
pub(crate) mod response;
