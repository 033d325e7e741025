//! Builds the nftables rules as netlink messages, without sending them.
//!
//! For an agent whose listeners have the ports 40001 and 40002, and which redirects TCP port 80 and UDP port 53, `nft` prints
//! the rules as:
//!
//! ```text
//! table inet standin-1234 {
//!     flags owner
//!     set tcp { type inet_service; elements = { 80 } }
//!     map udp_ipv4 { type inet_service : inet_service; elements = { 53 : 40003 } }
//!     map udp_ipv6 { type inet_service : inet_service; elements = { 53 : 40004 } }
//!     map udp_replies { type inet_service : inet_service; elements = { 40003 : 53, 40004 : 53 } }
//!     chain prerouting {
//!         type filter hook prerouting priority -50
//!         meta mark { PASSTHROUGH_MARK, REPLY_MARK } return
//!         meta l4proto tcp tcp dport @tcp jump tcp
//!         meta l4proto udp udp dport @udp_ipv4 jump udp
//!     }
//!     chain tcp {
//!         socket mark >= 0 socket transparent 1 return
//!         fib daddr type local tproxy ip to 192.0.2.1:40001 accept
//!         fib daddr type local tproxy ip6 to [2001:db8::1]:40002 accept
//!     }
//!     chain udp {
//!         socket mark >= 0 socket transparent 1 return
//!         fib daddr type local tproxy ip to 192.0.2.1:(udp dport map @udp_ipv4) accept
//!         fib daddr type local tproxy ip6 to [2001:db8::1]:(udp dport map @udp_ipv6) accept
//!     }
//!     chain output {
//!         type filter hook output priority -250
//!         meta mark REPLY_MARK meta l4proto udp udp sport set udp sport map @udp_replies
//!     }
//! }
//! table inet standin-tcp-80 { comment "the holder's name"; flags owner }
//! ```
//!
//! - The priority is *after* destination NAT (-100). If the rules of a mesh redirect a packet to its sidecar, the packet no
//!   longer has the application's port when our rules see it, but the packets that the sidecar forwards do. So our rules
//!   never match ciphertext, and they do not depend on the mesh.
//! - Only packets for an address of this namespace match: the namespace of a node also forwards packets of others.
//! - `tproxy` delivers a packet to the existing socket of its connection first. If that is not a transparent socket, the
//!   rule does not match, so connections that were open before are not affected. If the listener is closed, it does not
//!   match either.
//! - Packets that belong to another transparent proxy are left to it. A closed connection (TIME_WAIT) has no mark and does
//!   not count: otherwise a client that reuses its port would bypass the redirection. `tproxy` handles that case.
//! - Replies to datagrams must come from the port that the client sent to, but the application's socket has that port. So
//!   they are sent from another port, and the output rule rewrites the source port before connection tracking (-200).
//! - The tables that are named after a port are empty. A table can be created only once, so they are the claim of the port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::expressions::{
    FAMILY_IPV4, FAMILY_IPV6, TCP, UDP, data, deliver_to, fixed_port, has_mark,
    has_transparent_socket, is_family, is_local, is_protocol, jump, map_source_port, mapped_port,
    port_is_in, return_to_caller,
};
use super::holder::Holder;
use super::netlink::{APPEND, Attributes, CREATE, CREATE_NEW, Message};
use super::{Port, Protocol};

/// The mark of the agent's connections to the application, and of the connections that it accepts. The number avoids the
/// bits that kube-proxy (0xc000), Cilium (0x0f00), Tailscale, Calico and Weave (above 0xffff) use.
pub(super) const PASSTHROUGH_MARK: u32 = 0x301d;
/// The mark of the agent's replies to redirected datagrams.
pub(super) const REPLY_MARK: u32 = 0x301e;

/// The addresses of the listeners. They are reserved for documentation and not assigned to any host, so the listeners are
/// reachable only through the rules.
pub(super) const LISTEN_IPV4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(super) const LISTEN_IPV6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

const NFTABLES_SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = 0;
const GET_TABLE: u16 = 1;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
const NEW_SET: u16 = 9;
const NEW_ELEMENT: u16 = 12;
const DELETE_ELEMENT: u16 = 14;

/// IPv4 and IPv6 in one table.
const FAMILY_INET: u8 = 1;
const TABLE_OWNED: u32 = 2;
pub(super) const TABLE_USER_DATA: u16 = 6;

const PREROUTING: u32 = 0;
const OUTPUT: u32 = 3;
const AFTER_DESTINATION_NAT: i32 = -50;
const BEFORE_CONNECTION_TRACKING: i32 = -250;

const TYPE_PORT: u32 = 13;
const SET_IS_MAP: u32 = 8;

/// The ports of this agent's TCP listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListenerPorts {
    pub(super) ipv4: u16,
    /// None if the kernel has no IPv6.
    pub(super) ipv6: Option<u16>,
}

/// The ports of this agent's sockets for one redirected UDP port.
pub(super) type UdpSocketPorts = ListenerPorts;

