use std::str::FromStr as _;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, SOA, TXT};
use hickory_proto::rr::{Name, RData, Record as DnsRecord, RecordType};

use super::*;

/// A question as a client asks it, with room for datagrams if it says so.
pub(crate) fn question(name: &str, kind: RecordType, room: Option<u16>) -> Vec<u8> {
    let mut message = Message::new(0x1234, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    let name = Name::from_str(name).unwrap();
    message.add_query(hickory_proto::op::Query::query(name, kind));
    if let Some(room) = room {
        let mut options = Edns::new();
        options.set_max_payload(room);
        message.set_edns(options);
    }
    message.to_vec().unwrap()
}

/// The answer to a question: what it says, and what the zone says.
pub(crate) struct Said {
    pub(crate) code: ResponseCode,
    pub(crate) answers: Vec<DnsRecord>,
    pub(crate) zone: Option<(u32, u32)>,
    pub(crate) options: bool,
}

impl Default for Said {
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

/// The bytes of an answer to the bytes of a question.
pub(crate) fn said(question: &[u8], said: Said) -> Bytes {
    let question = Message::from_vec(question).unwrap();
    let mut message = Message::new(question.metadata.id, MessageType::Response, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.metadata.recursion_available = true;
    message.metadata.response_code = said.code;
    message.add_query(question.queries[0].clone());
    message.answers = said.answers;
    if let Some((seconds, minimum)) = said.zone {
        let name = || Name::from_str("zone.").unwrap();
        let zone = SOA::new(name(), name(), 1, 2, 3, 4, minimum);
        message.authorities = vec![record("zone.", seconds, RData::SOA(zone))];
    }
    if said.options {
        message.set_edns(Edns::new());
    }
    message.to_vec().unwrap().into()
}

fn answer(question: &[u8], content: Said) -> (Query, Answer) {
    let query = Query::new(question, 0).unwrap();
    let bytes = said(query.message(), content);
    let answer = Answer::new(&query, bytes);
    (query, answer)
}

#[test]
fn how_long_answers_are_kept() {
    let table: &[(&str, RecordType, Said, Option<u64>)] = &[
        (
            "the shortest counts",
            RecordType::A,
            Said {
                answers: vec![a("db.", 60, "10.0.0.1"), a("db.", 30, "10.0.0.2")],
                ..Said::default()
            },
            Some(30),
        ),
        (
            "of aliases, too",
            RecordType::A,
            Said {
                answers: vec![alias("db.", 10, "x."), a("x.", 30, "10.0.0.2")],
                ..Said::default()
            },
            Some(10),
        ),
        (
            "not longer than a session should be wrong",
            RecordType::A,
            Said {
                answers: vec![a("db.", 86_400, "10.0.0.1")],
                ..Said::default()
            },
            Some(300),
        ),
        (
            "for now only",
            RecordType::A,
            Said {
                answers: vec![a("db.", 0, "10.0.0.1")],
                ..Said::default()
            },
            None,
        ),
        (
            "nonsense is no time",
            RecordType::A,
            Said {
                answers: vec![a("db.", 0x8000_0000, "10.0.0.1")],
                ..Said::default()
            },
            None,
        ),
        (
            "no such name, as long as the zone says",
            RecordType::A,
            Said {
                code: ResponseCode::NXDomain,
                zone: Some((3600, 20)),
                ..Said::default()
            },
            Some(20),
        ),
        (
            "no address, as long as the zone's record lives",
            RecordType::AAAA,
            Said {
                zone: Some((5, 20)),
                ..Said::default()
            },
            Some(5),
        ),
        (
            "an alias to nothing",
            RecordType::AAAA,
            Said {
                answers: vec![alias("db.", 3, "x.")],
                zone: Some((60, 20)),
                ..Said::default()
            },
            Some(3),
        ),
        (
            "nothing, and no zone says it",
            RecordType::A,
            Said {
                code: ResponseCode::NXDomain,
                ..Said::default()
            },
            None,
        ),
        (
            "a failure, for a moment",
            RecordType::A,
            Said {
                code: ResponseCode::ServFail,
                ..Said::default()
            },
            Some(1),
        ),
        (
            "a refusal",
            RecordType::A,
            Said {
                code: ResponseCode::Refused,
                ..Said::default()
            },
            None,
        ),
    ];
    for (why, kind, content, expected) in table {
        let content = Said {
            code: content.code,
            answers: content.answers.clone(),
            zone: content.zone,
            options: false,
        };
        let (_, answer) = answer(&question("db.", *kind, None), content);
        assert_eq!(
            answer.lifetime(),
            expected.map(Duration::from_secs),
            "{why}"
        );
    }
}

#[test]
fn an_answer_reads_as_if_it_was_just_asked_for() {
    let first = question("db.shop.", RecordType::A, None);
    let (_, answer) = answer(
        &first,
        Said {
            answers: vec![a("db.shop.", 60, "10.0.0.1"), a("db.shop.", 5, "10.0.0.2")],
            ..Said::default()
        },
    );
    let mut again = question("DB.Shop.", RecordType::A, None);
    again[..2].copy_from_slice(&[0xbe, 0xef]);
    let again = Query::new(&again, 0).unwrap();
    let bytes = answer.for_asker(&again, Duration::from_secs(7), Carrier::Datagram);
    let name = again.name_range();
    assert_eq!(bytes[name.clone()], again.message()[name]);
    let message = Message::from_vec(&bytes).unwrap();
    assert_eq!(message.metadata.id, 0xbeef);
    let seconds: Vec<u32> = message.answers.iter().map(|record| record.ttl).collect();
    assert_eq!(seconds, [53, 0]);
}

#[test]
fn datagrams_are_cut_to_the_room() {
    let large = |count: u8| Said {
        answers: (0..count)
            .map(|last| a("db.", 60, &format!("10.0.0.{last}")))
            .collect(),
        options: true,
        ..Said::default()
    };
    for (count, room, carrier, is_cut) in [
        (20, None, Carrier::Datagram, false),
        (200, None, Carrier::Datagram, true),
        (200, None, Carrier::Stream, false),
        (60, Some(1232), Carrier::Datagram, false),
        (100, Some(1232), Carrier::Datagram, true),
        (200, Some(4096), Carrier::Datagram, false),
        // Less than what every asker takes cannot be meant.
        (20, Some(100), Carrier::Datagram, false),
    ] {
        let (query, answer) = answer(&question("db.", RecordType::A, room), large(count));
        let bytes = answer.for_asker(&query, Duration::ZERO, carrier);
        let message = Message::from_vec(&bytes).unwrap();
        assert_eq!(message.metadata.truncation, is_cut, "{count} {room:?}");
        let kept = message.answers.len();
        // Each takes sixteen bytes.
        let most = room.unwrap_or(512).max(512) as usize;
        match is_cut {
            false => assert_eq!(kept, usize::from(count), "{count} {room:?}"),
            true => assert!(bytes.len() <= most && bytes.len() > most - 16, "{kept}"),
        }
        assert!(message.edns.is_some());
        assert_eq!(message.queries.len(), 1);
    }
}

#[test]
fn every_name_on_the_way_leads_to_the_address() {
    type Found = [(&'static str, &'static [&'static str])];
    let table: &[(&str, Vec<DnsRecord>, &Found)] = &[
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
        // Aliases that lead in a circle, and an address of somebody else.
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
        let content = Said {
            answers: answers.clone(),
            ..Said::default()
        };
        let (_, answer) = answer(&question(name, RecordType::A, None), content);
        let found: Vec<(String, Vec<String>)> = answer
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
fn what_is_no_question_is_told_so() {
    let bytes = malformed(&[0xab, 0xcd, 1, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1, 2, 3]).unwrap();
    assert_eq!(bytes, [0xab, 0xcd, 0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(malformed(b"short"), None);
    // Somebody's answer is not answered, or two would answer each other forever.
    assert_eq!(malformed(&[0, 0, 0x80, 0, 0, 9, 0, 0, 0, 0, 0, 0]), None);
}

#[test]
fn answers_of_our_own_are_messages() {
    let query = Query::new(&question("db.", RecordType::A, Some(1232)), 0).unwrap();
    let answer = Answer::of_code(&query, code::SERVER_FAILED);
    let bytes = answer.for_asker(&query, Duration::ZERO, Carrier::Datagram);
    let message = Message::from_vec(&bytes).unwrap();
    assert_eq!(message.metadata.id, 0x1234);
    assert_eq!(message.metadata.response_code, ResponseCode::ServFail);
    assert!(query.is_answered_by(&Answer::of_code(&query, 2).bytes));
}
