//! Reads the destination of an IP packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The destination of an IP packet, or `None` if these bytes are not one.
pub(super) fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => {
            let octets: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            Some(Ipv4Addr::from(octets).into())
        }
        6 => {
            let octets: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_and_ipv6_destinations_are_read() {
        let mut version_four = vec![0x45; 20];
        version_four[16..].copy_from_slice(&[10, 200, 0, 7]);
        assert_eq!(
            destination(&version_four),
            Some("10.200.0.7".parse().unwrap())
        );
        assert_eq!(destination(&version_four[..19]), None);

        let mut version_six = vec![0x60; 40];
        let address: Ipv6Addr = "fd00::7".parse().unwrap();
        version_six[24..].copy_from_slice(&address.octets());
        assert_eq!(destination(&version_six), Some(address.into()));
        assert_eq!(destination(&version_six[..39]), None);

        assert_eq!(destination(&[]), None);
        assert_eq!(destination(&[0; 60]), None);
    }
}