/// The kind of a message in a transaction, to explain an error of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransactionPart {
    Transaction,
    Table,
    Claim(Port),
    /// Chains, sets and rules.
    Rule,
    Element,
}

/// Changes that are applied atomically.
#[derive(Debug)]
pub(super) struct Transaction<'a> {
    table: &'a str,
    pub(super) parts: Vec<TransactionPart>,
    pub(super) messages: Vec<Message>,
}

impl<'a> Transaction<'a> {
    pub(super) fn new(table: &'a str) -> Self {
        let mut transaction = Self {
            table,
            parts: Vec::new(),
            messages: Vec::new(),
        };
        transaction.delimiter(BATCH_BEGIN);
        transaction
    }

    pub(super) fn end(mut self) -> Self {
        if let Some(last) = self.messages.last_mut() {
            // Only the last change is acknowledged, because responses to all of them could exceed the socket's buffer. Errors
            // are always reported.
            last.flags |= super::netlink::ACKNOWLEDGE;
        }
        self.delimiter(BATCH_END);
        self
    }

    /// Creates the table with all chains, sets and rules, without ports.
    pub(super) fn create_table(&mut self, listeners: ListenerPorts, holder: &Holder) {
        self.push(
            TransactionPart::Table,
            NEW_TABLE,
            CREATE_NEW,
            table(self.table, holder),
        );
        self.set("tcp", false);
        for map in ["udp_ipv4", "udp_ipv6", "udp_replies"] {
            self.set(map, true);
        }
        self.chain("tcp", None);
        self.chain("udp", None);
        self.chain("prerouting", Some((PREROUTING, AFTER_DESTINATION_NAT)));
        self.chain("output", Some((OUTPUT, BEFORE_CONNECTION_TRACKING)));

        for mark in [PASSTHROUGH_MARK, REPLY_MARK] {
            self.rule(
                "prerouting",
                [has_mark(mark).as_slice(), &[return_to_caller()]],
            );
        }
        let is_tcp = is_protocol(TCP);
        let port_is_redirected = port_is_in("tcp");
        let to_tcp = [jump("tcp")];
        self.rule("prerouting", [&is_tcp[..], &port_is_redirected, &to_tcp]);
        let (is_udp, to_udp) = (is_protocol(UDP), [jump("udp")]);
        let port_is_redirected = mapped_port("udp_ipv4");
        self.rule("prerouting", [&is_udp[..], &port_is_redirected, &to_udp]);

        let ipv4 = IpAddr::V4(LISTEN_IPV4);
        let ipv6 = IpAddr::V6(LISTEN_IPV6);
        for chain in ["tcp", "udp"] {
            self.rule(
                chain,
                [&has_transparent_socket()[..], &[return_to_caller()]],
            );
        }
        let fixed = |port: u16| [fixed_port(port)];
        self.add_delivery("tcp", ipv4, &fixed(listeners.ipv4));
        self.add_delivery("udp", ipv4, &mapped_port("udp_ipv4"));
        if let Some(port) = listeners.ipv6 {
            self.add_delivery("tcp", ipv6, &fixed(port));
            self.add_delivery("udp", ipv6, &mapped_port("udp_ipv6"));
        }
        self.rule(
            "output",
            [
                &has_mark(REPLY_MARK)[..],
                &is_protocol(UDP),
                &map_source_port("udp_replies"),
            ],
        );
    }

    /// Claims the port for this agent. Must come before its redirection.
    pub(super) fn claim(&mut self, port: Port, holder: &Holder) {
        let attributes = table(&claim_name(port), holder);
        self.push(
            TransactionPart::Claim(port),
            NEW_TABLE,
            CREATE_NEW,
            attributes,
        );
    }

    pub(super) fn release(&mut self, port: Port) {
        let name = Attributes::new().text(1, &claim_name(port));
        self.push(TransactionPart::Claim(port), DELETE_TABLE, 0, name);
    }

    pub(super) fn add_tcp(&mut self, port: u16) {
        self.element(NEW_ELEMENT, "tcp", port, None);
    }

    pub(super) fn remove_tcp(&mut self, port: u16) {
        self.element(DELETE_ELEMENT, "tcp", port, None);
    }

    pub(super) fn add_udp(&mut self, port: u16, sockets: UdpSocketPorts) {
        self.element(NEW_ELEMENT, "udp_ipv4", port, Some(sockets.ipv4));
        self.element(NEW_ELEMENT, "udp_replies", sockets.ipv4, Some(port));
        if let Some(ipv6) = sockets.ipv6 {
            self.element(NEW_ELEMENT, "udp_ipv6", port, Some(ipv6));
            self.element(NEW_ELEMENT, "udp_replies", ipv6, Some(port));
        }
    }

    /// Ends the redirection of the port. Replies to datagrams that were redirected before still have the right source port.
    pub(super) fn remove_udp(&mut self, port: u16, sockets: UdpSocketPorts) {
        self.element(DELETE_ELEMENT, "udp_ipv4", port, None);
        if sockets.ipv6.is_some() {
            self.element(DELETE_ELEMENT, "udp_ipv6", port, None);
        }
    }

