//! The expressions of nftables rules: they load a value into a register, compare it, or act on it.
//!
//! A rule evaluates its expressions in order as long as they match. Comparisons always use the first register.

use std::net::IpAddr;

use super::netlink::Attributes;

pub(super) const FAMILY_IPV4: u8 = 2;
pub(super) const FAMILY_IPV6: u8 = 10;

/// The protocol numbers of IP.
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;

const ACCEPT: i32 = 1;
const JUMP: i32 = -3;
const RETURN: i32 = -5;

const REGISTER_1: u32 = 1;
const REGISTER_2: u32 = 2;

/// Delivers the packet to the socket with this address and the port in the second register, and ends the evaluation.
pub(super) fn deliver_to(address: IpAddr) -> [Attributes; 3] {
    let (family, bytes) = match address {
        IpAddr::V4(address) => (FAMILY_IPV4, address.octets().to_vec()),
        IpAddr::V6(address) => (FAMILY_IPV6, address.octets().to_vec()),
    };
    let tproxy = Attributes::new()
        .number(1, family.into())
        .number(2, REGISTER_1)
        .number(3, REGISTER_2);
    [
        immediate(REGISTER_1, &bytes),
        expression("tproxy", &tproxy),
        verdict(ACCEPT),
    ]
}

/// Loads this port into the second register.
pub(super) fn fixed_port(port: u16) -> Attributes {
    immediate(REGISTER_2, &port.to_be_bytes())
}

/// Loads the port that the map has for the destination port into the second register. Does not match if there is none.
pub(super) fn mapped_port(map: &str) -> [Attributes; 2] {
    let load = load_port(DESTINATION_PORT, REGISTER_1);
    [load, lookup(map, Some(REGISTER_2))]
}

/// Matches if the destination port is in the set.
pub(super) fn port_is_in(set: &str) -> [Attributes; 2] {
    let load = load_port(DESTINATION_PORT, REGISTER_1);
    [load, lookup(set, None)]
}

/// Replaces the source port of a datagram by the one that the map has for it. Does not match if there is none.
pub(super) fn map_source_port(map: &str) -> [Attributes; 3] {
    let load = load_port(SOURCE_PORT, REGISTER_1);
    let lookup = lookup(map, Some(REGISTER_2));
    [load, lookup, store_source_port(REGISTER_2)]
}

pub(super) fn return_to_caller() -> Attributes {
    verdict(RETURN)
}

pub(super) fn data(value: &[u8]) -> Attributes {
    Attributes::new().bytes(1, value)
}

fn expression(name: &str, attributes: &Attributes) -> Attributes {
    Attributes::new().text(1, name).nested(2, attributes)
}

fn immediate(register: u32, value: &[u8]) -> Attributes {
    let attributes = Attributes::new()
        .number(1, register)
        .nested(2, &data(value));
    expression("immediate", &attributes)
}

fn verdict(code: i32) -> Attributes {
    verdict_with(&Attributes::new().bytes(1, &code.to_be_bytes()))
}

pub(super) fn jump(chain: &str) -> Attributes {
    let verdict = Attributes::new().bytes(1, &JUMP.to_be_bytes());
    verdict_with(&verdict.text(2, chain))
}

fn verdict_with(verdict: &Attributes) -> Attributes {
    let data = Attributes::new().nested(2, verdict);
    expression(
        "immediate",
        &Attributes::new().number(1, 0).nested(2, &data),
    )
}

fn equals(value: &[u8]) -> Attributes {
    let attributes = Attributes::new()
        .number(1, REGISTER_1)
        .number(2, 0)
        .nested(3, &data(value));
    expression("cmp", &attributes)
}

fn meta(key: u32) -> Attributes {
    let attributes = Attributes::new().number(2, key).number(1, REGISTER_1);
    expression("meta", &attributes)
}

pub(super) fn has_mark(mark: u32) -> [Attributes; 2] {
    [meta(3), equals(&mark.to_ne_bytes())]
}

pub(super) fn is_family(family: u8) -> [Attributes; 2] {
    [meta(15), equals(&[family])]
}

pub(super) fn is_protocol(protocol: u8) -> [Attributes; 2] {
    [meta(16), equals(&[protocol])]
}

/// Matches if the destination is an address of this namespace.
pub(super) fn is_local() -> [Attributes; 2] {
    const ADDRESS_TYPE: u32 = 3;
    const OF_DESTINATION: u32 = 2;
    const LOCAL: u32 = 2;
    let attributes = Attributes::new()
        .number(1, REGISTER_1)
        .number(2, ADDRESS_TYPE)
        .number(3, OF_DESTINATION);
    [expression("fib", &attributes), equals(&LOCAL.to_ne_bytes())]
}

/// Matches if the packet already belongs to a transparent socket: one of ours, or another proxy's. The remains of a closed
/// connection (TIME_WAIT) do not count: they have no mark, so the first expression does not match.
pub(super) fn has_transparent_socket() -> [Attributes; 3] {
    const TRANSPARENT: u32 = 0;
    const MARK: u32 = 1;
    [socket(MARK), socket(TRANSPARENT), equals(&[1])]
}

/// Loads a property of the socket that the packet belongs to.
fn socket(key: u32) -> Attributes {
    let attributes = Attributes::new().number(1, key).number(2, REGISTER_1);
    expression("socket", &attributes)
}

/// The offsets of the ports in the headers of both TCP and UDP.
const SOURCE_PORT: u32 = 0;
const DESTINATION_PORT: u32 = 2;
const TRANSPORT_HEADER: u32 = 2;

fn load_port(offset: u32, register: u32) -> Attributes {
    let attributes = Attributes::new()
        .number(1, register)
        .number(2, TRANSPORT_HEADER)
        .number(3, offset)
        .number(4, 2);
    expression("payload", &attributes)
}

fn store_source_port(register: u32) -> Attributes {
    const INTERNET_CHECKSUM: u32 = 1;
    const UDP_CHECKSUM: u32 = 6;
    let attributes = Attributes::new()
        .number(5, register)
        .number(2, TRANSPORT_HEADER)
        .number(3, SOURCE_PORT)
        .number(4, 2)
        .number(6, INTERNET_CHECKSUM)
        .number(7, UDP_CHECKSUM);
    expression("payload", &attributes)
}

/// Looks up the first register in a set or map. Does not match if it is not there.
fn lookup(set: &str, into: Option<u32>) -> Attributes {
    let mut attributes = Attributes::new().text(1, set).number(2, REGISTER_1);
    if let Some(register) = into {
        attributes = attributes.number(3, register);
    }
    expression("lookup", &attributes)
}
