//! A validated subscription request.

use std::time::Duration;

use protocol::rpc::{
    IncomingMode, IncomingTransport, OnConflict as RequestedOnConflict, SubscribeRequest,
};
use splitter::{Filter, Mode, OnConflict};

use super::filter::convert_filter;
use super::redirect::Port;
use crate::{Error, Result};

/// The holder's name if the request has none.
const UNNAMED_HOLDER: &str = "another session";

/// The traffic that a session subscribes to, and how.
pub(super) struct SubscriptionSpec {
    pub(super) port: Port,
    pub(super) mode: Mode,
    pub(super) filter: Option<Filter>,
    pub(super) on_conflict: OnConflict,
    /// Whether health probes are included.
    pub(super) takes_probes: bool,
    pub(super) flush_connections: bool,
    pub(super) response_timeout: Option<Duration>,
    pub(super) holder: String,
    pub(super) owner: Option<String>,
    /// How long the claim has existed already, at an agent that has ended.
    pub(super) claim_age: Duration,
    pub(super) probe_paths: Vec<String>,
    /// The request itself, to forward it to another agent.
    pub(super) request: SubscribeRequest,
}

impl SubscriptionSpec {
    pub(super) fn validate(request: SubscribeRequest) -> Result<Self> {
        let number = u16::try_from(request.port).ok().filter(|port| *port > 0);
        let number = number.ok_or(Error::Missing("port"))?;
        let port = match request.transport() {
            IncomingTransport::Tcp => Port::tcp(number),
            IncomingTransport::Udp if request.filter.is_some() => {
                return Err(Error::Missing("TCP port, which a filter needs"));
            }
            IncomingTransport::Udp => Port::udp(number),
        };
        let response_timeout = u64::from(request.response_timeout_milliseconds);
        Ok(Self {
            port,
            mode: match request.mode() {
                IncomingMode::Steal => Mode::Steal,
                IncomingMode::Mirror => Mode::Mirror,
            },
            filter: request.filter.clone().map(convert_filter).transpose()?,
            on_conflict: match request.on_conflict() {
                RequestedOnConflict::Abort => OnConflict::Abort,
                RequestedOnConflict::Continue => OnConflict::Continue,
                RequestedOnConflict::Override => OnConflict::Override,
            },
            takes_probes: request.takes_probes,
            flush_connections: request.flush_connections,
            response_timeout: (response_timeout > 0)
                .then(|| Duration::from_millis(response_timeout)),
            holder: match request.holder.as_str() {
                "" => UNNAMED_HOLDER.to_owned(),
                holder => holder.to_owned(),
            },
            owner: Some(request.owner.clone()).filter(|owner| !owner.is_empty()),
            claim_age: Duration::from_millis(request.claim_age_milliseconds),
            probe_paths: request.probe_paths.clone(),
            request,
        })
    }
}