    /// Removes the source port mapping of sockets that are closed.
    pub(super) fn remove_replies(&mut self, sockets: UdpSocketPorts) {
        for port in [Some(sockets.ipv4), sockets.ipv6].into_iter().flatten() {
            self.element(DELETE_ELEMENT, "udp_replies", port, None);
        }
    }

    fn delimiter(&mut self, kind: u16) {
        self.parts.push(TransactionPart::Transaction);
        self.messages.push(Message {
            kind,
            flags: 0,
            body: [&[0, 0][..], &NFTABLES_SUBSYSTEM.to_be_bytes()].concat(),
        });
    }

    fn push(&mut self, part: TransactionPart, kind: u16, flags: u16, attributes: Attributes) {
        self.parts.push(part);
        self.messages.push(message(kind, flags, attributes));
    }

    fn set(&mut self, name: &str, is_map: bool) {
        let mut attributes = Attributes::new()
            .text(1, self.table)
            .text(2, name)
            .number(3, if is_map { SET_IS_MAP } else { 0 })
            .number(4, TYPE_PORT)
            .number(5, 2);
        if is_map {
            attributes = attributes.number(6, TYPE_PORT).number(7, 2);
        }
        // The kernel requires an ID, although it only distinguishes anonymous sets.
        let id = u32::try_from(self.messages.len()).unwrap_or(u32::MAX);
        self.push(
            TransactionPart::Rule,
            NEW_SET,
            CREATE_NEW,
            attributes.number(10, id),
        );
    }

    fn chain(&mut self, name: &str, hook: Option<(u32, i32)>) {
        let mut attributes = Attributes::new().text(1, self.table).text(3, name);
        if let Some((hook, priority)) = hook {
            let hook = Attributes::new()
                .number(1, hook)
                .bytes(2, &priority.to_be_bytes());
            attributes = attributes.nested(4, &hook).text(7, "filter");
        }
        self.push(TransactionPart::Rule, NEW_CHAIN, CREATE_NEW, attributes);
    }

    fn rule<const COUNT: usize>(&mut self, chain: &str, expressions: [&[Attributes]; COUNT]) {
        let list = expressions
            .concat()
            .iter()
            .fold(Attributes::new(), |list, expression| {
                list.nested(1, expression)
            });
        let attributes = Attributes::new()
            .text(1, self.table)
            .text(2, chain)
            .nested(4, &list);
        self.push(TransactionPart::Rule, NEW_RULE, CREATE | APPEND, attributes);
    }

    /// Adds a rule that delivers packets for this namespace to the socket with `address` and the port that `load_port` loads
    /// into the second register.
    fn add_delivery(&mut self, chain: &str, address: IpAddr, load_port: &[Attributes]) {
        let family = match address {
            IpAddr::V4(_) => FAMILY_IPV4,
            IpAddr::V6(_) => FAMILY_IPV6,
        };
        let deliver = deliver_to(address);
        let is_family = is_family(family);
        self.rule(chain, [&is_family[..], load_port, &is_local(), &deliver]);
    }

    fn element(&mut self, kind: u16, set: &str, key: u16, value: Option<u16>) {
        let mut element = Attributes::new().nested(1, &data(&key.to_be_bytes()));
        if let Some(value) = value {
            element = element.nested(2, &data(&value.to_be_bytes()));
        }
        let attributes = Attributes::new()
            .text(1, self.table)
            .text(2, set)
            .nested(3, &Attributes::new().nested(1, &element));
        let flags = if kind == NEW_ELEMENT { CREATE_NEW } else { 0 };
        self.push(TransactionPart::Element, kind, flags, attributes);
    }
}

/// The request for the table that claims a port.
pub(super) fn claim_request(port: Port) -> Message {
    let name = Attributes::new().text(1, &claim_name(port));
    message(GET_TABLE, 0, name)
}

fn claim_name(port: Port) -> String {
    let protocol = match port.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    };
    format!("standin-{protocol}-{}", port.number)
}

fn table(name: &str, holder: &Holder) -> Attributes {
    Attributes::new()
        .text(1, name)
        .number(2, TABLE_OWNED)
        .bytes(TABLE_USER_DATA, &holder.to_user_data())
}

fn message(kind: u16, flags: u16, attributes: Attributes) -> Message {
    let mut body = vec![FAMILY_INET, 0, 0, 0];
    body.extend(attributes.into_bytes());
    Message {
        kind: NFTABLES_SUBSYSTEM << 8 | kind,
        flags,
        body,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_change_is_acknowledged() {
        let mut transaction = Transaction::new("table");
        let holder = Holder {
            name: "Ada".to_owned(),
            peer_endpoint: None,
        };
        transaction.claim(Port::tcp(80), &holder);
        transaction.add_tcp(80);
        let transaction = transaction.end();
        let is_acknowledged =
            |message: &Message| message.flags & super::super::netlink::ACKNOWLEDGE != 0;
        let acknowledged: Vec<_> = transaction.messages.iter().map(is_acknowledged).collect();
        assert_eq!(acknowledged, [false, false, true, false]);
    }
}
