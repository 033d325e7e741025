//! An entry of an address filter: `[protocol://][name|address|subnet][:port]`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::wildcard;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// The connections that an entry of a filter matches. A part that is `None` matches anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressPattern {
    pub protocol: Option<Protocol>,
    pub host: Option<HostPattern>,
    pub port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostPattern {
    /// In lower case and without the last dot. `*` stands for any characters, as in `*.example.com`.
    Name(String),
    Subnet(Subnet),
}

/// The addresses whose first bits are the same. One address is a subnet of all its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    address: IpAddr,
    bits: u8,
}

/// Why a text is not an entry of an address filter.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddressError {
    #[error("an entry names at least a protocol, a host or a port")]
    Empty,
    #[error("`{0}` is not a protocol")]
    Protocol(String),
    #[error("`{0}` is not a port")]
    Port(String),
    #[error("`{0}` is not the length of a subnet of this address")]
    Bits(String),
    #[error("`{0}` is not an address")]
    Address(String),
    #[error("`{0}` is not a host name")]
    Name(String),
}

impl AddressPattern {
    /// Whether a connection to `address` matches. `names` are the names that were resolved to it.
    pub(crate) fn matches(&self, protocol: Protocol, address: SocketAddr, names: &[&str]) -> bool {
        let host = || match &self.host {
            None => true,
            Some(HostPattern::Subnet(subnet)) => subnet.contains(address.ip()),
            Some(HostPattern::Name(pattern)) => {
                (pattern == "localhost" && address.ip().to_canonical().is_loopback())
                    || names.iter().any(|name| name_matches(pattern, name))
            }
        };
        self.protocol.is_none_or(|expected| expected == protocol)
            && self.port.is_none_or(|port| port == address.port())
            && host()
    }

    /// Whether a query for the addresses of `name` matches. An unknown port matches only entries without one.
    pub(crate) fn matches_name(&self, name: &str, port: Option<u16>) -> bool {
        let host = || match &self.host {
            None => true,
            // A query for an address has the address as its name.
            Some(HostPattern::Subnet(subnet)) => {
                name.parse().is_ok_and(|address| subnet.contains(address))
            }
            Some(HostPattern::Name(pattern)) => name_matches(pattern, name),
        };
        (self.port.is_none() || self.port == port) && host()
    }
}

fn name_matches(pattern: &str, name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    wildcard::matches_ignoring_case(pattern.as_bytes(), name.as_bytes())
}

impl Subnet {
    pub fn contains(self, other: IpAddr) -> bool {
        match (self.address, other.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(other)) => {
                same_bits(ours.to_bits().into(), other.to_bits().into(), self.bits, 32)
            }
            (IpAddr::V6(ours), IpAddr::V6(other)) => {
                same_bits(ours.to_bits(), other.to_bits(), self.bits, 128)
            }
            _ => false,
        }
    }
}

fn same_bits(ours: u128, other: u128, bits: u8, all: u8) -> bool {
    let shift = u32::from(all.saturating_sub(bits));
    // Shifting by all 128 bits is an overflow: nothing is left to compare.
    let first = |address: u128| address.checked_shr(shift).unwrap_or(0);
    first(ours) == first(other)
}

impl FromStr for AddressPattern {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.is_empty() {
            return Err(AddressError::Empty);
        }
        let (protocol, rest) = match text.split_once("://") {
            Some((protocol, rest)) => (parse_protocol(protocol)?, rest),
            None => (None, text),
        };
        let (host, port) = split_port(rest)?;
        let port = match port {
            None => None,
            Some(text) => {
                let port: u16 = text
                    .parse()
                    .map_err(|_| AddressError::Port(text.to_owned()))?;
                // Nothing listens on port 0, and other tools of this kind write it for any port.
                (port != 0).then_some(port)
            }
        };
        let host = match host {
            "" => None,
            host => Some(parse_host(host)?),
        };
        Ok(Self {
            protocol,
            host,
            port,
        })
    }
}

