//! The rules in the kernel, and who holds which port.
//!
//! The tables belong to the netlink socket: only it can change them, and the kernel removes them when it is closed, however
//! that happens.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::netlink::NETFILTER;

use super::Port;
use super::holder::Holder;
use super::netlink::{Content, Netlink, attributes};
use super::rules::{Listening, Part, TABLE_USER_DATA, Transaction, UdpListening, ask_for_claim};
use crate::{Error, Result};

/// After the family, the version and the number of a message.
const MESSAGE_HEADER: usize = 4;

/// Sockets that are closed and of which the rules still know. Only those whose port was added come here.
pub(super) type Retired = Arc<Mutex<Vec<UdpListening>>>;

#[derive(Debug)]
pub(super) struct Rules {
    netlink: Netlink,
    table: String,
    holder: Holder,
    ports: BTreeMap<Port, Held>,
    pub(super) retired: Retired,
}

/// What belongs to a redirected port.
#[derive(Debug)]
pub(super) enum Held {
    Tcp,
    Udp {
        listening: UdpListening,
        /// Dropping it ends the receiving of datagrams.
        _receiving: tokio::sync::watch::Sender<()>,
    },
}

impl Rules {
    /// Opens the socket that will own the rules. Must run inside the target's network.
    pub(super) fn open(holder: Holder) -> Result<Self> {
        let netlink = Netlink::open(Some(NETFILTER)).map_err(|source| Error::Agent {
            action: "speak with the kernel about traffic rules",
            hint: "run it on a kernel with nf_tables (module nf_tables)",
            source,
        })?;
        Ok(Self {
            // No other socket of this network has the number, and the table goes with the socket.
            table: format!("standin-{}", netlink.number),
            netlink,
            holder,
            ports: BTreeMap::new(),
            retired: Retired::default(),
        })
    }

    pub(super) fn make(&mut self, listening: Listening) -> Result<()> {
        let table = self.table.clone();
        let mut transaction = Transaction::new(&table);
        transaction.make_table(listening, &self.holder);
        self.commit(transaction)
    }

    pub(super) fn ports(&self) -> Vec<Port> {
        self.ports.keys().copied().collect()
    }

    pub(super) fn has(&self, port: Port) -> bool {
        self.ports.contains_key(&port)
    }

    /// Adds and removes ports at once. What is there already is not added, what is not there is not removed. Answers those
    /// that are new.
    pub(super) fn change(&mut self, add: Vec<(Port, Held)>, remove: &[Port]) -> Result<Vec<Port>> {
        let removed: Vec<Port> = remove
            .iter()
            .copied()
            .filter(|port| self.has(*port))
            .collect();
        let mut added: BTreeMap<Port, Held> = add.into_iter().collect();
        added.retain(|port, _| !self.has(*port));
        let retired =
            std::mem::take(&mut *self.retired.lock().unwrap_or_else(PoisonError::into_inner));

        let table = self.table.clone();
        let mut transaction = Transaction::new(&table);
        for listening in &retired {
            transaction.remove_replies(*listening);
        }
        for port in &removed {
            match &self.ports[port] {
                Held::Tcp => transaction.remove_tcp(port.number),
                Held::Udp { listening, .. } => transaction.remove_udp(port.number, *listening),
            }
            transaction.release(*port);
        }
        for (port, held) in &added {
            transaction.claim(*port, &self.holder);
            match held {
                Held::Tcp => transaction.add_tcp(port.number),
                Held::Udp { listening, .. } => transaction.add_udp(port.number, *listening),
            }
        }
        if let Err(error) = self.commit(transaction) {
            // Nothing has changed, so what was to be forgotten is still there.
            self.retired
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(retired);
            return Err(error);
        }
        for port in removed {
            self.ports.remove(&port);
        }
        let new = added.keys().copied().collect();
        self.ports.append(&mut added);
        Ok(new)
    }

    fn commit(&mut self, transaction: Transaction<'_>) -> Result<()> {
        let transaction = transaction.end();
        let parts = &transaction.parts;
        if parts.len() <= 2 {
            // Nothing to do but to begin and to end.
            return Ok(());
        }
        let answers = self.netlink.request(&transaction.messages);
        let answers = answers.map_err(|errno| refusal(Part::Transaction, errno))?;
        let mut acknowledged = false;
        for answer in answers {
            match answer.content {
                Content::Failed(errno) => return Err(self.explain(parts[answer.position], errno)),
                Content::Done => acknowledged = true,
                Content::Item(_) => {}
            }
        }
        if acknowledged {
            Ok(())
        } else {
            Err(refusal(Part::Transaction, Errno::PROTO))
        }
    }

    fn explain(&mut self, part: Part, errno: Errno) -> Error {
        if let (Part::Claim(port), Errno::PERM | Errno::EXIST) = (part, errno) {
            // Who has gone meanwhile is not known any more, and was there a moment ago.
            let holder = self.holder_of(port);
            let holder = holder.unwrap_or_else(|| Holder::from_user_data(&[]));
            return Error::PortTaken {
                port,
                holder: holder.name,
                meeting_point: holder.meeting_point,
            };
        }
        refusal(part, errno)
    }

    /// Who has claimed a port.
    fn holder_of(&mut self, port: Port) -> Option<Holder> {
        let items = self.netlink.items(ask_for_claim(port)).ok()?;
        let item = items.first()?;
        let user_data = attributes(item.get(MESSAGE_HEADER..)?)
            .find(|(kind, _)| *kind == TABLE_USER_DATA)
            .map(|(_, value)| value);
        Some(Holder::from_user_data(user_data.unwrap_or_default()))
    }
}

/// What it means that the kernel did not do this.
fn refusal(part: Part, source: Errno) -> Error {
    let hint = match (part, source) {
        (_, Errno::PERM | Errno::ACCESS) => {
            "it needs the capability NET_ADMIN in the target's network: give it to the agent"
        }
        (Part::Transaction, Errno::OPNOTSUPP | Errno::INVAL) => {
            "run it on a kernel with nf_tables (module nf_tables)"
        }
        (Part::Table, Errno::OPNOTSUPP | Errno::INVAL) => {
            "run it on Linux 5.12 or newer, where rules end with the program that made them"
        }
        (Part::Rule, Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL) => {
            "run it on a kernel with CONFIG_NFT_TPROXY, CONFIG_NFT_SOCKET and CONFIG_NFT_FIB_INET, or load the modules \
             nft_tproxy, nft_socket and nft_fib_inet on the node"
        }
        (_, Errno::NOMEM | Errno::NOBUFS) => "give the machine more memory",
        _ => "look at the rules that are there with `nft list ruleset`, and report this",
    };
    Error::Agent {
        action: "redirect the target's traffic",
        hint,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_is_lacking() {
        let check = |part, errno, wanted: &str| {
            let text = refusal(part, errno).to_string();
            assert!(text.contains(wanted), "{part:?} {errno:?}: {text}");
        };
        let port = Port::tcp(80);
        check(Part::Transaction, Errno::PERM, "NET_ADMIN");
        check(Part::Transaction, Errno::OPNOTSUPP, "module nf_tables");
        check(Part::Table, Errno::OPNOTSUPP, "5.12");
        check(Part::Table, Errno::INVAL, "5.12");
        check(Part::Rule, Errno::NOENT, "nft_tproxy");
        check(Part::Claim(port), Errno::PERM, "NET_ADMIN");
        check(Part::Element, Errno::NOMEM, "memory");
        check(Part::Element, Errno::BUSY, "report");
    }
}
