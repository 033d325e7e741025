//! DNS messages, as far as forwarding and caching need them: the header, the question, and the positions of the records.
//!
//! A message is never decoded and encoded again: parts that are not understood here must be forwarded unchanged.

use std::net::IpAddr;
use std::ops::Range;

const HEADER: usize = 12;
const MAX_MESSAGE: usize = u16::MAX as usize;
/// The length of the record type and the class after the name of a question.
const KIND_AND_CLASS: usize = 4;
/// The most compression pointers that are followed within one name. A name has at most 127 labels, so a longer chain is a
/// loop.
const MAX_POINTERS: usize = 127;

/// The numbers of the record types that are handled here.
pub mod kind {
    pub const A: u16 = 1;
    pub const CNAME: u16 = 5;
    pub const SOA: u16 = 6;
    pub const AAAA: u16 = 28;
    pub const OPT: u16 = 41;
    pub const IXFR: u16 = 251;
    pub const AXFR: u16 = 252;
}

/// The response codes that are handled here.
pub mod code {
    pub const NO_ERROR: u8 = 0;
    pub const FORMAT_ERROR: u8 = 1;
    pub const SERVER_FAILED: u8 = 2;
    pub const NO_NAME: u8 = 3;
    pub const NOT_IMPLEMENTED: u8 = 4;
    pub const REFUSED: u8 = 5;
}

/// What a response means for the rest of the lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseClass {
    /// An answer, also one that says "no such name".
    Final,
    /// It was truncated to fit into a datagram: retry over TCP.
    Truncated,
    /// The server cannot or will not answer: try the next one.
    Failed,
}

/// A message with one question, sent with an id of our own.
#[derive(Debug, Clone)]
pub struct Query {
    /// The client's id, which its response must carry.
    id: [u8; 2],
    message: Vec<u8>,
    question_end: usize,
}

impl Query {
    /// Takes a client's message. Returns `None` if it does not have exactly one question. The id is replaced, because the
    /// client's may be easy to guess.
    #[must_use]
    pub fn new(message: &[u8], own_id: u16) -> Option<Self> {
        let id = *message.first_chunk()?;
        let questions = message.get(4..6)?;
        if questions != [0, 1] || message.len() > MAX_MESSAGE || is_response(message) {
            return None;
        }
        let question_end = question_end(message)?;
        let mut message = message.to_vec();
        message.get_mut(..2)?.copy_from_slice(&own_id.to_be_bytes());
        Some(Self {
            id,
            message,
            question_end,
        })
    }

    /// The id that the client chose.
    #[must_use]
    pub fn id(&self) -> [u8; 2] {
        self.id
    }

    #[must_use]
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// The message after its length, as it is sent over TCP.
    #[must_use]
    pub fn message_for_tcp(&self) -> Vec<u8> {
        let length = u16::try_from(self.message.len()).unwrap_or(u16::MAX);
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend_from_slice(&self.message);
        framed
    }

    /// The position of the name in the question, with its final zero.
    #[must_use]
    pub fn name_range(&self) -> Range<usize> {
        HEADER..self.question_end - KIND_AND_CLASS
    }

    /// The position of the whole question.
    #[must_use]
    pub fn question_range(&self) -> Range<usize> {
        HEADER..self.question_end
    }

    /// The name of the question as text, without the final dot.
    #[must_use]
    pub fn name(&self) -> String {
        name_at(&self.message, HEADER).unwrap_or_default()
    }

    /// The record type that the question asks for.
    #[must_use]
    pub fn kind(&self) -> u16 {
        number_at(&self.message, self.question_end - KIND_AND_CLASS).unwrap_or(0)
    }

    /// Whether `response` belongs to this query and is not a spoofed guess.
    #[must_use]
    pub fn is_answered_by(&self, response: &[u8]) -> bool {
        let Some(header) = response.first_chunk::<HEADER>() else {
            return false;
        };
        let same_question = match header[4..6] {
            // Some servers do not repeat the question when they refuse it.
            [0, 0] => classify_response(response) != ResponseClass::Final || header[3] & 0x0f != 0,
            [0, 1] => response
                .get(self.question_range())
                .zip(self.message.get(self.question_range()))
                .is_some_and(|(theirs, ours)| theirs.eq_ignore_ascii_case(ours)),
            _ => false,
        };
        is_response(response) && self.message.starts_with(&header[..2]) && same_question
    }

    /// Restores the id that the client chose.
    #[must_use]
    pub fn finish(&self, mut response: Vec<u8>) -> Vec<u8> {
        if let Some(id) = response.first_chunk_mut() {
            *id = self.id;
        }
        response
    }
}

fn is_response(message: &[u8]) -> bool {
    message.get(2).is_some_and(|flags| flags & 0x80 != 0)
}

