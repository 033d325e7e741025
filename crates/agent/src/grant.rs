//! The rules of a grant, parsed and enforced. A grant that cannot be parsed is an error: ignoring a rule would be a security
//! hole.

mod addresses;
mod wildcard;

use std::net::SocketAddr;

use protocol::grant::Grant;
use protocol::rpc::{HttpFilter, IncomingMode, SubscribeRequest, http_filter};
use regex::bytes::RegexSet;
use rustix::io::Errno;

use self::addresses::AddressRule;
pub(crate) use self::addresses::Transport;
use crate::{Error, Result};

/// The files with the environments of processes, which contain hidden variables.
const ENVIRONMENTS: &str = "^/proc/[^/]+(/task/[^/]+)?/environ$";

#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// The grant from which the rules were parsed.
    grant: Grant,
    incoming: IncomingRules,
    /// `None` if there are no rules for files, so that file operations skip the checks.
    files: Option<FileRules>,
    only: Vec<Vec<AddressRule>>,
    none_of: Vec<AddressRule>,
}

#[derive(Debug, Default)]
struct IncomingRules {
    no_steal: bool,
    no_steal_without_filter: bool,
    no_mirror: bool,
    header_filters: Vec<regex::Regex>,
}

#[derive(Debug)]
pub(crate) struct FileRules {
    read_only: RegexSet,
    hidden: RegexSet,
}

/// How a file is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileAccess {
    Read,
    Write,
}

impl Rules {
    pub(crate) fn parse(grant: &Grant) -> Result<Self> {
        let header_filters = grant.incoming.header_filters.iter();
        let header_filters = header_filters.map(|text| regex::Regex::new(text).map_err(malformed));
        let files = &grant.files;
        let mut hidden = files.hidden.clone();
        if !grant.hidden_variables.is_empty() {
            hidden.push(ENVIRONMENTS.to_owned());
        }
        let has_file_rules = !files.read_only.is_empty() || !hidden.is_empty();
        let addresses = |texts: &[String]| texts.iter().map(|text| address(text)).collect();
        Ok(Self {
            grant: grant.clone(),
            incoming: IncomingRules {
                no_steal: grant.incoming.no_steal,
                no_steal_without_filter: grant.incoming.no_steal_without_filter,
                no_mirror: grant.incoming.no_mirror,
                header_filters: header_filters.collect::<Result<_>>()?,
            },
            files: match has_file_rules {
                false => None,
                true => Some(FileRules {
                    read_only: RegexSet::new(&files.read_only).map_err(malformed)?,
                    hidden: RegexSet::new(&hidden).map_err(malformed)?,
                }),
            },
            only: grant
                .outgoing
                .only
                .iter()
                .map(|texts| addresses(texts))
                .collect::<Result<_>>()?,
            none_of: addresses(&grant.outgoing.none_of)?,
        })
    }

    /// The owner of the session, if the grant names it.
    pub(crate) fn holder(&self) -> Option<&str> {
        self.grant.holder.as_deref()
    }

    /// The paths of the target's health probes at a port.
    pub(crate) fn probe_paths(&self, port: u32) -> &[String] {
        let paths = u16::try_from(port).ok();
        let paths = paths.and_then(|port| self.grant.incoming.probes.get(&port));
        paths.map(Vec::as_slice).unwrap_or_default()
    }

    pub(crate) fn grant(&self) -> &Grant {
        &self.grant
    }

    pub(crate) fn files(&self) -> Option<&FileRules> {
        self.files.as_ref()
    }

    pub(crate) fn hides_variable(&self, name: &[u8]) -> bool {
        let mut patterns = self.grant.hidden_variables.iter();
        patterns.any(|pattern| wildcard::matches(pattern.as_bytes(), name))
    }

    pub(crate) fn allow_subscription(&self, request: &SubscribeRequest) -> Result<()> {
        let rules = &self.incoming;
        let forbidden = |what| Err(Error::Forbidden(what));
        match request.mode() {
            IncomingMode::Mirror if rules.no_mirror => forbidden("mirror its traffic"),
            IncomingMode::Mirror => Ok(()),
            IncomingMode::Steal if rules.no_steal => forbidden("steal its traffic"),
            IncomingMode::Steal if request.filter.is_none() && rules.no_steal_without_filter => {
                forbidden("steal its traffic without a filter")
            }
            IncomingMode::Steal => {
                let mut required = rules.header_filters.iter();
                match required.all(|required| satisfies(request.filter.as_ref(), required)) {
                    true => Ok(()),
                    false => forbidden("steal its traffic with this header filter"),
                }
            }
        }
    }

    pub(crate) fn allow_address(&self, transport: Transport, address: SocketAddr) -> Result<()> {
        let matches =
            |rules: &[AddressRule]| rules.iter().any(|rule| rule.matches(transport, address));
        if matches(&self.none_of) || !self.only.iter().all(|only| matches(only)) {
            return Err(Error::Forbidden("connect to this address"));
        }
        Ok(())
    }
}

/// Whether every request that matches `filter` matches a header filter that satisfies `required`.
fn satisfies(filter: Option<&HttpFilter>, required: &regex::Regex) -> bool {
    let Some(filter) = filter.and_then(|filter| filter.filter.as_ref()) else {
        return false;
    };
    match filter {
        http_filter::Filter::Header(text) => required.is_match(text),
        http_filter::Filter::AllOf(filters) => {
            let mut filters = filters.filters.iter();
            filters.any(|filter| satisfies(Some(filter), required))
        }
        http_filter::Filter::AnyOf(filters) => {
            let filters = &filters.filters;
            !filters.is_empty()
                && filters
                    .iter()
                    .all(|filter| satisfies(Some(filter), required))
        }
        http_filter::Filter::Path(_)
        | http_filter::Filter::Method(_)
        | http_filter::Filter::Body(_) => false,
    }
}

impl FileRules {
    /// Fails if the access is forbidden. `path` has no symbolic links.
    pub(crate) fn allow(&self, path: &[u8], file_access: FileAccess) -> Result<(), Errno> {
        if self.hidden.is_match(path) {
            return Err(Errno::NOENT);
        }
        if file_access == FileAccess::Write && self.read_only.is_match(path) {
            return Err(Errno::ROFS);
        }
        Ok(())
    }
}

fn address(text: &str) -> Result<AddressRule> {
    text.parse().map_err(malformed)
}

fn malformed(error: impl std::fmt::Display) -> Error {
    Error::Grant(error.to_string())
}

#[cfg(test)]
mod tests;
