//! Splits a target's incoming connections between sessions and the original application.
//!
//! Several developers stand in for the same service at the same time, and everybody else goes on using it. So each
//! request of each connection goes to the session that wants it, and every other request to the application, which must
//! not notice that we are there.
//!
//! ```text
//!              claims: who wants what
//!                       |
//!   client ---- Port::serve ----+---- the original application
//!                               +---- session of one developer
//!                               +---- session of another
//! ```
//!
//! A [`Port`] has [`Claims`] and is given connections. The first bytes say what a connection speaks ([`detect`]). HTTP/1
//! is split without being written anew: bytes go on as they came, and where they could be read in two ways the whole
//! connection goes to the application. HTTP/2 is split by stream. Anything else goes to one place as it is.
//!
//! Every place is a [`Destination`], which opens plain streams of bytes. How a stream gets to a developer's machine, or
//! how a connection came to be here, is not this crate's matter.

mod claims;
mod copy;
mod departures;
mod detect;
mod error;
mod filter;
mod http1;
mod http2;
mod pool;
mod port;
mod probes;
mod relay;
mod scratch;
mod settings;
mod stream;
mod tls;

pub use claims::{Claim, ClaimGuard, Claims, Earlier, Mode, OnConflict};
pub use detect::{Protocol, detect};
pub use error::{Conflict, Error, Held};
pub use filter::{Filter, JsonBody, Pattern};
pub use port::Port;
pub use probes::Probes;
pub use settings::{Notice, Notices, Reason, RequestLine, Settings};
pub use stream::{Arrival, Away, BoxFuture, BoxStream, Destination, Stream, TlsFacts};
pub use tls::Tls;
