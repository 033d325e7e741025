//! The rules, as messages to nftables. Nothing here does anything.
//!
//! As `nft` would print them, for an agent whose listeners have the ports 40001 and 40002, that redirects TCP port 80 and
//! UDP port 53:
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
//!         meta mark { PASSING, REPLY } return
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
//!         meta mark REPLY meta l4proto udp udp sport set udp sport map @udp_replies
//!     }
//! }
//! table inet standin-tcp-80 { comment "who holds it"; flags owner }
//! ```
//!
//! - The priority is *after* destinations are rewritten (-100). Where a mesh's rules send a packet to its sidecar, the
//!   packet is no longer for the application's port when we see it; what the sidecar sends on, is. So ciphertext is never
//!   matched, and no rule of ours needs to know which mesh there is.
//! - Only packets for an address of this namespace: the namespace of a node also forwards those of others.
//! - `tproxy` gives a packet to the socket of its connection first. Is this not a transparent socket, the rule does not
//!   match: connections that were open before stay what they are. Is there no listener any more, it does not match either.
//! - What another transparent proxy has claimed is left to it. A connection that has ended (TIME_WAIT) claims nothing, and
//!   has no mark: a client that uses its port again would otherwise reach the application past us. `tproxy` knows the case.
//! - Answers to datagrams must come from the port that was asked, and the application's socket has that port. So they are
//!   sent from another one, and the rule at the output puts the right number in, before connections are tracked (-200).
//! - The tables named after a port hold nothing. A table can be made only once: they are the claim on the port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::expressions::{
    FAMILY_IPV4, FAMILY_IPV6, TCP, UDP, data, fixed_port, give_to, has_mark, is_claimed, is_family,
    is_local, is_protocol, jump, map_source_port, mapped_port, port_is_in, return_to_caller,
};
use super::holder::Holder;
use super::netlink::{APPEND, Attributes, CREATE, CREATE_NEW, Message};
use super::{Port, Protocol};

/// On the agent's connections to the original application, and on the connections that it accepts. The number stays clear
/// of the bits that kube-proxy (0xc000), Cilium (0x0f00), Tailscale, Calico and Weave (above 0xffff) use.
pub(super) const PASSING: u32 = 0x301d;
/// On the agent's answers to redirected datagrams.
pub(super) const REPLY: u32 = 0x301e;

/// To what the listeners are bound: addresses for documentation, which nobody has. So only the rules reach a listener.
pub(super) const LISTEN_IPV4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(super) const LISTEN_IPV6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

const SUBSYSTEM: u16 = 10;
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

/// The ports at which this agent's listeners for TCP are bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listening {
    pub(super) ipv4: u16,
    /// None where the kernel has no IPv6.
    pub(super) ipv6: Option<u16>,
}

/// The ports at which this agent's sockets for one redirected UDP port are bound.
pub(super) type UdpListening = Listening;

/// A part of a transaction, so that a refusal can be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Transaction,
    Table,
    Claim(Port),
    /// Chains, sets and rules.
    Rule,
    Element,
}

