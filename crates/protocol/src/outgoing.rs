//! Outgoing: connections and datagram sockets as raw streams.

use std::net::SocketAddr;

use http::HeaderMap;

use crate::stream::{get, get_bytes, require, set, set_bytes};
use crate::{Error, Result};

mod datagram;

pub use datagram::{Datagram, DatagramDecoder, MAX_DATAGRAM_BYTES};

pub const TCP: &str = "/standin.session.v1/outgoing/tcp";
pub const UDP: &str = "/standin.session.v1/outgoing/udp";
pub const UNIX: &str = "/standin.session.v1/outgoing/unix";
pub const UNIX_DATAGRAM: &str = "/standin.session.v1/outgoing/unix-datagram";

const ADDRESS: &str = "standin-address";
const BIND: &str = "standin-bind";
const FAMILY: &str = "standin-family";
const PATH: &str = "standin-path";
const ABSTRACT_NAME: &str = "standin-abstract-name";
const SOCKET_KIND: &str = "standin-socket-kind";
const LOCAL_ADDRESS: &str = "standin-local-address";
const PEER_ADDRESS: &str = "standin-peer-address";

const AN_ADDRESS: &str = "an address with a port, such as 192.0.2.1:80 or [2001:db8::1]:80";

/// Requests a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpConnect {
    pub address: SocketAddr,
    /// The local address, if the application has bound the socket.
    pub bind: Option<SocketAddr>,
}

impl TcpConnect {
    #[must_use]
    pub fn to_headers(self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        set(&mut headers, ADDRESS, self.address);
        if let Some(bind) = self.bind {
            set(&mut headers, BIND, bind);
        }
        headers
    }

    pub fn from_headers(headers: &HeaderMap) -> Result<Self> {
        Ok(Self {
            address: require(headers, ADDRESS, AN_ADDRESS)?,
            bind: get(headers, BIND, AN_ADDRESS)?,
        })
    }
}

/// The peer of a UDP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UdpPeer {
    /// One address: `connect` was called.
    Connected(SocketAddr),
    /// Not connected: each datagram has its own IPv4 or IPv6 address.
    AnyIpv4,
    AnyIpv6,
}

/// Requests a UDP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpOpen {
    pub peer: UdpPeer,
    pub bind: Option<SocketAddr>,
}

impl UdpOpen {
    #[must_use]
    pub fn to_headers(self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        match self.peer {
            UdpPeer::Connected(address) => set(&mut headers, ADDRESS, address),
            UdpPeer::AnyIpv4 => set(&mut headers, FAMILY, 4),
            UdpPeer::AnyIpv6 => set(&mut headers, FAMILY, 6),
        }
        if let Some(bind) = self.bind {
            set(&mut headers, BIND, bind);
        }
        headers
    }

    pub fn from_headers(headers: &HeaderMap) -> Result<Self> {
        const FOUR_OR_SIX: &str = "4 or 6";
        let peer = match get(headers, ADDRESS, AN_ADDRESS)? {
            Some(address) => UdpPeer::Connected(address),
            None => match require::<u8>(headers, FAMILY, FOUR_OR_SIX)? {
                4 => UdpPeer::AnyIpv4,
                6 => UdpPeer::AnyIpv6,
                _ => {
                    return Err(Error::BadHeader {
                        name: FAMILY,
                        expected: FOUR_OR_SIX,
                    });
                }
            },
        };
        Ok(Self {
            peer,
            bind: get(headers, BIND, AN_ADDRESS)?,
        })
    }
}

/// The address of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnixAddress {
    Path(Vec<u8>),
    /// Without the leading zero byte.
    Abstract(Vec<u8>),
}

/// The type of a Unix socket. Streams use [`UNIX`], the others [`UNIX_DATAGRAM`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnixKind {
    Stream,
    Datagram,
    SequencedPacket,
}

/// Requests a connected Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixConnect {
    pub address: UnixAddress,
    pub kind: UnixKind,
}

