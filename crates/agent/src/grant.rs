//! The rules of a grant, parsed and enforced. A grant that cannot be parsed is an error: ignoring a rule would be a security
//! hole.

mod addresses;
mod files;
mod incoming;
mod wildcard;

use std::net::SocketAddr;

use protocol::grant::Grant;
use protocol::rpc::{HttpFilter, SubscribeRequest};

use self::addresses::AddressRule;
pub(crate) use self::addresses::Transport;
pub(crate) use self::files::{FileAccess, FileRules};
use self::incoming::IncomingRules;
use crate::{Error, Result};

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

impl Rules {
    pub(crate) fn parse(grant: &Grant) -> Result<Self> {
        let addresses = |texts: &[String]| texts.iter().map(|text| address(text)).collect();
        Ok(Self {
            grant: grant.clone(),
            incoming: IncomingRules::parse(&grant.incoming)?,
            files: FileRules::parse(&grant.files)?,
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

    /// Whether some variables are hidden, so that no file may show the environment of a process.
    pub(crate) fn hides_environments(&self) -> bool {
        !self.grant.hidden_variables.is_empty()
    }

    pub(crate) fn hides_variable(&self, name: &[u8]) -> bool {
        let mut patterns = self.grant.hidden_variables.iter();
        patterns.any(|pattern| wildcard::matches(pattern.as_bytes(), name))
    }

    /// The filter with which a session may subscribe: the one that it requests, combined with those of the policies. Fails if
    /// the subscription is forbidden.
    pub(crate) fn effective_filter(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Option<HttpFilter>> {
        self.incoming.effective_filter(request)
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

fn address(text: &str) -> Result<AddressRule> {
    text.parse().map_err(malformed)
}

fn malformed(error: impl std::fmt::Display) -> Error {
    Error::Grant(error.to_string())
}

#[cfg(test)]
mod tests;
