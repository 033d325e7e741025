//! Converts the filters of subscription requests to the splitter's filters.

use protocol::rpc::{HttpFilter, HttpFilters, JsonFilter, http_filter};
use splitter::Filter;

use crate::{Error, Result};

/// The limit of lists inside lists, because each level is a recursive call. Real filters have far fewer.
const MAX_DEPTH: usize = 16;

/// Converts a filter. Fails if it is incomplete, invalid or nested too deeply.
pub(crate) fn convert_filter(request: HttpFilter) -> Result<Filter> {
    convert_nested(request, MAX_DEPTH)
}

fn convert_nested(request: HttpFilter, depth: usize) -> Result<Filter> {
    let filter = match request.filter.ok_or(Error::Missing("filter"))? {
        http_filter::Filter::Header(pattern) => Filter::header(&pattern),
        http_filter::Filter::Path(pattern) => Filter::path(&pattern),
        http_filter::Filter::Method(method) => Ok(Filter::method(&method)),
        http_filter::Filter::Body(JsonFilter { query, matches }) => {
            Filter::json_body(&query, &matches)
        }
        http_filter::Filter::AllOf(filters) => Filter::all_of(convert_list(filters, depth)?),
        http_filter::Filter::AnyOf(filters) => Filter::any_of(convert_list(filters, depth)?),
    };
    filter.map_err(Error::Claim)
}

fn convert_list(filters: HttpFilters, depth: usize) -> Result<Vec<Filter>> {
    let depth = depth.checked_sub(1);
    let depth = depth.ok_or(Error::FilterDepth(MAX_DEPTH))?;
    let filters = filters.filters.into_iter();
    filters
        .map(|filter| convert_nested(filter, depth))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(pattern: &str) -> HttpFilter {
        HttpFilter {
            filter: Some(http_filter::Filter::Header(pattern.to_owned())),
        }
    }

    fn all_of(filters: Vec<HttpFilter>) -> HttpFilter {
        HttpFilter {
            filter: Some(http_filter::Filter::AllOf(HttpFilters { filters })),
        }
    }

    #[test]
    fn filters_are_converted() {
        let request = all_of(vec![header("x-user: ada"), header("x-team: .*")]);
        let parts = ["x-user: ada", "x-team: .*"].map(|text| Filter::header(text).unwrap());
        let expected = Filter::all_of(parts.into()).unwrap();
        assert_eq!(convert_filter(request).unwrap(), expected);
    }

    #[test]
    fn invalid_filters_are_rejected() {
        let check = |request: HttpFilter, expected: &str| {
            let error = convert_filter(request).unwrap_err();
            let text = format!("{:?}", error.to_failure());
            assert!(text.contains(expected), "{text}");
        };
        check(HttpFilter { filter: None }, "has no filter");
        check(header("("), "no regular expression");
        check(all_of(Vec::new()), "is empty");
        let mut deep = header("a");
        for _ in 0..=MAX_DEPTH {
            deep = all_of(vec![deep]);
        }
        check(deep, "too deeply");
    }
}
