//! Applies the rules in the kernel, and reads the holder of a port.
//!
//! The tables are owned by the netlink socket: only it can change them, and the kernel removes them when it is closed, also
//! if the process is killed.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::netlink::NETFILTER;

use super::Port;
use super::holder::Holder;
use super::netlink::{Netlink, ResponseContent, attributes};
use super::rules::{
    ListenerPorts, TABLE_USER_DATA, Transaction, TransactionPart, UdpSocketPorts, claim_request,
};
use crate::{Error, Result};

/// The length of the nftables header: family, version and resource ID.
const MESSAGE_HEADER_LEN: usize = 4;

/// Sockets that are closed but still referenced by the rules. Sockets whose port was never added are not in it.
pub(super) type RetiredSockets = Arc<Mutex<Vec<UdpSocketPorts>>>;

#[derive(Debug)]
pub(super) struct Rules {
    netlink: Netlink,
    table: String,
    holder: Holder,
    ports: BTreeMap<Port, RedirectedPort>,
    pub(super) retired: RetiredSockets,
}

/// A port in the rules.
#[derive(Debug)]
pub(super) enum RedirectedPort {
    Tcp,
    Udp {
        sockets: UdpSocketPorts,
        /// Dropping it ends the tasks that receive datagrams.
        _receiving: tokio::sync::watch::Sender<()>,
    },
}

impl Rules {
    /// Opens the netlink socket that will own the rules. Must run inside the target's network.
    pub(super) fn open(holder: Holder) -> Result<Self> {
        let netlink = Netlink::open(Some(NETFILTER)).map_err(|source| Error::Agent {
            action: "open a netlink socket for traffic rules",
            hint: "run it on a kernel with nf_tables (module nf_tables)",
            source,
        })?;
        Ok(Self {
            // The port ID is unique in this network, and the table is removed with the socket.
            table: format!("standin-{}", netlink.port_id),
            netlink,
            holder,
            ports: BTreeMap::new(),
            retired: RetiredSockets::default(),
        })
    }

    pub(super) fn create_table(&mut self, listeners: ListenerPorts) -> Result<()> {
        let table = self.table.clone();
        let mut transaction = Transaction::new(&table);
        transaction.create_table(listeners, &self.holder);
        self.commit(transaction)
    }

    pub(super) fn ports(&self) -> Vec<Port> {
        self.ports.keys().copied().collect()
    }

    pub(super) fn has(&self, port: Port) -> bool {
        self.ports.contains_key(&port)
    }

    /// Adds and removes ports in one transaction. Skips ports that exist already, and removals of ports that do not exist.
    /// Returns the added ports.
    pub(super) fn change(
        &mut self,
        add: Vec<(Port, RedirectedPort)>,
        remove: &[Port],
    ) -> Result<Vec<Port>> {
        let removed: Vec<Port> = remove
            .iter()
            .copied()
            .filter(|port| self.has(*port))
            .collect();
        let mut added: BTreeMap<Port, RedirectedPort> = add.into_iter().collect();
        added.retain(|port, _| !self.has(*port));
        let retired = std::mem::take(&mut *self.retired.lock());

        let table = self.table.clone();
        let mut transaction = Transaction::new(&table);
        for sockets in &retired {
            transaction.remove_replies(*sockets);
        }
        for port in &removed {
            match &self.ports[port] {
                RedirectedPort::Tcp => transaction.remove_tcp(port.number),
                RedirectedPort::Udp { sockets, .. } => {
                    transaction.remove_udp(port.number, *sockets);
                }
            }
            transaction.release(*port);
        }
        for (port, redirected) in &added {
            transaction.claim(*port, &self.holder);
            match redirected {
                RedirectedPort::Tcp => transaction.add_tcp(port.number),
                RedirectedPort::Udp { sockets, .. } => {
                    transaction.add_udp(port.number, *sockets);
                }
            }
        }
        if let Err(error) = self.commit(transaction) {
            // The transaction changed nothing, so the rules still reference the retired sockets.
            self.retired.lock().extend(retired);
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
            // Only the begin and the end of the batch: there is nothing to change.
            return Ok(());
        }
        let responses = self.netlink.request(&transaction.messages);
        let responses = responses.map_err(|errno| to_error(TransactionPart::Transaction, errno))?;
        let mut acknowledged = false;
        for response in responses {
            match response.content {
                ResponseContent::Failed(errno) => {
                    return Err(self.explain(parts[response.position], errno));
                }
                ResponseContent::Done => acknowledged = true,
                ResponseContent::Item(_) => {}
            }
        }
        if acknowledged {
            Ok(())
        } else {
            Err(to_error(TransactionPart::Transaction, Errno::PROTO))
        }
    }

