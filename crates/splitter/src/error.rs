//! Errors of claims and filters. Errors of a connection only end that connection.

use std::fmt;

use crate::stream::Unreachable;

/// Why a filter or a claim was rejected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A regular expression cannot be parsed.
    #[error("the pattern {text:?} is no regular expression")]
    Pattern {
        text: String,
        #[source]
        source: Box<fancy_regex::Error>,
    },
    /// A JSONPath query cannot be parsed.
    #[error("the query {query:?} is no JSONPath")]
    Query {
        query: String,
        #[source]
        source: Box<serde_json_path::ParseError>,
    },
    /// A JSONPath query could take very long.
    #[error("the query {query:?} could take very long: use `..` at most twice")]
    QueryTooExpensive { query: String },
    /// A list of filters is empty.
    #[error("the list `{key}` of filters is empty: name at least one filter")]
    EmptyFilterList { key: &'static str },
    /// Another session claims the port, or the same requests of it.
    #[error(transparent)]
    Conflict(Conflict),
}

/// Another session holds the requested traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub holder: String,
    pub traffic: ClaimedTraffic,
    /// Set if the holder is unreachable at the moment.
    pub unreachable: Option<Unreachable>,
    /// Whether the holder is another session of the same user.
    pub is_own: bool,
}

impl std::error::Error for Conflict {}

impl fmt::Display for Conflict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            holder, traffic, ..
        } = self;
        write!(formatter, "{holder} already takes {traffic} of this port")?;
        if let Some(Unreachable { expires_in }) = self.unreachable {
            // Rounded up to whole seconds.
            let seconds = expires_in.as_millis().div_ceil(1000);
            write!(
                formatter,
                ", has lost the connection, and keeps it for up to {seconds} s more"
            )?;
        }
        formatter.write_str(
            ": use another filter, or set `on_concurrent_steal` to \"override\" or \"continue\"",
        )
    }
}

/// The traffic that a session holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClaimedTraffic {
    #[error("all traffic")]
    WholePort,
    #[error("the same requests")]
    SameRequests,
    #[error("some requests")]
    SomeRequests,
}
