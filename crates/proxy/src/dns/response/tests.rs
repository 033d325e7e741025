use std::str::FromStr as _;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, SOA, TXT};
use hickory_proto::rr::{Name, RData, Record as DnsRecord, RecordType};

use super::*;

/// The message of a query, with an EDNS record if there is a maximum UDP payload.
pub(crate) fn query_message(name: &str, kind: RecordType, max_payload: Option<u16>) -> Vec<u8> {
    let mut message = Message::new(0x1234, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    let name = Name::from_str(name).unwrap();
    message.add_query(hickory_proto::op::Query::query(name, kind));
    if let Some(max_payload) = max_payload {
        let mut options = Edns::new();
        options.set_max_payload(max_payload);
        message.set_edns(options);
    }
    message.to_vec().unwrap()
}

/// The content of a response. `zone` is TTL and minimum of a SOA record, `options` whether there is an EDNS record.
pub(crate) struct ResponseContent {
    pub(crate) code: ResponseCode,
    pub(crate) answers: Vec<DnsRecord>,
    pub(crate) zone: Option<(u32, u32)>,
    pub(crate) options: bool,
}

impl Default for ResponseContent {
    fn default() -> Self {
        Self {
            code: ResponseCode::NoError,
            answers: Vec::new(),
            zone: None,
            options: false,
        }
    }
}

pub(crate) fn record(name: &str, seconds: u32, data: RData) -> DnsRecord {
    DnsRecord::from_rdata(Name::from_str(name).unwrap(), seconds, data)
}

pub(crate) fn a(name: &str, seconds: u32, address: &str) -> DnsRecord {
    record(name, seconds, RData::A(A(address.parse().unwrap())))
}

fn aaaa(name: &str, seconds: u32, address: &str) -> DnsRecord {
    record(name, seconds, RData::AAAA(AAAA(address.parse().unwrap())))
}

fn alias(name: &str, seconds: u32, to: &str) -> DnsRecord {
    let to = CNAME(Name::from_str(to).unwrap());
    record(name, seconds, RData::CNAME(to))
}

/// The message of a response to the message of a query.
pub(crate) fn encode_response(query: &[u8], content: ResponseContent) -> Bytes {
    let query = Message::from_vec(query).unwrap();
    let mut message = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.metadata.recursion_available = true;
    message.metadata.response_code = content.code;
    message.add_query(query.queries[0].clone());
    message.answers = content.answers;
    if let Some((seconds, minimum)) = content.zone {
        let name = || Name::from_str("zone.").unwrap();
        let zone = SOA::new(name(), name(), 1, 2, 3, 4, minimum);
        message.authorities = vec![record("zone.", seconds, RData::SOA(zone))];
    }
    if content.options {
        message.set_edns(Edns::new());
    }
    message.to_vec().unwrap().into()
}

fn response(message: &[u8], content: ResponseContent) -> (Query, DnsResponse) {
    let query = Query::new(message, 0).unwrap();
    let bytes = encode_response(query.message(), content);
    let response = DnsResponse::new(&query, bytes);
    (query, response)
}

#[test]
fn the_ttl_of_cached_responses() {
    let table: &[(&str, RecordType, ResponseContent, Option<u64>)] = &[
        (
            "the shortest TTL counts",
            RecordType::A,
            ResponseContent {
                answers: vec![a("db.", 60, "10.0.0.1"), a("db.", 30, "10.0.0.2")],
                ..ResponseContent::default()
            },
            Some(30),
        ),
        (
            "also the TTL of aliases",
            RecordType::A,
            ResponseContent {
                answers: vec![alias("db.", 10, "x."), a("x.", 30, "10.0.0.2")],
                ..ResponseContent::default()
            },
            Some(10),
        ),
        (
            "limited by the maximum",
            RecordType::A,
            ResponseContent {
                answers: vec![a("db.", 86_400, "10.0.0.1")],
                ..ResponseContent::default()
            },
            Some(300),
        ),
        (
            "a TTL of zero",
            RecordType::A,
            ResponseContent {
                answers: vec![a("db.", 0, "10.0.0.1")],
                ..ResponseContent::default()
            },
            None,
        ),
        (
            "an invalid TTL",
            RecordType::A,
            ResponseContent {
                answers: vec![a("db.", 0x8000_0000, "10.0.0.1")],
                ..ResponseContent::default()
            },
            None,
        ),
        (
            "no such name: the minimum of the zone",
            RecordType::A,
            ResponseContent {
                code: ResponseCode::NXDomain,
                zone: Some((3600, 20)),
                ..ResponseContent::default()
            },
            Some(20),
        ),
        (
            "no address: the TTL of the SOA record",
            RecordType::AAAA,
            ResponseContent {
                zone: Some((5, 20)),
                ..ResponseContent::default()
            },
            Some(5),
        ),
        (
            "an alias without an address",
            RecordType::AAAA,
            ResponseContent {
                answers: vec![alias("db.", 3, "x.")],
                zone: Some((60, 20)),
                ..ResponseContent::default()
            },
            Some(3),
        ),
        (
            "no such name, without a SOA record",
            RecordType::A,
            ResponseContent {
                code: ResponseCode::NXDomain,
                ..ResponseContent::default()
            },
            None,
        ),
        (
            "a failure",
            RecordType::A,
            ResponseContent {
                code: ResponseCode::ServFail,
                ..ResponseContent::default()
            },
            Some(1),
        ),
        (
            "a refusal",
            RecordType::A,
            ResponseContent {
                code: ResponseCode::Refused,
                ..ResponseContent::default()
            },
            None,
        ),
    ];
    for (case, kind, content, expected) in table {
        let content = ResponseContent {
            code: content.code,
            answers: content.answers.clone(),
            zone: content.zone,
            options: false,
        };
        let (_, response) = response(&query_message("db.", *kind, None), content);
        assert_eq!(
            response.cache_ttl(),
            expected.map(Duration::from_secs),
            "{case}"
        );
    }
}

#[test]
fn cached_responses_are_adapted_to_the_query() {
    let first = query_message("db.shop.", RecordType::A, None);
    let (_, response) = response(
        &first,
        ResponseContent {
            answers: vec![a("db.shop.", 60, "10.0.0.1"), a("db.shop.", 5, "10.0.0.2")],
            ..ResponseContent::default()
        },
    );
    let mut again = query_message("DB.Shop.", RecordType::A, None);
    again[..2].copy_from_slice(&[0xbe, 0xef]);
    let again = Query::new(&again, 0).unwrap();
    let bytes = response.for_query(&again, Duration::from_secs(7), DnsTransport::Udp);
    let name = again.name_range();
    assert_eq!(bytes[name.clone()], again.message()[name]);
    let message = Message::from_vec(&bytes).unwrap();
    assert_eq!(message.metadata.id, 0xbeef);
    let seconds: Vec<u32> = message.answers.iter().map(|record| record.ttl).collect();
    assert_eq!(seconds, [53, 0]);
}

#[test]
fn udp_responses_are_truncated() {
    let large = |count: u8| ResponseContent {
        answers: (0..count)
            .map(|last| a("db.", 60, &format!("10.0.0.{last}")))
            .collect(),
        options: true,
        ..ResponseContent::default()
    };
    for (count, max_payload, transport, is_truncated) in [
        (20, None, DnsTransport::Udp, false),
        (200, None, DnsTransport::Udp, true),
        (200, None, DnsTransport::Tcp, false),
        (60, Some(1232), DnsTransport::Udp, false),
        (100, Some(1232), DnsTransport::Udp, true),
        (200, Some(4096), DnsTransport::Udp, false),
        // A payload below the minimum of the protocol is ignored.
        (20, Some(100), DnsTransport::Udp, false),
    ] {
        let (query, response) = response(
            &query_message("db.", RecordType::A, max_payload),
            large(count),
        );
        let bytes = response.for_query(&query, Duration::ZERO, transport);
        let message = Message::from_vec(&bytes).unwrap();
        assert_eq!(
            message.metadata.truncation, is_truncated,
            "{count} {max_payload:?}"
        );
        let kept = message.answers.len();
        // A record has sixteen bytes.
        let max_bytes = max_payload.unwrap_or(512).max(512) as usize;
        match is_truncated {
            false => assert_eq!(kept, usize::from(count), "{count} {max_payload:?}"),
            true => assert!(
                bytes.len() <= max_bytes && bytes.len() > max_bytes - 16,
                "{kept}"
            ),
        }
        assert!(message.edns.is_some());
        assert_eq!(message.queries.len(), 1);
    }
}

#[test]
fn all_names_of_an_alias_chain_resolve_to_the_address() {
    type Expected = [(&'static str, &'static [&'static str])];
    let table: &[(&str, Vec<DnsRecord>, &Expected)] = &[
        (
            "DB.shop.",
            vec![a("db.shop.", 1, "10.0.0.1")],
            &[("10.0.0.1", &["db.shop"])],
        ),
        (
            "www.",
            vec![
                alias("www.", 1, "Cdn."),
                alias("cdn.", 1, "edge."),
                a("edge.", 1, "10.0.0.1"),
                aaaa("edge.", 1, "fd00::1"),
                record("www.", 1, RData::TXT(TXT::new(vec!["x".to_owned()]))),
            ],
            &[
                ("10.0.0.1", &["www", "cdn", "edge"]),
                ("fd00::1", &["www", "cdn", "edge"]),
            ],
        ),
        // A loop of aliases, and an address of another name.
        (
            "a.",
            vec![
                alias("a.", 1, "b."),
                alias("b.", 1, "a."),
                a("other.", 1, "10.0.0.9"),
            ],
            &[("10.0.0.9", &["other"])],
        ),
        ("a.", vec![], &[]),
    ];
    for (name, answers, expected) in table {
        let content = ResponseContent {
            answers: answers.clone(),
            ..ResponseContent::default()
        };
        let (_, response) = response(&query_message(name, RecordType::A, None), content);
        let found: Vec<(String, Vec<String>)> = response
            .addresses()
            .iter()
            .map(|resolved| (resolved.address.to_string(), resolved.names.clone()))
            .collect();
        let expected: Vec<(String, Vec<String>)> = expected
            .iter()
            .map(|(address, names)| {
                let names = names.iter().copied().map(str::to_owned);
                ((*address).to_owned(), names.collect())
            })
            .collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn malformed_queries_get_a_format_error() {
    let bytes = malformed(&[0xab, 0xcd, 1, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1, 2, 3]).unwrap();
    assert_eq!(bytes, [0xab, 0xcd, 0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(malformed(b"short"), None);
    // A response is not answered, otherwise two servers could answer each other forever.
    assert_eq!(malformed(&[0, 0, 0x80, 0, 0, 9, 0, 0, 0, 0, 0, 0]), None);
}

#[test]
fn responses_of_the_resolver_itself_are_valid_messages() {
    let query = Query::new(&query_message("db.", RecordType::A, Some(1232)), 0).unwrap();
    let response = DnsResponse::with_code(&query, code::SERVER_FAILED);
    let bytes = response.for_query(&query, Duration::ZERO, DnsTransport::Udp);
    let message = Message::from_vec(&bytes).unwrap();
    assert_eq!(message.metadata.id, 0x1234);
    assert_eq!(message.metadata.response_code, ResponseCode::ServFail);
    assert!(query.is_answered_by(&DnsResponse::with_code(&query, 2).bytes));
}
