//! What can go wrong when a session asks for something. What goes wrong on a connection ends that connection.

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
    #[error(
        "{holder} already takes {what} of this port: use another filter, or set `on_concurrent_steal` to \"override\" or \"continue\""
    )]
    Conflict { holder: String, what: Held },
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
