//! Sends one query to the target's nameservers and returns the first final response.
//!
//! Servers are tried in the order of `resolv.conf`. If a server does not respond quickly, the next one is queried as
//! well, and the first response wins. A silent server is tried last for a while, so that a dead nameserver delays one
//! query and not all of them.

use std::collections::HashMap;
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use protocol::dns::message::{self, Section};
use protocol::dns::{Query, ResolvConf, ResponseClass, classify_response};
use protocol::rpc::{Failure, RouteHint};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep, timeout};

use crate::agent::Agent;
use crate::outgoing::{connect_tcp, open_udp, receive_one, source};
use crate::{Error, Result};

/// How long to wait for a server before the next one is queried as well.
const NEXT_SERVER_DELAY: Duration = Duration::from_millis(800);
/// The timeout of a server if all have been silent recently, so that not every lookup takes long.
const ALL_SILENT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a silent server is tried last.
const SILENT_TTL: Duration = Duration::from_secs(30);
/// The maximum number of route hints in one response.
const MAX_ROUTE_HINTS: usize = 1024;
/// The port of the discard service. Routes do not depend on the port.
const DISCARD_PORT: u16 = 9;

/// Nameservers that did not respond, and until when they are tried last.
#[derive(Debug, Default)]
pub(crate) struct SilentNameservers(Mutex<HashMap<SocketAddr, Instant>>);

impl SilentNameservers {
    /// Moves silent servers to the end. Returns whether all are silent.
    fn sort_last(&self, servers: &mut [SocketAddr]) -> bool {
        let now = Instant::now();
        let mut silent = self.0.lock();
        silent.retain(|_, until| *until > now);
        servers.sort_by_key(|server| silent.contains_key(server));
        servers.iter().all(|server| silent.contains_key(server))
    }

    fn add(&self, server: SocketAddr) {
        self.0.lock().insert(server, Instant::now() + SILENT_TTL);
    }

    fn remove(&self, server: SocketAddr) {
        self.0.lock().remove(&server);
    }
}

/// Returns the response and the server that sent it, or the last error.
pub(crate) async fn exchange(
    agent: &Agent,
    settings: &ResolvConf,
    message: &[u8],
) -> Result<(Bytes, SocketAddr)> {
    let query = Query::new(message, rand::random())
        .ok_or(Error::Missing("DNS message with one question"))?;
    let mut servers = settings.nameservers.clone();
    if settings.rotate {
        let first = rand::random_range(0..servers.len().max(1));
        servers.rotate_left(first);
    }
    let silent = agent.silent_nameservers();
    let all_silent = silent.sort_last(&mut servers);
    let timeout = Duration::from_secs(settings.timeout_seconds.into());
    let race = Race {
        agent,
        query: &query,
        tcp: settings.tcp,
        timeout: match all_silent {
            true => timeout.min(ALL_SILENT_TIMEOUT),
            false => timeout,
        },
    };
    let attempts = match all_silent {
        true => 1,
        false => usize::try_from(settings.attempts).unwrap_or(1),
    };
    let attempts = servers
        .iter()
        .copied()
        .cycle()
        .take(servers.len() * attempts);
    let (response, server) = race.run(attempts.collect()).await?;
    Ok((Bytes::from(query.finish(response)), server))
}

/// The local addresses from which the target connects to the addresses in a response.
pub(crate) async fn route_hints(agent: &Agent, response: &[u8]) -> Result<Vec<RouteHint>> {
    let records = message::records(response).unwrap_or_default();
    let addresses = records
        .iter()
        .filter(|record| record.section == Section::Answer)
        .filter_map(|record| record.address(response));
    let mut hints = Vec::new();
    for address in addresses.take(MAX_ROUTE_HINTS) {
        let (from, failure) = match source(agent, SocketAddr::new(address, DISCARD_PORT)).await {
            Ok(from) => (bytes_of(from.ip()), None),
            Err(Error::Operation { action, source }) => {
                let failure = Failure::from_errno(source.raw_os_error(), action);
                (Bytes::new(), Some(failure))
            }
            Err(error) => return Err(error),
        };
        hints.push(RouteHint {
            address: bytes_of(address),
            from,
            failure,
        });
    }
    Ok(hints)
}

