//! Dns: names as the target resolves them.
//!
//! The target's `resolv.conf` and hosts file are read for every question, as its own programs would: they may change at
//! any time. Questions leave from the target's network namespace.

use bytes::Bytes;
use protocol::dns::ResolvConf;
use protocol::rpc::dns_server::Dns;
use protocol::rpc::{
    DnsSettingsRequest, DnsSettingsResponse, ExchangeRequest, ExchangeResponse, LookupRequest,
    LookupResponse,
};
use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, read};
use rustix::system::uname;
use tonic::{Request, Response, Status};

use crate::Result;
use crate::connection::Connection;
use crate::files::Tree;

mod exchange;
mod lookup;

pub(crate) use exchange::Silent;

/// What is read of a configuration file. More than that is no configuration.
const FILE_BYTES: usize = 1024 * 1024;

#[tonic::async_trait]
impl Dns for Connection {
    async fn exchange(
        &self,
        request: Request<ExchangeRequest>,
    ) -> Result<Response<ExchangeResponse>, Status> {
        let settings = self.resolv_conf().await?;
        let query = request.into_inner().query;
        let (answer, nameserver) = exchange::exchange(&self.agent, &settings, &query).await?;
        let reach = exchange::reach(&self.agent, &answer).await?;
        Ok(Response::new(ExchangeResponse {
            reach,
            answer,
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
        let text = self.configuration(b"/etc/resolv.conf").await?;
        let names = self.agent.names().run(|| Ok(uname())).await?;
        let hostname = names.nodename().to_string_lossy();
        Ok(ResolvConf::parse(&text, &hostname))
    }

    /// The text of a file, or nothing when the target cannot read it: libc goes on without it, too.
    async fn configuration(&self, path: &'static [u8]) -> Result<Bytes> {
        self.in_tree(move |tree| Ok(read_file(tree, path).unwrap_or_default()))
            .await
    }
}

fn read_file(tree: Tree<'_>, path: &[u8]) -> Result<Bytes, Errno> {
    let file = tree.open(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    let mut text = Vec::with_capacity(4096);
    while text.len() < FILE_BYTES {
        text.reserve(4096);
        match read(&file, spare_capacity(&mut text)) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(text.into())
}
