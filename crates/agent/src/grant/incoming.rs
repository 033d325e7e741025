//! The rules for incoming traffic.
//!
//! A policy's header filter is an additional filter on requests: a session that steals gets a request only if one of its header
//! lines matches the policy, and if the session's own filter matches. The text of the session's filter is never compared with
//! the policy, because a pattern can match more than its text says.

use protocol::grant::IncomingGrant;
use protocol::rpc::{HttpFilter, HttpFilters, IncomingMode, SubscribeRequest, http_filter};
use splitter::Filter;

use super::malformed;
use crate::incoming::convert_filter;
use crate::{Error, Result};

#[derive(Debug, Default)]
pub(super) struct IncomingRules {
    no_steal: bool,
    no_steal_without_filter: bool,
    no_mirror: bool,
    /// Each matches a header line of every request that a session may steal.
    header_filters: Vec<HttpFilter>,
}

impl IncomingRules {
    pub(super) fn parse(grant: &IncomingGrant) -> Result<Self> {
        let header_filters = grant.header_filters.iter().map(|text| {
            Filter::header(text).map_err(malformed)?;
            Ok(HttpFilter {
                filter: Some(http_filter::Filter::Header(text.clone())),
            })
        });
        Ok(Self {
            no_steal: grant.no_steal,
            no_steal_without_filter: grant.no_steal_without_filter,
            no_mirror: grant.no_mirror,
            header_filters: header_filters.collect::<Result<_>>()?,
        })
    }

    pub(super) fn effective_filter(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Option<HttpFilter>> {
        let requested = request.filter.as_ref();
        match request.mode() {
            IncomingMode::Mirror if self.no_mirror => Err(Error::Forbidden("mirror its traffic")),
            IncomingMode::Steal if self.no_steal => Err(Error::Forbidden("steal its traffic")),
            IncomingMode::Steal if self.needs_filter() => {
                let requested =
                    requested.ok_or(Error::Forbidden("steal its traffic without a filter"))?;
                self.with_policies(requested).map(Some)
            }
            IncomingMode::Mirror | IncomingMode::Steal => Ok(requested.cloned()),
        }
    }

    fn needs_filter(&self) -> bool {
        self.no_steal_without_filter || !self.header_filters.is_empty()
    }

    /// The session's filter and those of the policies.
    fn with_policies(&self, requested: &HttpFilter) -> Result<HttpFilter> {
        if convert_filter(requested.clone())?.matches_everything() {
            return Err(Error::Forbidden(
                "steal its traffic with a filter that matches every request",
            ));
        }
        if self.header_filters.is_empty() {
            return Ok(requested.clone());
        }
        let policies = self.header_filters.iter();
        let filters = policies.chain([requested]).cloned().collect();
        Ok(HttpFilter {
            filter: Some(http_filter::Filter::AllOf(HttpFilters { filters })),
        })
    }
}
