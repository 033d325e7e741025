//! Verifies with probes that the agent receives the redirected traffic: a connection or a datagram of the agent itself.
//!
//! If the redirection does not work, a probe reaches the application as an empty connection or datagram.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rustix::net::SocketType;
use tokio::net::TcpSocket;
use tokio::time::timeout;

use super::{
    Port, Protocol, RedirectEvidence, RedirectState, addresses, connections, listeners, sockets,
};
use crate::target::Namespace;
use crate::{Error, Result};

/// The timeout of probes from inside the target's network. Long enough for one retransmission of a lost packet.
const LOOPBACK_PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// The timeout of probes from outside. The agent is on the same machine as the target, so a probe is received at once or
/// never.
const EXTERNAL_PROBE_TIMEOUT: Duration = Duration::from_millis(300);

/// The result of a successful check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    pub port: Port,
    /// Never [`RedirectEvidence::Unverified`]: that is an error.
    pub evidence: RedirectEvidence,
    /// The service mesh that also redirects traffic of this network.
    pub mesh: Option<Mesh>,
}

/// A service mesh whose sidecar is in the target's network. The agent receives the traffic that the sidecar forwards to the
/// application, so the client addresses are those of the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mesh {
    Istio,
    Linkerd,
}

impl Mesh {
    /// Detects the mesh by the port that its rules redirect incoming traffic to.
    fn detect(is_listening: impl Fn(u16) -> bool) -> Option<Self> {
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

impl fmt::Display for CheckReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            port,
            evidence,
            mesh,
        } = self;
        match evidence {
            RedirectEvidence::Unverified => write!(formatter, "{port}: not checked"),
            RedirectEvidence::Loopback => write!(formatter, "{port}: checked on loopback only"),
            RedirectEvidence::External => write!(formatter, "{port}: checked from outside"),
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

impl RedirectState {
    pub(super) async fn find_mesh(&self) -> Result<Option<Mesh>> {
        let listening = self
            .agent
            .sockets()
            .run(connections::listening_ports)
            .await?;
        Ok(Mesh::detect(|port| listening.contains(&port)))
    }

    pub(super) async fn check(&self, port: Port) -> Result<CheckReport> {
        let mesh = self.find_mesh().await?;
        let own = self.agent.sockets().run(addresses::own).await?;
        let loopback: Vec<IpAddr> = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
            .into_iter()
            .filter(|address| own.contains(address))
            .collect();
        for address in &loopback {
            if !self.probe(port, *address, true).await? {
                return Err(Error::NotRedirected { port });
            }
            self.tracker.record(port, RedirectEvidence::Loopback);
        }
        // A sidecar would accept the probe as a client, and its own connection would not be recognized as a probe.
        let is_external_possible =
            !matches!(self.agent.target().network, Namespace::Shared) && mesh.is_none();
        let others = own.into_iter().filter(|address| !address.is_loopback());
        let others = others.filter(|_| is_external_possible);
        let mut probes: FuturesUnordered<_> = others
            .map(|address| self.probe(port, address, false))
            .collect();
        // One address is enough, and the probe of an address that cannot be reached from here takes the whole timeout.
        while let Some(received) = probes.next().await {
            if received.unwrap_or(false) {
                self.tracker.record(port, RedirectEvidence::External);
                break;
            }
        }
        match self.tracker.evidence(port) {
            RedirectEvidence::Unverified => Err(Error::NotRedirected { port }),
            evidence => Ok(CheckReport {
                port,
                evidence,
                mesh,
            }),
        }
    }

    /// Whether the agent receives a probe that is sent to this address.
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
        let received = self.tracker.register_probe(own_port, destination);
        let sent = async {
            let sent = send(socket, kind, destination).await;
            match sent {
                // Stays open until it is received.
                Ok(open) => {
                    std::future::pending::<()>().await;
                    drop(open);
                }
                Err(error) => tracing::debug!(%error, %destination, "probe failed"),
            }
        };
        let received = async {
            tokio::select! {
                received = received => received.is_ok(),
                () = sent => false,
            }
        };
        let probe_timeout = match from_inside {
            true => LOOPBACK_PROBE_TIMEOUT,
            false => EXTERNAL_PROBE_TIMEOUT,
        };
        let received = timeout(probe_timeout, received).await.unwrap_or(false);
        self.tracker.unregister_probe(own_port, destination);
        Ok(received)
    }
}

/// The socket of a probe, which must not be closed before the probe is received.
enum ProbeSocket {
    Tcp(#[expect(dead_code, reason = "closed when dropped")] tokio::net::TcpStream),
    Udp(#[expect(dead_code, reason = "closed when dropped")] tokio::net::UdpSocket),
}

async fn send(socket: OwnedFd, kind: SocketType, destination: SocketAddr) -> Result<ProbeSocket> {
    if kind == SocketType::STREAM {
        let socket = TcpSocket::from_std_stream(socket.into());
        let stream = socket.connect(destination).await;
        return stream
            .map(ProbeSocket::Tcp)
            .map_err(Error::io("connect a probe"));
    }
    let socket = listeners::from_descriptor(socket)?;
    let sent = socket.send_to(&[], destination).await;
    sent.map_err(Error::io("send a probe"))?;
    Ok(ProbeSocket::Udp(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_was_verified() {
        let check = |evidence, mesh, expected: &str| {
            let report = CheckReport {
                port: Port::udp(53),
                evidence,
                mesh,
            };
            assert_eq!(report.to_string(), expected);
        };
        check(
            RedirectEvidence::External,
            None,
            "UDP port 53: checked from outside",
        );
        check(
            RedirectEvidence::Loopback,
            None,
            "UDP port 53: checked on loopback only",
        );
        check(
            RedirectEvidence::Loopback,
            Some(Mesh::Istio),
            "UDP port 53: checked on loopback only (behind the sidecar of Istio: peers are the sidecar's addresses)",
        );
    }

    #[test]
    fn a_mesh_is_detected_by_the_port_of_its_sidecar() {
        assert_eq!(Mesh::detect(|_| false), None);
        assert_eq!(Mesh::detect(|port| port == 15_006), Some(Mesh::Istio));
        assert_eq!(Mesh::detect(|port| port == 4_143), Some(Mesh::Linkerd));
    }
}