impl UnixConnect {
    /// The path of the request.
    #[must_use]
    pub fn path(&self) -> &'static str {
        match self.kind {
            UnixKind::Stream => UNIX,
            UnixKind::Datagram | UnixKind::SequencedPacket => UNIX_DATAGRAM,
        }
    }

    #[must_use]
    pub fn to_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        match &self.address {
            UnixAddress::Path(path) => set_bytes(&mut headers, PATH, path),
            UnixAddress::Abstract(name) => set_bytes(&mut headers, ABSTRACT_NAME, name),
        }
        if self.kind == UnixKind::SequencedPacket {
            set(&mut headers, SOCKET_KIND, "seqpacket");
        }
        headers
    }

    /// Reads a request to `path`, which is [`UNIX`] or [`UNIX_DATAGRAM`].
    pub fn from_headers(path: &str, headers: &HeaderMap) -> Result<Self> {
        let kind = match get::<String>(headers, SOCKET_KIND, "text")?.as_deref() {
            _ if path == UNIX => UnixKind::Stream,
            None => UnixKind::Datagram,
            Some("seqpacket") => UnixKind::SequencedPacket,
            Some(_) => {
                return Err(Error::BadHeader {
                    name: SOCKET_KIND,
                    expected: "absent or `seqpacket`",
                });
            }
        };
        let address = if let Some(name) = get_bytes(headers, ABSTRACT_NAME)? {
            UnixAddress::Abstract(name)
        } else {
            let path = get_bytes(headers, PATH)?;
            UnixAddress::Path(path.ok_or(Error::MissingHeader(PATH))?)
        };
        Ok(Self { address, kind })
    }
}

/// The two addresses of an established connection, as the target's network sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connected {
    pub local: SocketAddr,
    /// None for a UDP socket that is not connected.
    pub peer: Option<SocketAddr>,
}

impl Connected {
    #[must_use]
    pub fn to_headers(self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        set(&mut headers, LOCAL_ADDRESS, self.local);
        if let Some(peer) = self.peer {
            set(&mut headers, PEER_ADDRESS, peer);
        }
        headers
    }

    pub fn from_headers(headers: &HeaderMap) -> Result<Self> {
        Ok(Self {
            local: require(headers, LOCAL_ADDRESS, AN_ADDRESS)?,
            peer: get(headers, PEER_ADDRESS, AN_ADDRESS)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn tcp_survives_as_headers() {
        let check = |to: &str, bind: Option<&str>| {
            let connect = TcpConnect {
                address: address(to),
                bind: bind.map(address),
            };
            assert_eq!(TcpConnect::from_headers(&connect.to_headers()), Ok(connect));
        };
        check("192.0.2.1:80", None);
        check("[2001:db8::1]:443", Some("[::]:0"));
        check("[fe80::1%3]:443", None);
    }

    #[test]
    fn udp_survives_as_headers() {
        let check = |peer| {
            let open = UdpOpen {
                peer,
                bind: Some(address("0.0.0.0:5353")),
            };
            assert_eq!(UdpOpen::from_headers(&open.to_headers()), Ok(open));
        };
        check(UdpPeer::Connected(address("192.0.2.1:53")));
        check(UdpPeer::AnyIpv4);
        check(UdpPeer::AnyIpv6);
    }

    #[test]
    fn unix_survives_as_headers() {
        let check = |address, kind| {
            let connect = UnixConnect { address, kind };
            let received = UnixConnect::from_headers(connect.path(), &connect.to_headers());
            assert_eq!(received, Ok(connect));
        };
        check(
            UnixAddress::Path(b"/run/\xff.sock".into()),
            UnixKind::Stream,
        );
        check(UnixAddress::Abstract(b"a\0b".into()), UnixKind::Stream);
        check(UnixAddress::Path(b"/dev/log".into()), UnixKind::Datagram);
        check(
            UnixAddress::Path(vec![b'x'; 4096]),
            UnixKind::SequencedPacket,
        );
    }

    #[test]
    fn both_ends_survive_as_headers() {
        let check = |peer: Option<&str>| {
            let connected = Connected {
                local: address("10.0.0.1:40000"),
                peer: peer.map(address),
            };
            assert_eq!(
                Connected::from_headers(&connected.to_headers()),
                Ok(connected)
            );
        };
        check(Some("10.0.0.2:80"));
        check(None);
    }

    #[test]
    fn malformed_requests_are_rejected() {
        let mut headers = HeaderMap::new();
        assert_eq!(
            TcpConnect::from_headers(&headers),
            Err(Error::MissingHeader(ADDRESS))
        );
        assert_eq!(
            UnixConnect::from_headers(UNIX, &headers),
            Err(Error::MissingHeader(PATH))
        );
        headers.insert(FAMILY, HeaderValue::from_static("5"));
        assert!(UdpOpen::from_headers(&headers).is_err());
        headers.insert(ADDRESS, HeaderValue::from_static("example.com:80"));
        assert!(TcpConnect::from_headers(&headers).is_err());
        headers.insert(PATH, HeaderValue::from_static("/not/base64!"));
        assert!(UnixConnect::from_headers(UNIX, &headers).is_err());
    }
}
