//! Which user has the other end of a connection on localhost.

use std::fs;
use std::net::{IpAddr, SocketAddr};

/// The sockets of this network namespace. A socket for IPv6 can be connected to an IPv4 address.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// Whether a client on this machine belongs to this user, or to root, who can read everything anyway. False if the client
/// is not found.
pub(super) fn is_own(client: SocketAddr, server: SocketAddr) -> bool {
    let own = rustix::process::getuid().as_raw();
    let tables = TABLES
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok());
    let mut owners = tables.filter_map(|table| owner(&table, client, server));
    owners
        .next()
        .is_some_and(|owner| owner == own || owner == 0)
}

/// The user of the socket with these addresses.
fn owner(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let (local, remote) = (in_table(local)?, in_table(remote)?);
    table.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        // An IPv4 address is the last part of the IPv6 address that contains it.
        let is_found = fields.next()?.ends_with(&local) && fields.next()?.ends_with(&remote);
        is_found.then(|| fields.nth(4)?.parse().ok()).flatten()
    })
}

/// An address as the kernel prints it: in hexadecimal digits, in the byte order of the machine.
fn in_table(address: SocketAddr) -> Option<String> {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => {
            let ip = u32::from_ne_bytes(ip.octets());
            Some(format!("{ip:08X}:{:04X}", address.port()))
        }
        IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_owner_of_a_client_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let client = TcpStream::connect(server).unwrap();
        assert!(is_own(client.local_addr().unwrap(), server));
        assert!(!is_own("127.0.0.1:1".parse().unwrap(), server));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn the_kernels_table_is_parsed() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
             0: 0100007F:E791 0100007F:A8F0 01 00000000:00000000 00:00000000 00000000     0        0 11 1\n   \
             1: 0100007F:A8F0 0100007F:E791 01 00000000:00000000 00:00000000 00000000  1000        0 12 1\n";
        let table6 = "   0: 0000000000000000FFFF00000100007F:A8F1 0000000000000000FFFF00000100007F:E791 01 \
             00000000:00000000 00:00000000 00000000  1001        0 13 1\n";
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let server = address(0xE791);
        assert_eq!(owner(table, address(0xA8F0), server), Some(1000));
        assert_eq!(owner(table6, address(0xA8F1), server), Some(1001));
        assert_eq!(owner(table, address(0xA8F1), server), None);
    }
}
