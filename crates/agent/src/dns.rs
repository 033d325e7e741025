//! DNS: resolves names as the target does.
//!
//! The target's `resolv.conf` and hosts file are read for every query, as its own programs do: they may change at any time.
//! Queries are sent from the target's network namespace.

use protocol::dns::ResolvConf;
use protocol::rpc::dns_server::Dns;
use protocol::rpc::{
    DnsSettingsRequest, DnsSettingsResponse, ExchangeRequest, ExchangeResponse, LookupRequest,
    LookupResponse,
};
use rustix::system::uname;
use tonic::{Request, Response, Status};

use crate::Result;
use crate::connection::Connection;

mod exchange;
mod lookup;

pub(crate) use exchange::SilentNameservers;

#[tonic::async_trait]
impl Dns for Connection {
    async fn exchange(
        &self,
        request: Request<ExchangeRequest>,
    ) -> Result<Response<ExchangeResponse>, Status> {
        let settings = self.nameservers().await?;
        let query = request.into_inner().query;
        let (response, nameserver) = exchange::exchange(&self.agent, &settings, &query).await?;
        let route_hints = exchange::route_hints(&self.agent, &response).await?;
        Ok(Response::new(ExchangeResponse {
            response,
            route_hints,
            nameserver: nameserver.to_string(),
        }))
    }

    async fn lookup(
        &self,
        request: Request<LookupRequest>,
    ) -> Result<Response<LookupResponse>, Status> {
        Ok(Response::new(
            lookup::lookup(self, &request.into_inner()).await?,
        ))
    }

    async fn settings(
        &self,
        _request: Request<DnsSettingsRequest>,
    ) -> Result<Response<DnsSettingsResponse>, Status> {
        let settings = self.resolv_conf().await?;
        Ok(Response::new(DnsSettingsResponse {
            nameservers: settings
                .nameservers
                .iter()
                .map(ToString::to_string)
                .collect(),
            search: settings.search,
            dots: settings.dots,
            timeout_seconds: settings.timeout_seconds,
            attempts: settings.attempts,
            rotate: settings.rotate,
        }))
    }
}

impl Connection {
    async fn resolv_conf(&self) -> Result<ResolvConf> {
        let settings = self.nameservers().await?;
        if !settings.needs_hostname() {
            return Ok(settings);
        }
        let system = self.agent.uts().run(|| Ok(uname())).await?;
        Ok(settings.with_hostname(&system.nodename().to_string_lossy()))
    }

    /// The settings without a search list derived from the host name: sufficient for absolute names.
    async fn nameservers(&self) -> Result<ResolvConf> {
        let text = self.configuration(b"/etc/resolv.conf").await?;
        Ok(ResolvConf::parse(&text))
    }
}