/// Changes that happen together or not at all.
#[derive(Debug)]
pub(super) struct Transaction<'a> {
    table: &'a str,
    pub(super) parts: Vec<Part>,
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
            // The only one: an answer to each of many would not fit the socket's buffer. Refusals come unasked.
            last.flags |= super::netlink::ACKNOWLEDGE;
        }
        self.delimiter(BATCH_END);
        self
    }

    /// Everything but ports.
    pub(super) fn make_table(&mut self, listening: Listening, holder: &Holder) {
        self.push(
            Part::Table,
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

        for mark in [PASSING, REPLY] {
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
            self.rule(chain, [&is_claimed()[..], &[return_to_caller()]]);
        }
        let fixed = |port: u16| [fixed_port(port)];
        self.give("tcp", ipv4, &fixed(listening.ipv4));
        self.give("udp", ipv4, &mapped_port("udp_ipv4"));
        if let Some(port) = listening.ipv6 {
            self.give("tcp", ipv6, &fixed(port));
            self.give("udp", ipv6, &mapped_port("udp_ipv6"));
        }
        self.rule(
            "output",
            [
                &has_mark(REPLY)[..],
                &is_protocol(UDP),
                &map_source_port("udp_replies"),
            ],
        );
    }

    /// Makes the port ours, before anything is redirected.
    pub(super) fn claim(&mut self, port: Port, holder: &Holder) {
        let attributes = table(&claim_name(port), holder);
        self.push(Part::Claim(port), NEW_TABLE, CREATE_NEW, attributes);
    }

    pub(super) fn release(&mut self, port: Port) {
        let name = Attributes::new().text(1, &claim_name(port));
        self.push(Part::Claim(port), DELETE_TABLE, 0, name);
    }

    pub(super) fn add_tcp(&mut self, port: u16) {
        self.element(NEW_ELEMENT, "tcp", port, None);
    }

    pub(super) fn remove_tcp(&mut self, port: u16) {
        self.element(DELETE_ELEMENT, "tcp", port, None);
    }

    pub(super) fn add_udp(&mut self, port: u16, listening: UdpListening) {
        self.element(NEW_ELEMENT, "udp_ipv4", port, Some(listening.ipv4));
        self.element(NEW_ELEMENT, "udp_replies", listening.ipv4, Some(port));
        if let Some(ipv6) = listening.ipv6 {
            self.element(NEW_ELEMENT, "udp_ipv6", port, Some(ipv6));
            self.element(NEW_ELEMENT, "udp_replies", ipv6, Some(port));
        }
    }

    /// Nothing more is redirected. Answers to what was, still come from the right port.
    pub(super) fn remove_udp(&mut self, port: u16, listening: UdpListening) {
        self.element(DELETE_ELEMENT, "udp_ipv4", port, None);
        if listening.ipv6.is_some() {
            self.element(DELETE_ELEMENT, "udp_ipv6", port, None);
        }
    }

    /// Forgets a socket that is closed.
    pub(super) fn remove_replies(&mut self, listening: UdpListening) {
        for port in [Some(listening.ipv4), listening.ipv6].into_iter().flatten() {
            self.element(DELETE_ELEMENT, "udp_replies", port, None);
        }
    }

    fn delimiter(&mut self, kind: u16) {
        self.parts.push(Part::Transaction);
        self.messages.push(Message {
            kind,
            flags: 0,
            body: [&[0, 0][..], &SUBSYSTEM.to_be_bytes()].concat(),
        });
    }

    fn push(&mut self, part: Part, kind: u16, flags: u16, attributes: Attributes) {
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
        // The number would tell sets without a name apart; the kernel wants it anyway.
        let number = u32::try_from(self.messages.len()).unwrap_or(u32::MAX);
        self.push(
            Part::Rule,
            NEW_SET,
            CREATE_NEW,
            attributes.number(10, number),
        );
    }

    fn chain(&mut self, name: &str, hook: Option<(u32, i32)>) {
        let mut attributes = Attributes::new().text(1, self.table).text(3, name);
        if let Some((hook, priority)) = hook {
            let place = Attributes::new()
                .number(1, hook)
                .bytes(2, &priority.to_be_bytes());
            attributes = attributes.nested(4, &place).text(7, "filter");
        }
        self.push(Part::Rule, NEW_CHAIN, CREATE_NEW, attributes);
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
        self.push(Part::Rule, NEW_RULE, CREATE | APPEND, attributes);
    }

    /// Gives packets for this namespace to the socket at `address` and at the port that `load_port` leaves in the second
    /// register.
    fn give(&mut self, chain: &str, address: IpAddr, load_port: &[Attributes]) {
        let family = match address {
            IpAddr::V4(_) => FAMILY_IPV4,
            IpAddr::V6(_) => FAMILY_IPV6,
        };
        let give = give_to(address);
        let is_family = is_family(family);
        self.rule(chain, [&is_family[..], load_port, &is_local(), &give]);
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
        self.push(Part::Element, kind, flags, attributes);
    }
}

/// Asks for the table that claims a port.
pub(super) fn ask_for_claim(port: Port) -> Message {
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
        kind: SUBSYSTEM << 8 | kind,
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
            meeting_point: None,
        };
        transaction.claim(Port::tcp(80), &holder);
        transaction.add_tcp(80);
        let transaction = transaction.end();
        let asks = |message: &Message| message.flags & super::super::netlink::ACKNOWLEDGE != 0;
        let asking: Vec<_> = transaction.messages.iter().map(asks).collect();
        assert_eq!(asking, [false, false, true, false]);
    }
}
