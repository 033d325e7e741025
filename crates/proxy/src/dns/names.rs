//! Which names lead to an address, so that filters can speak of names.
//!
//! Fed by every answer that the application gets, by the target's hosts file, and by the names that filters mention.
//! Bounded: what was learned last stays.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use super::answer::Resolved;

const MOST_ADDRESSES: usize = 4096;
const MOST_NAMES: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct NameMap {
    learned: HashMap<IpAddr, Learned>,
    /// Addresses in the order in which they were last learned of.
    order: BTreeMap<u64, IpAddr>,
    last_number: u64,
    /// What the target's hosts file says. Replaced as a whole.
    hosts: HashMap<IpAddr, Vec<String>>,
    /// The target's search list: a name is also known by what is left of it without one of these.
    search: Vec<String>,
}

#[derive(Debug)]
struct Learned {
    number: u64,
    /// The newest first.
    names: Vec<String>,
}

impl NameMap {
    /// The names that lead to an address, the newest first.
    pub(crate) fn of(&self, address: IpAddr) -> Vec<&str> {
        let address = address.to_canonical();
        let learned = self.learned.get(&address).map(|learned| &learned.names);
        let hosts = self.hosts.get(&address);
        let names = [learned, hosts].into_iter().flatten().flatten();
        names.map(String::as_str).collect()
    }

    /// Remembers what an answer said.
    pub(crate) fn learn(&mut self, resolved: &Resolved) {
        let address = resolved.address.to_canonical();
        self.last_number += 1;
        let number = self.last_number;
        // The name that was asked for comes first in the answer, and shall come first here.
        let names: Vec<String> = resolved
            .names
            .iter()
            .flat_map(|name| self.short_forms(name))
            .collect();
        let learned = self.learned.entry(address).or_insert(Learned {
            number,
            names: Vec::new(),
        });
        self.order.remove(&learned.number);
        self.order.insert(number, address);
        learned.number = number;
        learned.names.retain(|known| !names.contains(known));
        learned.names.splice(0..0, names);
        learned.names.truncate(MOST_NAMES);
        while self.learned.len() > MOST_ADDRESSES {
            let Some((_, oldest)) = self.order.pop_first() else {
                return;
            };
            self.learned.remove(&oldest);
        }
    }

    pub(crate) fn set_hosts(&mut self, hosts: HashMap<IpAddr, Vec<String>>) {
        self.hosts = hosts;
    }

    pub(crate) fn set_search(&mut self, search: &[String]) {
        let lower = search.iter().map(|domain| domain.to_ascii_lowercase());
        self.search = lower.collect();
    }

    /// A name, and what is left of it without a domain of the search list: what the application was given to resolve.
    fn short_forms(&self, name: &str) -> Vec<String> {
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
            map.learn(&Resolved {
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
        type Learned = [(&'static str, &'static Texts)];
        let table: &[(&Texts, &Learned, &str, &Texts)] = &[
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
            assert_eq!(map.of(address.parse().unwrap()), *expected, "{resolved:?}");
        }
    }

    #[test]
    fn it_is_bounded_and_the_newest_stay() {
        let mut map = NameMap::default();
        let address = |number: usize| IpAddr::from(u32::try_from(number).unwrap().to_be_bytes());
        let mut learn = |number, name: String| {
            map.learn(&Resolved {
                address: address(number),
                names: vec![name],
            });
        };
        for number in 0..=MOST_ADDRESSES {
            // The first is asked for again and again.
            learn(0, "first".to_owned());
            learn(number, format!("name-{number}"));
        }
        for number in 0..=MOST_NAMES {
            learn(0, format!("another-{number}"));
        }
        assert_eq!(map.learned.len(), MOST_ADDRESSES);
        assert_eq!(map.order.len(), MOST_ADDRESSES);
        assert!(map.of(address(1)).is_empty());
        assert_eq!(map.of(address(2)), ["name-2"]);
        let first = map.of(address(0));
        assert_eq!(first.len(), MOST_NAMES);
        assert_eq!(first[0], format!("another-{MOST_NAMES}"));
    }

    #[test]
    fn hosts_are_replaced_as_a_whole() {
        let mut map = map(&[], &[("10.0.0.1", &["learned"])]);
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        map.set_hosts(HashMap::from([(address, vec!["db".to_owned()])]));
        assert_eq!(map.of(address), ["learned", "db"]);
        map.set_hosts(HashMap::new());
        assert_eq!(map.of(address), ["learned"]);
    }
}
