//! Filters as they are asked for, and as the splitter has them.

use protocol::rpc::{HttpFilter, HttpFilters, JsonFilter, http_filter};
use splitter::Filter;

use crate::{Error, Result};

/// Lists in lists: nobody writes more, and each is a call of this function.
const DEEPEST: usize = 16;

/// Which requests are wanted.
pub(super) fn filter(wanted: HttpFilter) -> Result<Filter> {
    nested(wanted, DEEPEST)
}

fn nested(wanted: HttpFilter, depth: usize) -> Result<Filter> {
    let filter = match wanted.filter.ok_or(Error::Missing("filter"))? {
        http_filter::Filter::Header(pattern) => Filter::header(&pattern),
        http_filter::Filter::Path(pattern) => Filter::path(&pattern),
        http_filter::Filter::Method(method) => Ok(Filter::method(&method)),
        http_filter::Filter::Body(JsonFilter { query, matches }) => {
            Filter::json_body(&query, &matches)
        }
        http_filter::Filter::AllOf(filters) => Filter::all_of(list(filters, depth)?),
        http_filter::Filter::AnyOf(filters) => Filter::any_of(list(filters, depth)?),
    };
    filter.map_err(Error::Claim)
}

fn list(filters: HttpFilters, depth: usize) -> Result<Vec<Filter>> {
    let depth = depth.checked_sub(1);
    let depth = depth.ok_or(Error::Missing("filter that is not nested too deeply"))?;
    let filters = filters.filters.into_iter();
    filters.map(|filter| nested(filter, depth)).collect()
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
    fn filters_mean_what_was_asked_for() {
        let wanted = all_of(vec![header("x-user: ada"), header("x-team: .*")]);
        let parts = ["x-user: ada", "x-team: .*"].map(|text| Filter::header(text).unwrap());
        let expected = Filter::all_of(parts.into()).unwrap();
        assert_eq!(filter(wanted).unwrap(), expected);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let check = |wanted: HttpFilter, expected: &str| {
            let error = filter(wanted).unwrap_err();
            let text = format!("{:?}", error.to_failure());
            assert!(text.contains(expected), "{text}");
        };
        check(HttpFilter { filter: None }, "names no filter");
        check(header("("), "no regular expression");
        check(all_of(Vec::new()), "is empty");
        let mut deep = header("a");
        for _ in 0..=DEEPEST {
            deep = all_of(vec![deep]);
        }
        check(deep, "too deeply");
    }
}