fn parse_protocol(text: &str) -> Result<Option<Protocol>, AddressError> {
    match text {
        "tcp" => Ok(Some(Protocol::Tcp)),
        "udp" => Ok(Some(Protocol::Udp)),
        "any" => Ok(None),
        _ => Err(AddressError::Protocol(text.to_owned())),
    }
}

/// IPv6 addresses contain colons as well, so a port after one needs brackets, or a subnet's length before it.
fn split_port(text: &str) -> Result<(&str, Option<&str>), AddressError> {
    if let Some(inside) = text.strip_prefix('[') {
        let (host, rest) = inside
            .split_once(']')
            .ok_or_else(|| AddressError::Address(text.to_owned()))?;
        if host.is_empty() {
            return Err(AddressError::Address(text.to_owned()));
        }
        return match (rest, rest.strip_prefix(':')) {
            ("", _) => Ok((host, None)),
            (_, Some(port)) => Ok((host, Some(port))),
            _ => Err(AddressError::Port(rest.to_owned())),
        };
    }
    if let Some((address, bits)) = text.split_once('/') {
        return Ok(match bits.split_once(':') {
            Some((bits, port)) => (&text[..=address.len() + bits.len()], Some(port)),
            None => (text, None),
        });
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Ok((text, None));
    }
    Ok(match text.rsplit_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    })
}

fn parse_host(text: &str) -> Result<HostPattern, AddressError> {
    if let Some((address, bits_text)) = text.split_once('/') {
        let address: IpAddr = address
            .parse()
            .map_err(|_| AddressError::Address(address.to_owned()))?;
        let bits = bits_text
            .parse()
            .ok()
            .filter(|bits| *bits <= all_bits(address))
            .ok_or_else(|| AddressError::Bits(bits_text.to_owned()))?;
        return Ok(HostPattern::Subnet(Subnet { address, bits }));
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        let address = address.to_canonical();
        let bits = all_bits(address);
        return Ok(HostPattern::Subnet(Subnet { address, bits }));
    }
    parse_name(text)
}

fn all_bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn parse_name(text: &str) -> Result<HostPattern, AddressError> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let good = |character: char| character.is_alphanumeric() || "-_.*?".contains(character);
    // A text of digits and dots only is an invalid address, and not a name.
    let only_numbers = name
        .chars()
        .all(|character| character.is_ascii_digit() || character == '.');
    if name.is_empty() || name.split('.').any(str::is_empty) || !name.chars().all(good) {
        return Err(AddressError::Name(text.to_owned()));
    }
    if only_numbers && name.parse::<Ipv4Addr>().is_err() {
        return Err(AddressError::Address(text.to_owned()));
    }
    Ok(HostPattern::Name(name))
}

impl fmt::Display for AddressPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            Some(Protocol::Tcp) => formatter.write_str("tcp://")?,
            Some(Protocol::Udp) => formatter.write_str("udp://")?,
            None if self.host.is_none() && self.port.is_none() => formatter.write_str("any://")?,
            None => {}
        }
        match &self.host {
            None => {}
            Some(HostPattern::Name(name)) => formatter.write_str(name)?,
            Some(HostPattern::Subnet(Subnet { address, bits })) => match (address, *bits) {
                (IpAddr::V4(address), 32) => write!(formatter, "{address}")?,
                (IpAddr::V4(address), bits) => write!(formatter, "{address}/{bits}")?,
                (IpAddr::V6(address), 128) => write!(formatter, "[{address}]")?,
                (IpAddr::V6(address), bits) => write!(formatter, "[{address}/{bits}]")?,
            },
        }
        match self.port {
            Some(port) => write!(formatter, ":{port}"),
            None => Ok(()),
        }
    }
}

