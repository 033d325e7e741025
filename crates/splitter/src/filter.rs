//! Filters that select the requests of a session.
//!
//! Filters have the semantics of mirrord's configuration, so that existing files keep working: patterns are
//! case-insensitive and support look-around; a header pattern is matched against each header written as `name: value`; a
//! path pattern against the path, and against the path with its query; a body pattern against the results of a JSONPath
//! query.

mod body;
mod pattern;
mod request;
mod sample_requests;

pub use body::JsonBody;
pub use pattern::Pattern;
pub(crate) use request::RequestView;

use crate::Error;

/// Selects the requests of a session. Two filters are equal if their text is equal.
#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    /// One of the headers, written as `name: value`, matches.
    Header(Pattern),
    /// The path, or the path with its query, matches.
    Path(Pattern),
    /// The method is equal, ignoring case.
    Method(String),
    /// The body is JSON, and a result of a query matches.
    Body(JsonBody),
    /// All of these match.
    AllOf(Vec<Filter>),
    /// At least one of these matches.
    AnyOf(Vec<Filter>),
}

/// The result of matching a filter against a request head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Match,
    NoMatch,
    /// The result depends on the body.
    NeedsBody,
}

impl Filter {
    /// A filter on headers.
    pub fn header(pattern: &str) -> Result<Self, Error> {
        Pattern::new(pattern).map(Self::Header)
    }

    /// A filter on the path.
    pub fn path(pattern: &str) -> Result<Self, Error> {
        Pattern::new(pattern).map(Self::Path)
    }

    /// A filter on the method.
    pub fn method(method: &str) -> Self {
        Self::Method(method.to_ascii_uppercase())
    }

    /// A filter on a JSON body: a result of `query` matches `pattern`.
    pub fn json_body(query: &str, pattern: &str) -> Result<Self, Error> {
        JsonBody::new(query, pattern).map(Self::Body)
    }

    /// Matches if all filters match. An empty list is an error: it would match everything.
    pub fn all_of(filters: Vec<Self>) -> Result<Self, Error> {
        if filters.is_empty() {
            return Err(Error::EmptyFilterList { key: "all_of" });
        }
        Ok(Self::AllOf(filters))
    }

    /// Matches if any filter matches. An empty list is an error: it would match nothing.
    pub fn any_of(filters: Vec<Self>) -> Result<Self, Error> {
        if filters.is_empty() {
            return Err(Error::EmptyFilterList { key: "any_of" });
        }
        Ok(Self::AnyOf(filters))
    }

    /// Matches a request head.
    pub(crate) fn match_head(&self, request: &RequestView<'_>) -> Verdict {
        match self {
            Self::Header(pattern) => request
                .header_lines()
                .find_map(|line| pattern.is_match(line).decided())
                .unwrap_or(Verdict::NoMatch),
            Self::Path(pattern) => {
                let path = request.path();
                let with_query = request.path_and_query();
                let in_path = pattern.is_match(path);
                if path.len() == with_query.len() {
                    return in_path.into();
                }
                in_path
                    .decided()
                    .unwrap_or_else(|| pattern.is_match(with_query).into())
            }
            Self::Method(method) => request.method().eq_ignore_ascii_case(method).into(),
            Self::Body(_) => Verdict::NeedsBody,
            Self::AllOf(filters) => combine(filters, request, Verdict::NoMatch, Verdict::Match),
            Self::AnyOf(filters) => combine(filters, request, Verdict::Match, Verdict::NoMatch),
        }
    }

    /// Matches a request with its body. `None` is a body that is not JSON, or too large to inspect.
    pub(crate) fn matches(
        &self,
        request: &RequestView<'_>,
        body: Option<&serde_json::Value>,
    ) -> bool {
        match self {
            Self::Body(filter) => body.is_some_and(|body| filter.is_match(body)),
            Self::AllOf(filters) => filters.iter().all(|filter| filter.matches(request, body)),
            Self::AnyOf(filters) => filters.iter().any(|filter| filter.matches(request, body)),
            Self::Header(_) | Self::Path(_) | Self::Method(_) => {
                self.match_head(request) == Verdict::Match
            }
        }
    }
}

/// Matches several filters. The first `decisive` verdict is the result.
fn combine(
    filters: &[Filter],
    request: &RequestView<'_>,
    decisive: Verdict,
    otherwise: Verdict,
) -> Verdict {
    let mut result = otherwise;
    for filter in filters {
        let verdict = filter.match_head(request);
        if verdict == decisive {
            return decisive;
        }
        if verdict == Verdict::NeedsBody {
            result = Verdict::NeedsBody;
        }
    }
    result
}

impl From<bool> for Verdict {
    fn from(is_match: bool) -> Self {
        if is_match { Self::Match } else { Self::NoMatch }
    }
}

#[cfg(test)]
mod tests;
