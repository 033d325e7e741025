//! Whether redirected traffic really arrives, tried with a connection or a datagram of our own.
//!
//! A probe that does not arrive at the agent reaches the application, as an empty connection or datagram: this is the
//! price of finding out.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rustix::net::SocketType;
use tokio::net::TcpSocket;
use tokio::time::timeout;

use super::{Evidence, Inside, Port, Protocol, addresses, arrivals, connections, sockets};
use crate::target::Namespace;
use crate::{Error, Result};

/// Longer than a first packet may be lost and sent again.
const PATIENCE: Duration = Duration::from_secs(3);
/// From outside the target is on the same machine, or not reached at all: then it would only be waited for.
const OUTSIDE_PATIENCE: Duration = Duration::from_millis(300);

/// What a check has proven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    pub port: Port,
    /// Never [`Evidence::Nothing`]: that is an error.
    pub evidence: Evidence,
    /// What else rewrites the traffic of this network.
    pub mesh: Option<Mesh>,
}

/// A service mesh whose sidecar is in the target's network. The agent sees what the sidecar sends on to the application, so
/// the peers that it sees are the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mesh {
    Istio,
    Linkerd,
}

impl Mesh {
    /// Known by the port to which its rules send what arrives.
    fn of(is_listening: impl Fn(u16) -> bool) -> Option<Self> {
        const ISTIO_INBOUND: u16 = 15_006;
        const LINKERD_INBOUND: u16 = 4_143;
        match () {
            () if is_listening(ISTIO_INBOUND) => Some(Self::Istio),
            () if is_listening(LINKERD_INBOUND) => Some(Self::Linkerd),
            () => None,
        }
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Istio => "Istio",
            Self::Linkerd => "Linkerd",
        })
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            port,
            evidence,
            mesh,
        } = self;
        match evidence {
            Evidence::Nothing => write!(formatter, "{port}: not checked"),
            Evidence::Loopback => write!(formatter, "{port}: checked on loopback only"),
            Evidence::Outside => write!(formatter, "{port}: checked from outside"),
        }?;
        match mesh {
            Some(mesh) => write!(
                formatter,
                " (behind the sidecar of {mesh}: peers are the sidecar's addresses)"
            ),
            None => Ok(()),
        }
    }
}

impl Inside {
    pub(super) async fn find_mesh(&self) -> Result<Option<Mesh>> {
        let list = connections::listening_ports;
        let listening = self.agent.sockets().run(list).await?;
        Ok(Mesh::of(|port| listening.contains(&port)))
    }

    pub(super) async fn check(&self, port: Port) -> Result<Checked> {
        let mesh = self.find_mesh().await?;
        let own = self.agent.sockets().run(addresses::own).await?;
        let loopback: Vec<IpAddr> = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
            .into_iter()
            .filter(|address| own.contains(address))
            .collect();
        for address in &loopback {
            if !self.probe(port, *address, true).await? {
                return Err(Error::NothingArrives { port });
            }
            self.seen.note(port, Evidence::Loopback);
        }
        // A sidecar would take the probe for a client, and its own connection for no probe.
        let outside = !matches!(self.agent.target().network, Namespace::Shared) && mesh.is_none();
        let others = own.into_iter().filter(|address| !address.is_loopback());
        let others = others.filter(|_| outside);
        let mut probes: FuturesUnordered<_> = others
            .map(|address| self.probe(port, address, false))
            .collect();
        // One way is enough, and an address that nobody reaches from here takes all of our patience.
        while let Some(arrived) = probes.next().await {
            if arrived.unwrap_or(false) {
                self.seen.note(port, Evidence::Outside);
                break;
            }
        }
        match self.seen.evidence(port) {
            Evidence::Nothing => Err(Error::NothingArrives { port }),
            evidence => Ok(Checked {
                port,
                evidence,
                mesh,
            }),
        }
    }

    /// Whether what is sent to this address arrives here.
    async fn probe(&self, port: Port, address: IpAddr, from_inside: bool) -> Result<bool> {
        let kind = match port.protocol {
            Protocol::Tcp => SocketType::STREAM,
            Protocol::Udp => SocketType::DGRAM,
        };
        let make = move || {
            sockets::probe(address, kind).map_err(Error::operation("make a socket for a probe"))
        };
        let (socket, own_port) = match from_inside {
            true => self.agent.sockets().run(make).await?,
            false => make()?,
        };
        let destination = SocketAddr::new(address, port.number);
        let arrival = self.seen.expect(own_port, destination);
        let sent = async {
            let sent = send(socket, kind, destination).await;
            match sent {
                // Kept until it has arrived.
                Ok(kept) => {
                    std::future::pending::<()>().await;
                    drop(kept);
                }
                Err(error) => tracing::debug!(%error, %destination, "a probe could not be sent"),
            }
        };
        let arrived = async {
            tokio::select! {
                arrived = arrival => arrived.is_ok(),
                () = sent => false,
            }
        };
        let patience = match from_inside {
            true => PATIENCE,
            false => OUTSIDE_PATIENCE,
        };
        let arrived = timeout(patience, arrived).await.unwrap_or(false);
        self.seen.expect_no_more(own_port, destination);
        Ok(arrived)
    }
}

/// What must not be closed while the probe is on its way.
enum Kept {
    Connection(#[expect(dead_code, reason = "closed when dropped")] tokio::net::TcpStream),
    Socket(#[expect(dead_code, reason = "closed when dropped")] tokio::net::UdpSocket),
}

async fn send(socket: OwnedFd, kind: SocketType, destination: SocketAddr) -> Result<Kept> {
    if kind == SocketType::STREAM {
        let socket = TcpSocket::from_std_stream(socket.into());
        let stream = socket.connect(destination).await;
        return stream
            .map(Kept::Connection)
            .map_err(Error::io("connect a probe"));
    }
    let socket = arrivals::from_descriptor(socket)?;
    let sent = socket.send_to(&[], destination).await;
    sent.map_err(Error::io("send a probe"))?;
    Ok(Kept::Socket(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_was_proven() {
        let check = |evidence, mesh, wanted: &str| {
            let checked = Checked {
                port: Port::udp(53),
                evidence,
                mesh,
            };
            assert_eq!(checked.to_string(), wanted);
        };
        check(Evidence::Outside, None, "UDP port 53: checked from outside");
        check(
            Evidence::Loopback,
            None,
            "UDP port 53: checked on loopback only",
        );
        check(
            Evidence::Loopback,
            Some(Mesh::Istio),
            "UDP port 53: checked on loopback only (behind the sidecar of Istio: peers are the sidecar's addresses)",
        );
    }

    #[test]
    fn a_mesh_is_known_by_the_port_of_its_sidecar() {
        assert_eq!(Mesh::of(|_| false), None);
        assert_eq!(Mesh::of(|port| port == 15_006), Some(Mesh::Istio));
        assert_eq!(Mesh::of(|port| port == 4_143), Some(Mesh::Linkerd));
    }
}
