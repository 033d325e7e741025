//! The addresses of the target's network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::io::Errno;

use super::netlink::{DUMP, Message, Netlink, attributes};
use crate::{Error, Result};

const GET_ADDRESSES: u16 = 22;
const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;
const HEADER: usize = 8;
const ADDRESS: u16 = 1;
/// The local address. On point-to-point interfaces `ADDRESS` is the address of the other end.
const LOCAL: u16 = 2;
/// Flags of an address that cannot be used: duplicate address detection is running or has failed.
const UNUSABLE: u8 = 0x40 | 0x08;

/// The usable addresses, without link-local ones, which are valid only together with an interface. Must run inside the
/// target's network.
pub(super) fn own() -> Result<Vec<IpAddr>> {
    let listed = Netlink::open(None).and_then(|mut netlink| {
        netlink.items(Message {
            kind: GET_ADDRESSES,
            flags: DUMP,
            body: vec![0; HEADER],
        })
    });
    let items = listed.map_err(list_error)?;
    Ok(items.iter().filter_map(|item| parse(item)).collect())
}

fn parse(item: &[u8]) -> Option<IpAddr> {
    let (family, flags) = (*item.first()?, *item.get(2)?);
    let value = |attribute: u16| {
        let found = attributes(item.get(HEADER..)?).find(|(kind, _)| *kind == attribute);
        found.map(|(_, value)| value)
    };
    let value = value(LOCAL).or_else(|| value(ADDRESS))?;
    let address: IpAddr = match family {
        FAMILY_IPV4 => Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into(),
        FAMILY_IPV6 => {
            let address = Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?);
            (!address.is_unicast_link_local())
                .then_some(address)?
                .into()
        }
        _ => return None,
    };
    (flags & UNUSABLE == 0).then_some(address)
}

fn list_error(source: Errno) -> Error {
    Error::Agent {
        action: "list the target's addresses",
        hint: "allow it netlink sockets, which a security profile may forbid",
        source,
    }
}