/// The response code in the header. An extended code has further bits in the `OPT` record, which are not read.
#[must_use]
pub fn code(response: &[u8]) -> Option<u8> {
    response.get(3).map(|flags| flags & 0x0f)
}

/// Classifies a response by its code and its truncation flag.
#[must_use]
pub fn classify_response(response: &[u8]) -> ResponseClass {
    let Some(header) = response.first_chunk::<HEADER>() else {
        return ResponseClass::Failed;
    };
    match header[3] & 0x0f {
        code::SERVER_FAILED | code::NOT_IMPLEMENTED | code::REFUSED => ResponseClass::Failed,
        _ if header[2] & 0x02 != 0 => ResponseClass::Truncated,
        _ => ResponseClass::Final,
    }
}

/// The end of the first question. Names in questions are never compressed.
fn question_end(message: &[u8]) -> Option<usize> {
    let mut position = HEADER;
    loop {
        match *message.get(position)? {
            0 => break,
            length @ 1..=63 => position += 1 + usize::from(length),
            _ => return None,
        }
    }
    let end = position + 1 + KIND_AND_CLASS;
    (end <= message.len()).then_some(end)
}

/// The section of a message that a record is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    Answer,
    Authority,
    Additional,
}

/// A record, by its position in the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub section: Section,
    pub kind: u16,
    pub class: u16,
    /// The TTL in seconds. In an `OPT` record, these four bytes mean something else.
    pub ttl: u32,
    /// The position of the four bytes of the TTL.
    pub ttl_at: usize,
    /// The whole record, from its name on.
    pub range: Range<usize>,
    pub data: Range<usize>,
}

impl Record {
    /// The address of an `A` or `AAAA` record.
    #[must_use]
    pub fn address(&self, message: &[u8]) -> Option<IpAddr> {
        let data = message.get(self.data.clone())?;
        match self.kind {
            kind::A => <[u8; 4]>::try_from(data).ok().map(IpAddr::from),
            kind::AAAA => <[u8; 16]>::try_from(data).ok().map(IpAddr::from),
            _ => None,
        }
    }
}

/// All records of a message, or `None` if it is malformed.
#[must_use]
pub fn records(message: &[u8]) -> Option<Vec<Record>> {
    let count = |at| number_at(message, at);
    let mut position = HEADER;
    for _ in 0..count(4)? {
        position = name_end(message, position)? + KIND_AND_CLASS;
    }
    let mut records = Vec::new();
    for (section, count) in [
        (Section::Answer, count(6)?),
        (Section::Authority, count(8)?),
        (Section::Additional, count(10)?),
    ] {
        for _ in 0..count {
            let record = record_at(message, position, section)?;
            position = record.range.end;
            records.push(record);
        }
    }
    Some(records)
}

fn record_at(message: &[u8], start: usize, section: Section) -> Option<Record> {
    let at = name_end(message, start)?;
    let data_start = at + 10;
    let length = usize::from(number_at(message, at + 8)?);
    let data = data_start..data_start + length;
    message.get(data.clone())?;
    let ttl = message.get(at + 4..at + 8)?;
    Some(Record {
        section,
        kind: number_at(message, at)?,
        class: number_at(message, at + 2)?,
        ttl: u32::from_be_bytes(*ttl.first_chunk()?),
        ttl_at: at + 4,
        range: start..data.end,
        data,
    })
}

/// The DNS name at a position as text, without the final dot. Bytes that are not UTF-8 are replaced.
#[must_use]
pub fn name_at(message: &[u8], mut position: usize) -> Option<String> {
    let mut labels: Vec<String> = Vec::new();
    let mut pointers = 0;
    loop {
        match *message.get(position)? {
            0 => return Some(labels.join(".")),
            length @ 1..=63 => {
                let end = position + 1 + usize::from(length);
                let label = message.get(position + 1..end)?;
                labels.push(String::from_utf8_lossy(label).into_owned());
                position = end;
            }
            upper @ 0xc0.. => {
                pointers += 1;
                let lower = *message.get(position + 1)?;
                position = usize::from(u16::from_be_bytes([upper & 0x3f, lower]));
            }
            _ => return None,
        }
        if pointers > MAX_POINTERS || labels.len() > MAX_POINTERS {
            return None;
        }
    }
}

/// The end of a name that may be compressed.
fn name_end(message: &[u8], mut position: usize) -> Option<usize> {
    loop {
        match *message.get(position)? {
            0 => return Some(position + 1),
            length @ 1..=63 => position += 1 + usize::from(length),
            0xc0.. => return Some(position + 2),
            _ => return None,
        }
    }
}

