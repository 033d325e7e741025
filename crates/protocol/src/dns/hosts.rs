//! The hosts file: host names that need no nameserver.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::rpc::Family;

/// The result of a lookup in the hosts file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostsMatch {
    /// The first name of the first matching line.
    pub canonical_name: String,
    /// The addresses of the requested family.
    pub addresses: Vec<IpAddr>,
}

/// Looks a name up in the text of a hosts file. `None`: it has no such name in this family, so a nameserver must be queried.
#[must_use]
pub fn find_in_hosts(hosts: &[u8], name: &str, family: Family) -> Option<HostsMatch> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let mut found: Option<HostsMatch> = None;
    for HostsEntry { address, names } in hosts_entries(hosts) {
        if !names.iter().any(|entry| entry.eq_ignore_ascii_case(name)) {
            continue;
        }
        let matched = found.get_or_insert_with(|| HostsMatch {
            canonical_name: names.first().map_or(name, String::as_str).to_owned(),
            addresses: Vec::new(),
        });
        if of_family(address, family) && !matched.addresses.contains(&address) {
            matched.addresses.push(address);
        }
    }
    // Like libc: if the file has the name in one family only, the nameservers are queried for the other.
    found.filter(|matched| !matched.addresses.is_empty())
}

/// One line of a hosts file: an address and its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostsEntry {
    pub address: IpAddr,
    pub names: Vec<String>,
}

/// Parses a hosts file. Comments and malformed lines are skipped.
#[must_use]
pub fn hosts_entries(hosts: &[u8]) -> Vec<HostsEntry> {
    let line = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        Some(HostsEntry {
            address: words.next().and_then(parse_address)?,
            names: words.map(str::to_owned).collect(),
        })
    };
    let text = String::from_utf8_lossy(hosts);
    text.lines().filter_map(line).collect()
}

fn parse_address(text: &str) -> Option<IpAddr> {
    // The scope after '%' only matters for link-local addresses, and a DNS answer cannot carry it.
    text.split('%').next()?.parse().ok()
}

fn of_family(address: IpAddr, family: Family) -> bool {
    match family {
        Family::Any => true,
        Family::Ipv4 => matches!(address, IpAddr::V4(Ipv4Addr { .. })),
        Family::Ipv6 => matches!(address, IpAddr::V6(Ipv6Addr { .. })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: &[u8] = b"127.0.0.1 localhost\n\
        ::1 localhost ip6-localhost # comment with api\n\
        \xff\xfe broken\n\
        10.0.0.5\tdb.internal  db DB2\n\
        10.0.0.6 db.internal\n\
        10.0.0.6 db.internal\n\
        not-an-address nowhere\n\
        # 10.0.0.7 commented\n";

    fn check(name: &str, family: Family, expected: Option<(&str, &[&str])>) {
        let found = find_in_hosts(HOSTS, name, family);
        let expected = expected.map(|(canonical_name, addresses)| HostsMatch {
            canonical_name: canonical_name.to_owned(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        });
        assert_eq!(found, expected, "{name}");
    }

    #[test]
    fn names_are_found_by_family() {
        check(
            "localhost",
            Family::Any,
            Some(("localhost", &["127.0.0.1", "::1"])),
        );
        check(
            "localhost",
            Family::Ipv4,
            Some(("localhost", &["127.0.0.1"])),
        );
        check("localhost.", Family::Ipv6, Some(("localhost", &["::1"])));
        check("ip6-localhost", Family::Ipv4, None);
        check("db2", Family::Any, Some(("db.internal", &["10.0.0.5"])));
        check(
            "db.internal",
            Family::Any,
            Some(("db.internal", &["10.0.0.5", "10.0.0.6"])),
        );
        check("nowhere", Family::Any, None);
        check("commented", Family::Any, None);
        check("api", Family::Any, None);
        check("", Family::Any, None);
    }
}