    fn explain(&mut self, part: TransactionPart, errno: Errno) -> Error {
        if let (TransactionPart::Claim(port), Errno::PERM | Errno::EXIST) = (part, errno) {
            // The holder may have ended since then. The error then says "another agent".
            let holder = self.holder_of(port);
            let holder = holder.unwrap_or_else(|| Holder::from_user_data(&[]));
            return Error::PortTaken {
                port,
                holder: holder.name,
                peer_endpoint: holder.peer_endpoint,
            };
        }
        to_error(part, errno)
    }

    /// The agent that has claimed a port.
    fn holder_of(&mut self, port: Port) -> Option<Holder> {
        let items = self.netlink.items(claim_request(port)).ok()?;
        let item = items.first()?;
        let user_data = attributes(item.get(MESSAGE_HEADER_LEN..)?)
            .find(|(kind, _)| *kind == TABLE_USER_DATA)
            .map(|(_, value)| value);
        Some(Holder::from_user_data(user_data.unwrap_or_default()))
    }
}

/// Explains why the kernel rejected this part of a transaction.
fn to_error(part: TransactionPart, source: Errno) -> Error {
    let hint = match (part, source) {
        (_, Errno::PERM | Errno::ACCESS) => {
            "it needs the capability NET_ADMIN in the target's network: give it to the agent"
        }
        (TransactionPart::Transaction, Errno::OPNOTSUPP | Errno::INVAL) => {
            "run it on a kernel with nf_tables (module nf_tables)"
        }
        (TransactionPart::Table, Errno::OPNOTSUPP | Errno::INVAL) => {
            "run it on Linux 5.12 or newer, where rules end with the program that made them"
        }
        (TransactionPart::Rule, Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL) => {
            "run it on a kernel with CONFIG_NFT_TPROXY, CONFIG_NFT_SOCKET and CONFIG_NFT_FIB_INET, or load the modules \
             nft_tproxy, nft_socket and nft_fib_inet on the node"
        }
        (_, Errno::NOMEM | Errno::NOBUFS) => "give the machine more memory",
        _ => "see the existing rules with `nft list ruleset`, and report this",
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
    fn an_error_names_the_missing_requirement() {
        let check = |part, errno, expected: &str| {
            let text = to_error(part, errno).to_string();
            assert!(text.contains(expected), "{part:?} {errno:?}: {text}");
        };
        let port = Port::tcp(80);
        check(TransactionPart::Transaction, Errno::PERM, "NET_ADMIN");
        check(
            TransactionPart::Transaction,
            Errno::OPNOTSUPP,
            "module nf_tables",
        );
        check(TransactionPart::Table, Errno::OPNOTSUPP, "5.12");
        check(TransactionPart::Table, Errno::INVAL, "5.12");
        check(TransactionPart::Rule, Errno::NOENT, "nft_tproxy");
        check(TransactionPart::Claim(port), Errno::PERM, "NET_ADMIN");
        check(TransactionPart::Element, Errno::NOMEM, "memory");
        check(TransactionPart::Element, Errno::BUSY, "report");
    }
}
