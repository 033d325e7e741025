//! One question to the target's nameservers, and the first answer that counts.
//!
//! Servers are asked in the order of `resolv.conf`. One that says nothing for a moment does not hold the others up: the
//! next one is asked as well, and whoever answers first is believed. A silent one is asked last for a while, so that a
//! dead nameserver costs one slow answer and not all of them.

use std::collections::HashMap;
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use protocol::dns::message::{self, Section};
use protocol::dns::{Judgement, Query, ResolvConf, judge};
use protocol::rpc::{Failure, Reach};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep, timeout};

use crate::agent::Agent;
use crate::outgoing::{connect_tcp, open_udp, receive_one, source};
use crate::{Error, Result};

/// After this long without a word, the next server is asked as well.
const PATIENCE: Duration = Duration::from_millis(800);
/// How long a server may take when all have been silent lately: whoever asks shall not wait long for every name.
const LITTLE_PATIENCE: Duration = Duration::from_secs(2);
/// How long a silent server is asked last.
const SILENT: Duration = Duration::from_secs(30);
/// Of more addresses in one answer it is not told from where they are reached.
const MOST_REACHED: usize = 1024;
/// A port that nobody minds.
const DISCARD: u16 = 9;

/// Nameservers that did not answer, and until when they are asked last.
#[derive(Debug, Default)]
pub(crate) struct Silent(Mutex<HashMap<SocketAddr, Instant>>);

impl Silent {
    /// Answers whether all are silent.
    fn put_last(&self, servers: &mut [SocketAddr]) -> bool {
        let now = Instant::now();
        let mut known = self.known();
        known.retain(|_, until| *until > now);
        servers.sort_by_key(|server| known.contains_key(server));
        servers.iter().all(|server| known.contains_key(server))
    }

    fn remember(&self, server: SocketAddr) {
        self.known().insert(server, Instant::now() + SILENT);
    }

    fn forget(&self, server: SocketAddr) {
        self.known().remove(&server);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<SocketAddr, Instant>> {
        // Nothing panics while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers the message and who sent it, or why nobody did.
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
    let all_silent = silent.put_last(&mut servers);
    let patience = Duration::from_secs(settings.timeout_seconds.into());
    let race = Race {
        agent,
        query: &query,
        tcp: settings.tcp,
        patience: match all_silent {
            true => patience.min(LITTLE_PATIENCE),
            false => patience,
        },
    };
    let attempts = match all_silent {
        true => 1,
        false => usize::try_from(settings.attempts).unwrap_or(1),
    };
    let turns = servers
        .iter()
        .copied()
        .cycle()
        .take(servers.len() * attempts);
    let (answer, server) = race.run(turns.collect()).await?;
    Ok((Bytes::from(query.finish(answer)), server))
}

/// From where the target reaches the addresses in an answer.
pub(crate) async fn reach(agent: &Agent, answer: &[u8]) -> Result<Vec<Reach>> {
    let records = message::records(answer).unwrap_or_default();
    let addresses = records
        .iter()
        .filter(|record| record.section == Section::Answer)
        .filter_map(|record| record.address(answer));
    let mut reached = Vec::new();
    for address in addresses.take(MOST_REACHED) {
        let (from, failure) = match source(agent, SocketAddr::new(address, DISCARD)).await {
            Ok(from) => (bytes_of(from.ip()), None),
            Err(Error::Operation { action, source }) => {
                let failure = Failure::from_errno(source.raw_os_error(), action);
                (Bytes::new(), Some(failure))
            }
            Err(error) => return Err(error),
        };
        reached.push(Reach {
            address: bytes_of(address),
            from,
            failure,
        });
    }
    Ok(reached)
}

fn bytes_of(address: IpAddr) -> Bytes {
    match address {
        IpAddr::V4(address) => Bytes::copy_from_slice(&address.octets()),
        IpAddr::V6(address) => Bytes::copy_from_slice(&address.octets()),
    }
}

/// Whom to ask with what.
struct Race<'question> {
    agent: &'question Agent,
    query: &'question Query,
    tcp: bool,
    /// How long one server may take.
    patience: Duration,
}

impl Race<'_> {
    async fn run(&self, turns: Vec<SocketAddr>) -> Result<(Vec<u8>, SocketAddr)> {
        let mut turns = turns.into_iter();
        let mut asked = FuturesUnordered::new();
        let mut unwilling = None;
        let mut failure = Error::operation("reach a nameserver")(Errno::TIMEDOUT);
        loop {
            // At once, and not when a timer has run that is already over: it would take a millisecond to notice.
            asked.extend(turns.next().map(|server| self.ask(server)));
            if asked.is_empty() {
                return unwilling.ok_or(failure);
            }
            let next = async {
                match turns.len() {
                    0 => pending().await,
                    _ => sleep(PATIENCE.min(self.patience)).await,
                }
            };
            tokio::select! {
                () = next => {}
                Some((server, answer)) = asked.next() => match answer {
                    Ok(answer) if judge(&answer) == Judgement::Final => {
                        self.agent.silent_nameservers().forget(server);
                        return Ok((answer, server));
                    }
                    Ok(answer) => unwilling = unwilling.or(Some((answer, server))),
                    Err(error) => {
                        self.agent.silent_nameservers().remember(server);
                        failure = error;
                    }
                },
            }
        }
    }