fn bytes_of(address: IpAddr) -> Bytes {
    match address {
        IpAddr::V4(address) => Bytes::copy_from_slice(&address.octets()),
        IpAddr::V6(address) => Bytes::copy_from_slice(&address.octets()),
    }
}

/// A query that is sent to several servers.
struct Race<'query> {
    agent: &'query Agent,
    query: &'query Query,
    tcp: bool,
    /// The timeout of one server.
    timeout: Duration,
}

impl Race<'_> {
    async fn run(&self, servers: Vec<SocketAddr>) -> Result<(Vec<u8>, SocketAddr)> {
        let mut servers = servers.into_iter();
        let mut pending_queries = FuturesUnordered::new();
        let mut failed_response = None;
        let mut failure = Error::operation("reach a nameserver")(Errno::TIMEDOUT);
        loop {
            // Without a timer, even one of zero length: the runtime's timers have a resolution of a millisecond.
            pending_queries.extend(servers.next().map(|server| self.query(server)));
            if pending_queries.is_empty() {
                return failed_response.ok_or(failure);
            }
            let next = async {
                match servers.len() {
                    0 => pending().await,
                    _ => sleep(NEXT_SERVER_DELAY.min(self.timeout)).await,
                }
            };
            tokio::select! {
                () = next => {}
                Some((server, response)) = pending_queries.next() => match response {
                    Ok(response) if classify_response(&response) == ResponseClass::Final => {
                        self.agent.silent_nameservers().remove(server);
                        return Ok((response, server));
                    }
                    Ok(response) => failed_response = failed_response.or(Some((response, server))),
                    Err(error) => {
                        self.agent.silent_nameservers().add(server);
                        failure = error;
                    }
                },
            }
        }
    }

    async fn query(&self, server: SocketAddr) -> (SocketAddr, Result<Vec<u8>>) {
        let response = async {
            if self.tcp {
                return self.query_over_tcp(server).await;
            }
            let response = self.query_over_udp(server).await?;
            if classify_response(&response) != ResponseClass::Truncated {
                return Ok(response);
            }
            self.query_over_tcp(server).await
        };
        let response = timeout(self.timeout, response).await;
        let timed_out = |_| Err(Error::operation("wait for a nameserver")(Errno::TIMEDOUT));
        (server, response.unwrap_or_else(timed_out))
    }

    async fn query_over_udp(&self, server: SocketAddr) -> Result<Vec<u8>> {
        let socket = open_udp(self.agent, server.is_ipv4(), None, Some(server)).await?;
        let sent = socket.send(self.query.message()).await;
        sent.map_err(Error::io("send to a nameserver"))?;
        loop {
            let response = receive_one(&socket).await;
            let response = response.map_err(Error::io("receive from a nameserver"))?;
            if self.query.is_answered_by(&response) {
                return Ok(response.into());
            }
        }
    }

    async fn query_over_tcp(&self, server: SocketAddr) -> Result<Vec<u8>> {
        let mut stream = connect_tcp(self.agent, server, None).await?;
        let exchange = async {
            stream.write_all(&self.query.message_for_tcp()).await?;
            let length = stream.read_u16().await?;
            let mut response = vec![0; length.into()];
            stream.read_exact(&mut response).await?;
            Ok(response)
        };
        let response = exchange
            .await
            .map_err(Error::io("query a nameserver over TCP"))?;
        if self.query.is_answered_by(&response) {
            return Ok(response);
        }
        Err(Error::operation("parse the response of a nameserver")(
            Errno::PROTO,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_servers_are_tried_last() {
        let silent = SilentNameservers::default();
        let [first, second]: [SocketAddr; 2] =
            ["10.0.0.1:53", "10.0.0.2:53"].map(|text| text.parse().unwrap());
        let order = |silent: &SilentNameservers| {
            let mut servers = [first, second];
            (silent.sort_last(&mut servers), servers)
        };
        assert_eq!(order(&silent), (false, [first, second]));
        silent.add(first);
        assert_eq!(order(&silent), (false, [second, first]));
        silent.add(second);
        assert_eq!(order(&silent), (true, [first, second]));
        silent.remove(first);
        assert_eq!(order(&silent), (false, [first, second]));
    }
}