impl TryFrom<String> for AddressPattern {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<AddressPattern> for String {
    fn from(pattern: AddressPattern) -> Self {
        pattern.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_and_written_back() {
        for (text, written) in [
            ("tcp://10.0.0.0/8:5432", "tcp://10.0.0.0/8:5432"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("api.example.com:443", "api.example.com:443"),
            ("API.example.com.", "api.example.com"),
            ("*.example.com", "*.example.com"),
            (":53", ":53"),
            ("udp://:53", "udp://:53"),
            ("tcp://", "tcp://"),
            ("any://", "any://"),
            ("any://db", "db"),
            ("db:0", "db"),
            ("1.2.3.4", "1.2.3.4"),
            ("1.2.3.4:80", "1.2.3.4:80"),
            ("::1", "[::1]"),
            ("[::1]:80", "[::1]:80"),
            ("[fd00::/8]:443", "[fd00::/8]:443"),
            ("fd00::/8:443", "[fd00::/8]:443"),
            ("fd00::/8", "[fd00::/8]"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("localhost:1337", "localhost:1337"),
            ("my_service", "my_service"),
        ] {
            let pattern: AddressPattern = text
                .parse()
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(pattern.to_string(), written, "{text}");
            assert_eq!(written.parse(), Ok(pattern), "{written}");
        }
    }

    #[test]
    fn invalid_entries_have_a_reason() {
        for (text, error) in [
            ("", AddressError::Empty),
            ("http://db", AddressError::Protocol("http".to_owned())),
            ("db:http", AddressError::Port("http".to_owned())),
            ("db:70000", AddressError::Port("70000".to_owned())),
            ("10.0.0.0/33", AddressError::Bits("33".to_owned())),
            ("10.0.0.0/x:1", AddressError::Bits("x".to_owned())),
            ("10.0.0/8", AddressError::Address("10.0.0".to_owned())),
            ("10.0.0.256", AddressError::Address("10.0.0.256".to_owned())),
            ("[::1", AddressError::Address("[::1".to_owned())),
            ("[]:1", AddressError::Address("[]:1".to_owned())),
            ("[::1]80", AddressError::Port("80".to_owned())),
            ("a b", AddressError::Name("a b".to_owned())),
            ("a..b", AddressError::Name("a..b".to_owned())),
        ] {
            assert_eq!(text.parse::<AddressPattern>(), Err(error), "{text}");
        }
    }

    #[test]
    fn entries_match() {
        let check = |pattern: &str, address: &str, names: &[&str]| {
            let pattern: AddressPattern = pattern.parse().unwrap();
            pattern.matches(Protocol::Tcp, address.parse().unwrap(), names)
        };
        for (pattern, address, names, expected) in [
            ("10.0.0.0/8", "10.1.2.3:80", &[][..], true),
            ("10.0.0.0/8", "11.1.2.3:80", &[], false),
            ("10.0.0.0/8", "[::ffff:10.1.2.3]:80", &[], true),
            ("10.0.0.0/8:81", "10.1.2.3:80", &[], false),
            ("0.0.0.0/0", "1.2.3.4:5", &[], true),
            ("0.0.0.0/0", "[::2]:5", &[], false),
            ("::/0", "[fe80::1]:5", &[], true),
            ("fd00::/8", "[fdaa::1]:5", &[], true),
            ("fd00::/8", "[fe80::1]:5", &[], false),
            ("tcp://:80", "1.2.3.4:80", &[], true),
            ("udp://:80", "1.2.3.4:80", &[], false),
            ("db", "1.2.3.4:80", &["db"], true),
            ("db", "1.2.3.4:80", &["DB."], true),
            ("db", "1.2.3.4:80", &["db.shop"], false),
            ("*.shop", "1.2.3.4:80", &["x", "db.shop"], true),
            ("db", "1.2.3.4:80", &[], false),
            ("localhost", "127.0.0.1:80", &[], true),
            ("localhost", "[::1]:80", &[], true),
        ] {
            assert_eq!(
                check(pattern, address, names),
                expected,
                "{pattern} {address}"
            );
        }
    }
}