    async fn ask(&self, server: SocketAddr) -> (SocketAddr, Result<Vec<u8>>) {
        let answer = async {
            if self.tcp {
                return self.ask_over_tcp(server).await;
            }
            let answer = self.ask_over_udp(server).await?;
            if judge(&answer) != Judgement::CutShort {
                return Ok(answer);
            }
            self.ask_over_tcp(server).await
        };
        let answer = timeout(self.patience, answer).await;
        let too_late = |_| Err(Error::operation("wait for a nameserver")(Errno::TIMEDOUT));
        (server, answer.unwrap_or_else(too_late))
    }

    async fn ask_over_udp(&self, server: SocketAddr) -> Result<Vec<u8>> {
        let socket = open_udp(self.agent, server.is_ipv4(), None, Some(server)).await?;
        let sent = socket.send(self.query.message()).await;
        sent.map_err(Error::io("send to a nameserver"))?;
        loop {
            let answer = receive_one(&socket).await;
            let answer = answer.map_err(Error::io("receive from a nameserver"))?;
            if self.query.is_answered_by(&answer) {
                return Ok(answer.into());
            }
        }
    }

    async fn ask_over_tcp(&self, server: SocketAddr) -> Result<Vec<u8>> {
        let mut stream = connect_tcp(self.agent, server, None).await?;
        let exchange = async {
            stream.write_all(&self.query.message_for_tcp()).await?;
            let length = stream.read_u16().await?;
            let mut answer = vec![0; length.into()];
            stream.read_exact(&mut answer).await?;
            Ok(answer)
        };
        let answer = exchange
            .await
            .map_err(Error::io("ask a nameserver over TCP"))?;
        if self.query.is_answered_by(&answer) {
            return Ok(answer);
        }
        Err(Error::operation("understand a nameserver")(Errno::PROTO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_servers_are_asked_last() {
        let silent = Silent::default();
        let [first, second]: [SocketAddr; 2] =
            ["10.0.0.1:53", "10.0.0.2:53"].map(|text| text.parse().unwrap());
        let order = |silent: &Silent| {
            let mut servers = [first, second];
            (silent.put_last(&mut servers), servers)
        };
        assert_eq!(order(&silent), (false, [first, second]));
        silent.remember(first);
        assert_eq!(order(&silent), (false, [second, first]));
        silent.remember(second);
        assert_eq!(order(&silent), (true, [first, second]));
        silent.forget(first);
        assert_eq!(order(&silent), (false, [first, second]));
    }
}