fn number_at(message: &[u8], at: usize) -> Option<u16> {
    message
        .get(at..at + 2)
        .and_then(|bytes| bytes.first_chunk())
        .map(|bytes| u16::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &[u8]) -> Vec<u8> {
        let mut message = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        message.extend_from_slice(name);
        message.extend_from_slice(&[0, 1, 0, 1]);
        message
    }

    fn response(id: u16, code: u8, name: &[u8]) -> Vec<u8> {
        let mut message = query(name);
        message[..2].copy_from_slice(&id.to_be_bytes());
        message[2] |= 0x80;
        message[3] |= code;
        message
    }

    #[test]
    fn only_the_matching_response_is_accepted() {
        let query = Query::new(&query(b"\x02db\x00"), 7).unwrap();
        let check =
            |response: &[u8], expected| assert_eq!(query.is_answered_by(response), expected);
        check(&response(7, 0, b"\x02db\x00"), true);
        check(&response(7, 3, b"\x02DB\x00"), true);
        check(&response(8, 0, b"\x02db\x00"), false);
        check(&response(7, 0, b"\x02dc\x00"), false);
        check(query.message(), false);
        check(b"short", false);
        assert_eq!(
            query.finish(response(7, 0, b"\x02db\x00"))[..2],
            [0xab, 0xcd]
        );
    }

    #[test]
    fn messages_without_one_question_are_rejected() {
        let check = |message: &[u8]| assert!(Query::new(message, 1).is_none(), "{message:?}");
        check(b"");
        check(&[0; 12]);
        check(&query(b"\x40toolong"));
        check(&query(b"\x3fends early"));
        check(&response(1, 0, b"\x02db\x00"));
        check(&[query(b"\x00"), vec![0; 70_000]].concat());
    }

    #[test]
    fn codes_decide_whether_the_next_server_is_tried() {
        let check =
            |code, expected| assert_eq!(classify_response(&response(1, code, b"\x00")), expected);
        check(0, ResponseClass::Final);
        check(1, ResponseClass::Final);
        check(2, ResponseClass::Failed);
        check(3, ResponseClass::Final);
        check(4, ResponseClass::Failed);
        check(5, ResponseClass::Failed);
        let mut truncated = response(1, 0, b"\x00");
        truncated[2] |= 0x02;
        assert_eq!(classify_response(&truncated), ResponseClass::Truncated);
    }

    /// A response with an alias, an address, and an `OPT` record.
    const RESPONSE: &[u8] = b"\xab\xcd\x81\x80\0\x01\0\x02\0\0\0\x01\
        \x03www\x02db\0\0\x01\0\x01\
        \xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x02\xc0\x10\
        \xc0\x10\0\x01\0\x01\0\0\0\x1e\0\x04\x0a\0\0\x07\
        \0\0\x29\x04\xd0\0\0\0\0\0\0";

    #[test]
    fn records_are_found() {
        let records = records(RESPONSE).unwrap();
        let seen: Vec<_> = records
            .iter()
            .map(|record| (record.section, record.kind, record.ttl))
            .collect();
        assert_eq!(
            seen,
            [
                (Section::Answer, kind::CNAME, 60),
                (Section::Answer, kind::A, 30),
                (Section::Additional, kind::OPT, 0),
            ]
        );
        assert_eq!(name_at(RESPONSE, records[0].range.start).unwrap(), "www.db");
        assert_eq!(name_at(RESPONSE, records[0].data.start).unwrap(), "db");
        assert_eq!(
            records[1].address(RESPONSE),
            Some(IpAddr::from([10, 0, 0, 7]))
        );
        assert_eq!(records[0].address(RESPONSE), None);
        assert_eq!(records[2].class, 1232);
        assert_eq!(records[2].range.end, RESPONSE.len());
    }

    #[test]
    fn malformed_messages_cause_no_panic() {
        for length in 0..RESPONSE.len() {
            assert!(records(&RESPONSE[..length]).is_none(), "{length}");
        }
        for position in 0..RESPONSE.len() {
            for byte in [0x00, 0x3f, 0x40, 0xc0, 0xff] {
                let mut message = RESPONSE.to_vec();
                message[position] = byte;
                for record in records(&message).unwrap_or_default() {
                    let _ = name_at(&message, record.range.start);
                    let _ = name_at(&message, record.data.start);
                }
            }
        }
        // A name that points to itself.
        assert_eq!(name_at(b"\xc0\x00", 0), None);
        assert_eq!(name_at(b"\x01a\xc0\x00", 0), None);
    }

    #[test]
    fn question_is_parsed() {
        let query = Query::new(&query(b"\x03Www\x02db\x00"), 7).unwrap();
        assert_eq!(query.name(), "Www.db");
        assert_eq!(query.kind(), kind::A);
        assert_eq!(query.id(), [0xab, 0xcd]);
        assert_eq!(query.message()[query.name_range()], *b"\x03Www\x02db\x00");
    }
}
