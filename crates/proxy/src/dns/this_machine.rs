//! This machine's own nameservers and hosts file, for names that shall not be the target's.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use protocol::dns::message::kind;
use protocol::dns::{Judgement, Query, ResolvConf, find_in_hosts, judge};
use protocol::rpc::Family;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::resolver::{Exchange, Upstream};

/// How long an answer from the hosts file is kept by whoever asked: the file may change at any time.
const HOSTS_SECONDS: u32 = 5;
const LARGEST: usize = 65_535;

/// The files are read for every question: a VPN or a roaming machine changes them.
#[derive(Debug)]
pub(crate) struct ThisMachine {
    pub(crate) resolv_conf: PathBuf,
    pub(crate) hosts: PathBuf,
}

impl Default for ThisMachine {
    fn default() -> Self {
        Self {
            resolv_conf: "/etc/resolv.conf".into(),
            hosts: "/etc/hosts".into(),
        }
    }
}

impl ThisMachine {
    /// Whom programs of this machine ask.
    pub(crate) fn settings(&self) -> ResolvConf {
        let text = std::fs::read(&self.resolv_conf).unwrap_or_default();
        ResolvConf::parse(&text)
    }

    async fn ask(&self, message: Bytes) -> Option<Bytes> {
        // The id is only between us and the nameserver.
        let query = Query::new(&message, rand::random())?;
        let hosts = tokio::fs::read(&self.hosts).await.unwrap_or_default();
        if let Some(answer) = from_hosts(&hosts, &query) {
            return Some(answer.into());
        }
        let settings = self.settings();
        let patience = Duration::from_secs(settings.timeout_seconds.into());
        let mut unwilling = None;
        for _ in 0..settings.attempts {
            for server in &settings.nameservers {
                let answer = timeout(patience, ask(&query, *server, settings.tcp)).await;
                match answer {
                    Ok(Ok(answer)) if judge(&answer) == Judgement::Unwilling => {
                        unwilling = Some(query.finish(answer));
                    }
                    Ok(Ok(answer)) => return Some(query.finish(answer).into()),
                    Ok(Err(error)) => {
                        tracing::debug!(%server, %error, "a nameserver of this machine");
                    }
                    Err(_) => tracing::debug!(%server, "a nameserver of this machine is silent"),
                }
            }
            if unwilling.is_some() {
                break;
            }
        }
        unwilling.map(Bytes::from)
    }
}

impl Upstream for ThisMachine {
    fn exchange(&self, query: Bytes) -> Exchange<'_> {
        Box::pin(self.ask(query))
    }
}

async fn ask(query: &Query, server: SocketAddr, tcp: bool) -> io::Result<Vec<u8>> {
    if !tcp {
        let answer = ask_with_datagram(query, server).await?;
        if judge(&answer) != Judgement::CutShort {
            return Ok(answer);
        }
    }
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(&query.message_for_tcp()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await?;
    match query.is_answered_by(&answer) {
        true => Ok(answer),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

async fn ask_with_datagram(query: &Query, server: SocketAddr) -> io::Result<Vec<u8>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(query.message()).await?;
    let mut buffer = vec![0; LARGEST];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let answer = buffer.get(..length).unwrap_or_default();
        if query.is_answered_by(answer) {
            return Ok(answer.to_vec());
        }
    }
}

/// An answer from the text of a hosts file, if it knows the name. A name that it knows only in the other family has no
/// address in this one: to say that it does not exist would be wrong.
fn from_hosts(hosts: &[u8], query: &Query) -> Option<Vec<u8>> {
    if !matches!(query.kind(), kind::A | kind::AAAA) {
        return None;
    }
    let known = find_in_hosts(hosts, &query.name(), Family::Any)?;
    let data = |address: &IpAddr| match (address, query.kind()) {
        (IpAddr::V4(address), kind::A) => Some(address.octets().to_vec()),
        (IpAddr::V6(address), kind::AAAA) => Some(address.octets().to_vec()),
        _ => None,
    };
    let found: Vec<Vec<u8>> = known.addresses.iter().filter_map(data).collect();
    let mut answer = query.message().get(..query.question_range().end)?.to_vec();
    let header = answer.first_chunk_mut::<12>()?;
    header[2] = header[2] & 0x79 | 0x80;
    header[3] = 0x80;
    let count = u16::try_from(found.len()).ok()?.to_be_bytes();
    header[4..].copy_from_slice(&[0, 1, count[0], count[1], 0, 0, 0, 0]);
    for data in found {
        // The name is where the question's is.
        answer.extend_from_slice(&[0xc0, 12]);
        answer.extend_from_slice(&query.kind().to_be_bytes());
        answer.extend_from_slice(&[0, 1]);
        answer.extend_from_slice(&HOSTS_SECONDS.to_be_bytes());
        answer.extend_from_slice(&u16::try_from(data.len()).ok()?.to_be_bytes());
        answer.extend_from_slice(&data);
    }
    Some(query.finish(answer))
}

#[cfg(test)]
mod tests;
