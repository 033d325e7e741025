//! Rules for addresses: a transport, a network and a port, each of which is optional.

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
    pub(super) fn matches(&self, transport: Transport, address: SocketAddr) -> bool {
        self.transport.is_none_or(|own| own == transport)
            && self.port.is_none_or(|port| port == address.port())
            && self.network.is_none_or(|(network, length)| {
                // An IPv4 address may be written as an IPv4-mapped IPv6 address.
                let (left, right) = (bits(network), bits(address.ip().to_canonical()));
                network.is_ipv4() == address.ip().to_canonical().is_ipv4()
                    && same_prefix(left, right, length)
            })
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => u128::from(address),
    }
}

fn same_prefix(left: u128, right: u128, length: u32) -> bool {
    (left ^ right).leading_zeros() >= length
}

#[derive(Debug, thiserror::Error)]
#[error(
    "`{0}` is not a valid rule for addresses; write `[tcp://|udp://][ADDRESS|NETWORK][:PORT]`. DNS names cannot be enforced at the \
     target"
)]
pub(crate) struct MalformedRule(String);

impl FromStr for AddressRule {
    type Err = MalformedRule;

    fn from_str(text: &str) -> Result<Self, MalformedRule> {
        let malformed = || MalformedRule(text.to_owned());
        let (transport, rest) = match text.split_once("://") {
            Some(("tcp", rest)) => (Some(Transport::Tcp), rest),
            Some(("udp", rest)) => (Some(Transport::Udp), rest),
            Some(_) => return Err(malformed()),
            None => (None, text),
        };
        let (network, port) = split(rest).ok_or_else(malformed)?;
        let port = match port {
            None => None,
            // 0 means any port.
            Some(port) => {
                Some(port.parse::<u16>().map_err(|_| malformed())?).filter(|port| *port > 0)
            }
        };
        let network = match network {
            "" => None,
            network => Some(parse_network(network).ok_or_else(malformed)?),
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
        // The prefix length is inside the brackets.
        return match rest.strip_prefix(':') {
            Some(port) => Some((address, Some(port))),
            None if rest.is_empty() => Some((address, None)),
            None => None,
        };
    }
    match text.split_once(':') {
        Some((network, port)) if !port.contains(':') => Some((network, Some(port))),
        // An IPv6 address without brackets, or a DNS name, which is rejected later.
        _ => Some((text, None)),
    }
}

fn parse_network(text: &str) -> Option<(IpAddr, u32)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length.parse::<u32>().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let max_length = match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => Ipv6Addr::BITS,
    };
    let length = length.unwrap_or(max_length);
    (length <= max_length).then_some((address, length))
}
