//! This machine's own nameservers and hosts file, for names that are resolved locally.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use protocol::dns::message::kind;
use protocol::dns::{Query, ResolvConf, ResponseClass, classify_response, find_in_hosts};
use protocol::rpc::Family;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::resolver::{Exchange, Upstream};

/// The TTL of responses from the hosts file. It is short because the file may change at any time.
const HOSTS_TTL_SECONDS: u32 = 5;
const MAX_MESSAGE_BYTES: usize = 65_535;

/// The files are read for every query, because a VPN or a change of networks changes them.
#[derive(Debug)]
pub(crate) struct LocalResolver {
    pub(crate) resolv_conf: PathBuf,
    pub(crate) hosts: PathBuf,
}

impl Default for LocalResolver {
    fn default() -> Self {
        Self {
            resolv_conf: "/etc/resolv.conf".into(),
            hosts: "/etc/hosts".into(),
        }
    }
}

impl LocalResolver {
    /// The resolver settings of this machine.
    pub(crate) fn settings(&self) -> ResolvConf {
        let text = std::fs::read(&self.resolv_conf).unwrap_or_default();
        ResolvConf::parse(&text)
    }

    async fn resolve(&self, message: Bytes) -> Option<Bytes> {
        // The query to the nameserver has its own random ID.
        let query = Query::new(&message, rand::random())?;
        let hosts = tokio::fs::read(&self.hosts).await.unwrap_or_default();
        if let Some(response) = from_hosts(&hosts, &query) {
            return Some(response.into());
        }
        let settings = self.settings();
        let server_timeout = Duration::from_secs(settings.timeout_seconds.into());
        let mut failed_response = None;
        for _ in 0..settings.attempts {
            for server in &settings.nameservers {
                let response =
                    timeout(server_timeout, query_server(&query, *server, settings.tcp)).await;
                match response {
                    Ok(Ok(response)) if classify_response(&response) == ResponseClass::Failed => {
                        failed_response = Some(query.finish(response));
                    }
                    Ok(Ok(response)) => return Some(query.finish(response).into()),
                    Ok(Err(error)) => {
                        tracing::debug!(%server, %error, "local nameserver failed");
                    }
                    Err(_) => tracing::debug!(%server, "local nameserver timed out"),
                }
            }
            if failed_response.is_some() {
                break;
            }
        }
        failed_response.map(Bytes::from)
    }
}

impl Upstream for LocalResolver {
    fn exchange(&self, query: Bytes) -> Exchange<'_> {
        Box::pin(self.resolve(query))
    }
}

async fn query_server(query: &Query, server: SocketAddr, tcp: bool) -> io::Result<Vec<u8>> {
    if !tcp {
        let response = query_over_udp(query, server).await?;
        if classify_response(&response) != ResponseClass::Truncated {
            return Ok(response);
        }
    }
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(&query.message_for_tcp()).await?;
    let length = stream.read_u16().await?;
    let mut response = vec![0; length.into()];
    stream.read_exact(&mut response).await?;
    match query.is_answered_by(&response) {
        true => Ok(response),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

async fn query_over_udp(query: &Query, server: SocketAddr) -> io::Result<Vec<u8>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(query.message()).await?;
    let mut buffer = vec![0; MAX_MESSAGE_BYTES];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let response = buffer.get(..length).unwrap_or_default();
        if query.is_answered_by(response) {
            return Ok(response.to_vec());
        }
    }
}

/// The response from a hosts file, if it contains the name. For a name that has only addresses of the other family, the
/// response is empty: NXDOMAIN would be wrong.
fn from_hosts(hosts: &[u8], query: &Query) -> Option<Vec<u8>> {
    if !matches!(query.kind(), kind::A | kind::AAAA) {
        return None;
    }
    let host = find_in_hosts(hosts, &query.name(), Family::Any)?;
    let data = |address: &IpAddr| match (address, query.kind()) {
        (IpAddr::V4(address), kind::A) => Some(address.octets().to_vec()),
        (IpAddr::V6(address), kind::AAAA) => Some(address.octets().to_vec()),
        _ => None,
    };
    let found: Vec<Vec<u8>> = host.addresses.iter().filter_map(data).collect();
    let mut response = query.message().get(..query.question_range().end)?.to_vec();
    let header = response.first_chunk_mut::<12>()?;
    header[2] = header[2] & 0x79 | 0x80;
    header[3] = 0x80;
    let count = u16::try_from(found.len()).ok()?.to_be_bytes();
    header[4..].copy_from_slice(&[0, 1, count[0], count[1], 0, 0, 0, 0]);
    for data in found {
        // The name is a pointer to the one in the question.
        response.extend_from_slice(&[0xc0, 12]);
        response.extend_from_slice(&query.kind().to_be_bytes());
        response.extend_from_slice(&[0, 1]);
        response.extend_from_slice(&HOSTS_TTL_SECONDS.to_be_bytes());
        response.extend_from_slice(&u16::try_from(data.len()).ok()?.to_be_bytes());
        response.extend_from_slice(&data);
    }
    Some(query.finish(response))
}

#[cfg(test)]
mod tests;
