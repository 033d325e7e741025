//! Which requests a session wants.
//!
//! Filters mean what they mean in mirrord's configuration, so that existing files keep working: patterns ignore case and
//! may look around; a header pattern is tried on each header written as `name: value`; a path pattern on the path, and on
//! the path with its query; a body pattern on what a JSONPath query finds.

mod body;
mod pattern;
mod request;

pub use body::JsonBody;
pub use pattern::Pattern;
pub(crate) use request::RequestView;

use crate::Error;

/// Which requests a session wants. Two filters are equal when they were written alike.
#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    /// One of the headers, written as `name: value`, has a match.
    Header(Pattern),
    /// The path, or the path with its query, has a match.
    Path(Pattern),
    /// The method is this one, in upper or lower case.
    Method(String),
    /// The body is JSON, and what a query finds in it has a match.
    Body(JsonBody),
    /// All of these want it.
    AllOf(Vec<Filter>),
    /// At least one of these wants it.
    AnyOf(Vec<Filter>),
}

/// What is known of a request after its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judgement {
    Wanted,
    NotWanted,
    /// The body decides.
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

    /// A filter on a JSON body: what `query` finds has a match of `pattern`.
    pub fn json_body(query: &str, pattern: &str) -> Result<Self, Error> {
        JsonBody::new(query, pattern).map(Self::Body)
    }

    /// Wants what all of the filters want. An empty list is an error: it would want everything.
    pub fn all_of(filters: Vec<Self>) -> Result<Self, Error> {
        if filters.is_empty() {
            return Err(Error::EmptyFilterList { key: "all_of" });
        }
        Ok(Self::AllOf(filters))
    }

    /// Wants what any of the filters wants. An empty list is an error: it would want nothing.
    pub fn any_of(filters: Vec<Self>) -> Result<Self, Error> {
        if filters.is_empty() {
            return Err(Error::EmptyFilterList { key: "any_of" });
        }
        Ok(Self::AnyOf(filters))
    }

    /// Judges a request by its head.
    pub(crate) fn judge(&self, request: &RequestView<'_>) -> Judgement {
        match self {
            Self::Header(pattern) => request
                .header_lines()
                .find_map(|line| pattern.is_match(line).stop_unless_no())
                .unwrap_or(Judgement::NotWanted),
            Self::Path(pattern) => {
                let path = request.path();
                let with_query = request.path_and_query();
                let in_path = pattern.is_match(path);
                if path.len() == with_query.len() {
                    return in_path.into();
                }
                in_path
                    .stop_unless_no()
                    .unwrap_or_else(|| pattern.is_match(with_query).into())
            }
            Self::Method(method) => request.method().eq_ignore_ascii_case(method).into(),
            Self::Body(_) => Judgement::NeedsBody,
            Self::AllOf(filters) => {
                combine(filters, request, Judgement::NotWanted, Judgement::Wanted)
            }
            Self::AnyOf(filters) => {
                combine(filters, request, Judgement::Wanted, Judgement::NotWanted)
            }
        }
    }

    /// Judges a request by its head and its body, or what is known instead of a body: that there is none that is JSON.
    pub(crate) fn wants(
        &self,
        request: &RequestView<'_>,
        body: Option<&serde_json::Value>,
    ) -> bool {
        match self {
            Self::Body(filter) => body.is_some_and(|body| filter.is_match(body)),
            Self::AllOf(filters) => filters.iter().all(|filter| filter.wants(request, body)),
            Self::AnyOf(filters) => filters.iter().any(|filter| filter.wants(request, body)),
            Self::Header(_) | Self::Path(_) | Self::Method(_) => {
                self.judge(request) == Judgement::Wanted
            }
        }
    }
}

/// Judges by several filters, of which one `decisive` judgement is enough.
fn combine(
    filters: &[Filter],
    request: &RequestView<'_>,
    decisive: Judgement,
    otherwise: Judgement,
) -> Judgement {
    let mut result = otherwise;
    for filter in filters {
        let judgement = filter.judge(request);
        if judgement == decisive {
            return decisive;
        }
        if judgement == Judgement::NeedsBody {
            result = Judgement::NeedsBody;
        }
    }
    result
}

impl From<bool> for Judgement {
    fn from(wanted: bool) -> Self {
        if wanted {
            Self::Wanted
        } else {
            Self::NotWanted
        }
    }
}

#[cfg(test)]
mod tests;
