//! The DNS names of addresses, so that filters for connections can contain names.
//!
//! The names come from every DNS response that the application gets, from the target's hosts file, and from the names in
//! filters. The map is limited in size; the oldest entries are evicted.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use super::response::ResolvedAddress;

const MAX_ADDRESSES: usize = 4096;
const MAX_NAMES_PER_ADDRESS: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct NameMap {
    resolved: HashMap<IpAddr, ResolvedNames>,
    /// Addresses in the order of their last update.
    order: BTreeMap<u64, IpAddr>,
    last_number: u64,
    /// The names in the target's hosts file. Replaced as a whole.
    hosts: HashMap<IpAddr, Vec<String>>,
    /// The target's search list. A name is also stored without a suffix from this list.
    search: Vec<String>,
}

#[derive(Debug)]
struct ResolvedNames {
    number: u64,
    /// The newest first.
    names: Vec<String>,
}

impl NameMap {
    /// The names of an address, the newest first.
    pub(crate) fn names_of(&self, address: IpAddr) -> Vec<&str> {
        let address = address.to_canonical();
        let resolved = self.resolved.get(&address).map(|entry| &entry.names);
        let hosts = self.hosts.get(&address);
        let names = [resolved, hosts].into_iter().flatten().flatten();
        names.map(String::as_str).collect()
    }

    /// Adds the names of a resolved address.
    pub(crate) fn insert(&mut self, resolution: &ResolvedAddress) {
        let address = resolution.address.to_canonical();
        self.last_number += 1;
        let number = self.last_number;
        // The queried name is the first in the response, and stays the first here.
        let names: Vec<String> = resolution
            .names
            .iter()
            .flat_map(|name| self.name_forms(name))
            .collect();
        let entry = self.resolved.entry(address).or_insert(ResolvedNames {
            number,
            names: Vec::new(),
        });
        self.order.remove(&entry.number);
        self.order.insert(number, address);
        entry.number = number;
        entry.names.retain(|name| !names.contains(name));
        entry.names.splice(0..0, names);
        entry.names.truncate(MAX_NAMES_PER_ADDRESS);
        while self.resolved.len() > MAX_ADDRESSES {
            let Some((_, oldest)) = self.order.pop_first() else {
                return;
            };
            self.resolved.remove(&oldest);
        }
    }

    pub(crate) fn set_hosts(&mut self, hosts: HashMap<IpAddr, Vec<String>>) {
        self.hosts = hosts;
    }

    pub(crate) fn set_search(&mut self, search: &[String]) {
        let lower = search.iter().map(|domain| domain.to_ascii_lowercase());
        self.search = lower.collect();
    }

    /// A name, also without each suffix of the search list: the forms that the application may have been configured with.
    fn name_forms(&self, name: &str) -> Vec<String> {
        let mut forms = vec![name.to_owned()];
        let shorter = |domain: &String| {
            let rest = name.strip_suffix(domain.as_str())?.strip_suffix('.')?;
            (!rest.is_empty()).then(|| rest.to_owned())
        };
        forms.extend(self.search.iter().filter_map(shorter));
        forms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(search: &[&str], resolved: &[(&str, &[&str])]) -> NameMap {
        let mut map = NameMap::default();
        let search: Vec<String> = search.iter().copied().map(str::to_owned).collect();
        map.set_search(&search);
        for (address, names) in resolved {
            map.insert(&ResolvedAddress {
                address: address.parse().unwrap(),
                names: names.iter().copied().map(str::to_owned).collect(),
            });
        }
        map
    }

    #[test]
    fn names_of_addresses() {
        let cluster = &["shop.svc.cluster.local", "Svc.Cluster.Local", "."][..];
        type Texts = [&'static str];
        type ResolvedNames = [(&'static str, &'static Texts)];
        let table: &[(&Texts, &ResolvedNames, &str, &Texts)] = &[
            (&[], &[], "10.0.0.1", &[]),
            (&[], &[("10.0.0.1", &["a"])], "10.0.0.1", &["a"]),
            (&[], &[("10.0.0.1", &["a"])], "::ffff:10.0.0.1", &["a"]),
            (&[], &[("10.0.0.1", &["a"])], "10.0.0.2", &[]),
            (&[], &[("fd00::1", &["a"])], "fd00::1", &["a"]),
            // A chain of aliases.
            (&[], &[("10.0.0.1", &["a", "b"])], "10.0.0.1", &["a", "b"]),
            // The newest first, and once.
            (
                &[],
                &[
                    ("10.0.0.1", &["a"]),
                    ("10.0.0.1", &["b"]),
                    ("10.0.0.1", &["a"]),
                ],
                "10.0.0.1",
                &["a", "b"],
            ),
            (
                cluster,
                &[("10.0.0.1", &["db.shop.svc.cluster.local"])],
                "10.0.0.1",
                &["db.shop.svc.cluster.local", "db", "db.shop"],
            ),
            (
                cluster,
                &[("10.0.0.1", &["svc.cluster.local"])],
                "10.0.0.1",
                &["svc.cluster.local"],
            ),
            (
                cluster,
                &[("10.0.0.1", &["xsvc.cluster.local"])],
                "10.0.0.1",
                &["xsvc.cluster.local"],
            ),
        ];
        for (search, resolved, address, expected) in table {
            let map = map(search, resolved);
            assert_eq!(
                map.names_of(address.parse().unwrap()),
                *expected,
                "{resolved:?}"
            );
        }
    }

    #[test]
    fn the_oldest_entries_are_evicted() {
        let mut map = NameMap::default();
        let address = |number: usize| IpAddr::from(u32::try_from(number).unwrap().to_be_bytes());
        let mut insert = |number, name: String| {
            map.insert(&ResolvedAddress {
                address: address(number),
                names: vec![name],
            });
        };
        for number in 0..=MAX_ADDRESSES {
            // The first address is updated all the time.
            insert(0, "first".to_owned());
            insert(number, format!("name-{number}"));
        }
        for number in 0..=MAX_NAMES_PER_ADDRESS {
            insert(0, format!("another-{number}"));
        }
        assert_eq!(map.resolved.len(), MAX_ADDRESSES);
        assert_eq!(map.order.len(), MAX_ADDRESSES);
        assert!(map.names_of(address(1)).is_empty());
        assert_eq!(map.names_of(address(2)), ["name-2"]);
        let first = map.names_of(address(0));
        assert_eq!(first.len(), MAX_NAMES_PER_ADDRESS);
        assert_eq!(first[0], format!("another-{MAX_NAMES_PER_ADDRESS}"));
    }

    #[test]
    fn hosts_are_replaced_as_a_whole() {
        let mut map = map(&[], &[("10.0.0.1", &["resolved"])]);
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        map.set_hosts(HashMap::from([(address, vec!["db".to_owned()])]));
        assert_eq!(map.names_of(address), ["resolved", "db"]);
        map.set_hosts(HashMap::new());
        assert_eq!(map.names_of(address), ["resolved"]);
    }
}
