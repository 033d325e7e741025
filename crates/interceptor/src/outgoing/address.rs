//! Conversion of socket addresses to and from the bytes of the kernel.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Destination;

const PATH_OFFSET: usize = 2;

/// The meaning of a `sockaddr` for a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    To(Destination),
    /// `AF_UNSPEC`: dissolves the association of a socket.
    Nowhere,
    /// An address that is never remote.
    Other,
}

pub(super) fn parse(bytes: &[u8]) -> Parsed {
    let Some((family, rest)) = bytes.split_first_chunk::<2>() else {
        return Parsed::Other;
    };
    match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_UNSPEC => Parsed::Nowhere,
        libc::AF_INET | libc::AF_INET6 => internet(bytes).map_or(Parsed::Other, |address| {
            Parsed::To(Destination::Internet(address))
        }),
        libc::AF_UNIX => {
            let end = rest
                .iter()
                .position(|byte| *byte == 0)
                .unwrap_or(rest.len());
            match rest.get(..end) {
                // Abstract addresses begin with a zero byte and belong to this machine.
                None | Some([]) => Parsed::Other,
                Some(path) => Parsed::To(Destination::Unix(PathBuf::from(OsStr::from_bytes(path)))),
            }
        }
        _ => Parsed::Other,
    }
}

/// Parses an internet address. An IPv4-mapped IPv6 address is returned as IPv4.
pub(crate) fn internet(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*bytes.first_chunk::<2>()?);
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    match i32::from(family) {
        libc::AF_INET => {
            let address: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
            Some(SocketAddr::from((Ipv4Addr::from(address), port)))
        }
        libc::AF_INET6 => {
            let address: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
            let address = Ipv6Addr::from(address);
            if let Some(wrapped) = address.to_ipv4_mapped() {
                return Some(SocketAddr::from((wrapped, port)));
            }
            let flow = u32::from_be_bytes(bytes.get(4..8)?.try_into().ok()?);
            let scope = bytes.get(24..28).and_then(|bytes| bytes.try_into().ok());
            let scope = scope.map_or(0, u32::from_ne_bytes);
            Some(SocketAddrV6::new(address, port, flow, scope).into())
        }
        _ => None,
    }
}

/// Encodes an internet address for a socket of this family.
pub(crate) fn encode_internet(address: SocketAddr, domain: i32) -> Vec<u8> {
    let port = address.port().to_be_bytes();
    let family = |family: i32| u16::try_from(family).unwrap_or_default().to_ne_bytes();
    match (address.ip(), domain) {
        (IpAddr::V4(ip), libc::AF_INET) => {
            [&family(libc::AF_INET)[..], &port, &ip.octets(), &[0; 8]].concat()
        }
        (ip, _) => {
            let octets = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            let (flow, scope) = match address {
                SocketAddr::V6(address) => (address.flowinfo(), address.scope_id()),
                SocketAddr::V4(_) => (0, 0),
            };
            [
                &family(libc::AF_INET6)[..],
                &port,
                &flow.to_be_bytes(),
                &octets,
                &scope.to_ne_bytes(),
            ]
            .concat()
        }
    }
}

pub(super) fn encode_unix(path: &Path) -> Vec<u8> {
    let family = u16::try_from(libc::AF_UNIX).unwrap_or_default();
    let mut bytes = family.to_ne_bytes().to_vec();
    bytes.extend(path.as_os_str().as_bytes());
    if bytes.len() > PATH_OFFSET {
        bytes.push(0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        let table = [
            ("198.51.100.7:80", libc::AF_INET),
            ("198.51.100.7:80", libc::AF_INET6),
            ("[2001:db8::1]:443", libc::AF_INET6),
            ("[fe80::1%3]:443", libc::AF_INET6),
        ];
        for (text, domain) in table {
            let address: SocketAddr = text.parse().unwrap();
            let bytes = encode_internet(address, domain);
            assert_eq!(i32::from(bytes[0]), domain, "{text}");
            assert_eq!(internet(&bytes), Some(address), "{text}");
        }
    }

    #[test]
    fn address_meanings() {
        let unix = encode_unix(Path::new("/run/app.sock"));
        assert_eq!(
            parse(&unix),
            Parsed::To(Destination::Unix("/run/app.sock".into()))
        );
        assert_eq!(parse(b"\x01\x00\x00abstract"), Parsed::Other);
        assert_eq!(parse(&[1, 0]), Parsed::Other);
        assert_eq!(parse(&[0, 0, 0, 0]), Parsed::Nowhere);
        assert_eq!(parse(&[16, 0, 0, 0]), Parsed::Other);
        assert_eq!(parse(&[2, 0, 0]), Parsed::Other);
        assert_eq!(parse(&[]), Parsed::Other);
    }
}
