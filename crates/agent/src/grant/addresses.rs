//! Rules about addresses: a transport, a network and a port, each of which may be left out.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddressRule {
    transport: Option<Transport>,
    network: Option<(IpAddr, u32)>,
    port: Option<u16>,
}

impl AddressRule {
    pub(super) fn fits(&self, transport: Transport, address: SocketAddr) -> bool {
        self.transport.is_none_or(|own| own == transport)
            && self.port.is_none_or(|port| port == address.port())
            && self.network.is_none_or(|(network, length)| {
                // An address of the old kind can be written in the new one.
                let (one, other) = (bits(network), bits(address.ip().to_canonical()));
                network.is_ipv4() == address.ip().to_canonical().is_ipv4()
                    && same_prefix(one, other, length)
            })
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => u128::from(address),
    }
}

fn same_prefix(one: u128, other: u128, length: u32) -> bool {
    let differs = (one ^ other).leading_zeros();
    differs >= length
}

#[derive(Debug, thiserror::Error)]
#[error(
    "`{0}` is no rule for addresses; write `[tcp://|udp://][ADDRESS|NETWORK][:PORT]`. Names cannot be enforced beside the \
     target"
)]
pub(crate) struct Malformed(String);

impl FromStr for AddressRule {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let malformed = || Malformed(text.to_owned());
        let (transport, rest) = match text.split_once("://") {
            Some(("tcp", rest)) => (Some(Transport::Tcp), rest),
            Some(("udp", rest)) => (Some(Transport::Udp), rest),
            Some(_) => return Err(malformed()),
            None => (None, text),
        };
        let (network, port) = split(rest).ok_or_else(malformed)?;
        let port = match port {
            None => None,
            // Zero is any port, as elsewhere.
            Some(port) => {
                Some(port.parse::<u16>().map_err(|_| malformed())?).filter(|port| *port > 0)
            }
        };
        let network = match network {
            "" => None,
            network => Some(read_network(network).ok_or_else(malformed)?),
        };
        if transport.is_none() && network.is_none() && port.is_none() {
            return Err(malformed());
        }
        Ok(Self {
            transport,
            network,
            port,
        })
    }
}

/// The network and the port. An address with colons needs brackets to have a port.
fn split(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(inside) = text.strip_prefix('[') {
        let (address, rest) = inside.split_once(']')?;
        // The length of a network may be inside or behind the brackets.
        return match rest.strip_prefix(':') {
            Some(port) => Some((address, Some(port))),
            None if rest.is_empty() => Some((address, None)),
            None => None,
        };
    }
    match text.split_once(':') {
        Some((network, port)) if !port.contains(':') => Some((network, Some(port))),
        // A name, or an IPv6 address without brackets.
        _ => Some((text, None)),
    }
}

fn read_network(text: &str) -> Option<(IpAddr, u32)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length.parse::<u32>().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let longest = match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => Ipv6Addr::BITS,
    };
    let length = length.unwrap_or(longest);
    (length <= longest).then_some((address, length))
}
