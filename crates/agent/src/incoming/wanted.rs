//! What is asked for, understood.

use std::time::Duration;

use protocol::rpc::{
    IncomingMode, IncomingTransport, OnConflict as RequestedOnConflict, SubscribeRequest,
};
use splitter::{Filter, Mode, OnConflict};

use super::filter::filter;
use super::redirect::Port;
use crate::{Error, Result};

/// How a session without a name is called.
const SOMEBODY: &str = "another session";

/// What a session asks for.
pub(super) struct Wanted {
    pub(super) port: Port,
    pub(super) mode: Mode,
    pub(super) filter: Option<Filter>,
    pub(super) on_conflict: OnConflict,
    pub(super) takes_probes: bool,
    pub(super) flush_connections: bool,
    pub(super) answer_within: Option<Duration>,
    pub(super) holder: String,
    pub(super) owner: Option<String>,
    pub(super) held_for: Duration,
    pub(super) probe_paths: Vec<String>,
    /// As it came, for whoever else can do it.
    pub(super) request: SubscribeRequest,
}

impl Wanted {
    pub(super) fn validate(request: SubscribeRequest) -> Result<Self> {
        let number = u16::try_from(request.port).ok().filter(|port| *port > 0);
        let number = number.ok_or(Error::Missing("port"))?;
        let port = match request.transport() {
            IncomingTransport::Tcp => Port::tcp(number),
            IncomingTransport::Udp if request.filter.is_some() => {
                return Err(Error::Missing("port of TCP, which a filter needs"));
            }
            IncomingTransport::Udp => Port::udp(number),
        };
        let answer_within = u64::from(request.answer_within_milliseconds);
        Ok(Self {
            port,
            mode: match request.mode() {
                IncomingMode::Steal => Mode::Steal,
                IncomingMode::Mirror => Mode::Mirror,
            },
            filter: request.filter.clone().map(filter).transpose()?,
            on_conflict: match request.on_conflict() {
                RequestedOnConflict::Abort => OnConflict::Abort,
                RequestedOnConflict::Continue => OnConflict::Continue,
                RequestedOnConflict::Override => OnConflict::Override,
            },
            takes_probes: request.takes_probes,
            flush_connections: request.flush_connections,
            answer_within: (answer_within > 0).then(|| Duration::from_millis(answer_within)),
            holder: match request.holder.as_str() {
                "" => SOMEBODY.to_owned(),
                holder => holder.to_owned(),
            },
            owner: Some(request.owner.clone()).filter(|owner| !owner.is_empty()),
            held_for: Duration::from_millis(request.held_for_milliseconds),
            probe_paths: request.probe_paths.clone(),
            request,
        })
    }
}
