//! What can go wrong when a session asks for something. What goes wrong on a connection ends that connection.

use std::fmt;

use crate::stream::Away;

/// Why a filter or a claim cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A regular expression cannot be read.
    #[error("the pattern {text:?} is no regular expression")]
    Pattern {
        text: String,
        #[source]
        source: Box<fancy_regex::Error>,
    },
    /// A JSONPath query cannot be read.
    #[error("the query {query:?} is no JSONPath")]
    Query {
        query: String,
        #[source]
        source: Box<serde_json_path::ParseError>,
    },
    /// A JSONPath query could take very long.
    #[error("the query {query:?} could take very long: use `..` at most twice")]
    QueryTooExpensive { query: String },
    /// A list of filters has none.
    #[error("the list `{key}` of filters is empty: name at least one filter")]
    EmptyFilterList { key: &'static str },
    /// Somebody else has the port, or the same requests of it.
    #[error(transparent)]
    Conflict(Conflict),
}

/// Somebody else has what is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub holder: String,
    pub what: Held,
    /// He cannot be reached.
    pub away: Option<Away>,
    /// It is another session of the one who asks.
    pub is_own: bool,
}

impl std::error::Error for Conflict {}

impl fmt::Display for Conflict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { holder, what, .. } = self;
        write!(formatter, "{holder} already takes {what} of this port")?;
        if let Some(Away { keeps_for }) = self.away {
            // A second that has begun counts.
            let seconds = keeps_for.as_millis().div_ceil(1000);
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

/// What somebody holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Held {
    #[error("all traffic")]
    WholePort,
    #[error("the same requests")]
    SameRequests,
    #[error("some requests")]
    SomeRequests,
}
