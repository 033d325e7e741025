//! DNS messages, as far as carrying and keeping them needs: the header, the question, and where records are.
//!
//! A message is never taken apart and put together again: what is not understood here must arrive as it was sent.

use std::net::IpAddr;
use std::ops::Range;

const HEADER: usize = 12;
const LONGEST: usize = u16::MAX as usize;
/// The kind and the class after the name of a question.
const KIND_AND_CLASS: usize = 4;
/// Pointers that are followed within one name. A name has at most 127 labels, so a chain of more is a loop.
const MOST_POINTERS: usize = 127;

/// The numbers of kinds of records that mean something to us.
pub mod kind {
    pub const A: u16 = 1;
    pub const CNAME: u16 = 5;
    pub const SOA: u16 = 6;
    pub const AAAA: u16 = 28;
    pub const OPT: u16 = 41;
    pub const IXFR: u16 = 251;
    pub const AXFR: u16 = 252;
}

/// The codes of answers that mean something to us.
pub mod code {
    pub const NO_ERROR: u8 = 0;
    pub const FORMAT_ERROR: u8 = 1;
    pub const SERVER_FAILED: u8 = 2;
    pub const NO_NAME: u8 = 3;
    pub const NOT_IMPLEMENTED: u8 = 4;
    pub const REFUSED: u8 = 5;
}

/// What an answer's code means for asking on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// An answer, also one that says "no such name".
    Final,
    /// It was cut to fit: ask again over TCP.
    CutShort,
    /// The server cannot or will not answer: another one may.
    Unwilling,
}

/// A message that asks one question, with an id of our own.
#[derive(Debug, Clone)]
pub struct Query {
    /// The id with which the answer goes back.
    id: [u8; 2],
    message: Vec<u8>,
    question_end: usize,
}

impl Query {
    /// Takes a client's message, or nothing if it does not ask one question. The id is replaced, because a client's may
    /// be easy to guess.
    #[must_use]
    pub fn new(message: &[u8], own_id: u16) -> Option<Self> {
        let id = *message.first_chunk()?;
        let questions = message.get(4..6)?;
        if questions != [0, 1] || message.len() > LONGEST || is_response(message) {
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

    /// The id that the client gave.
    #[must_use]
    pub fn id(&self) -> [u8; 2] {
        self.id
    }

    #[must_use]
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// The message with its length before it, as it is sent over TCP.
    #[must_use]
    pub fn message_for_tcp(&self) -> Vec<u8> {
        let length = u16::try_from(self.message.len()).unwrap_or(u16::MAX);
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend_from_slice(&self.message);
        framed
    }

    /// Where the name of the question is, with its final zero.
    #[must_use]
    pub fn name_range(&self) -> Range<usize> {
        HEADER..self.question_end - KIND_AND_CLASS
    }

    /// Where the whole question is.
    #[must_use]
    pub fn question_range(&self) -> Range<usize> {
        HEADER..self.question_end
    }

    /// The name of the question as text, without the final dot.
    #[must_use]
    pub fn name(&self) -> String {
        name_at(&self.message, HEADER).unwrap_or_default()
    }

    /// The kind of records that is asked for.
    #[must_use]
    pub fn kind(&self) -> u16 {
        number_at(&self.message, self.question_end - KIND_AND_CLASS).unwrap_or(0)
    }

    /// Whether `answer` is one to this query, and not somebody's guess.
    #[must_use]
    pub fn is_answered_by(&self, answer: &[u8]) -> bool {
        let Some(header) = answer.first_chunk::<HEADER>() else {
            return false;
        };
        let same_question = match header[4..6] {
            // Some servers do not repeat the question when they refuse it.
            [0, 0] => judge(answer) != Judgement::Final || header[3] & 0x0f != 0,
            [0, 1] => answer
                .get(self.question_range())
                .zip(self.message.get(self.question_range()))
                .is_some_and(|(theirs, ours)| theirs.eq_ignore_ascii_case(ours)),
            _ => false,
        };
        is_response(answer) && self.message.starts_with(&header[..2]) && same_question
    }

    /// Gives the answer the id that the client knows.
    #[must_use]
    pub fn finish(&self, mut answer: Vec<u8>) -> Vec<u8> {
        if let Some(id) = answer.first_chunk_mut() {
            *id = self.id;
        }
        answer
    }
}

fn is_response(message: &[u8]) -> bool {
    message.get(2).is_some_and(|flags| flags & 0x80 != 0)
}

/// The code of an answer, or of its header if it has a longer one.
#[must_use]
pub fn code(answer: &[u8]) -> Option<u8> {
    answer.get(3).map(|flags| flags & 0x0f)
}

#[must_use]
pub fn judge(answer: &[u8]) -> Judgement {
    let Some(header) = answer.first_chunk::<HEADER>() else {
        return Judgement::Unwilling;
    };
    match header[3] & 0x0f {
        code::SERVER_FAILED | code::NOT_IMPLEMENTED | code::REFUSED => Judgement::Unwilling,
        _ if header[2] & 0x02 != 0 => Judgement::CutShort,
        _ => Judgement::Final,
    }
}

/// Where the first question ends. Names in questions are never shortened by pointers.
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

/// A part of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    Answer,
    Authority,
    Additional,
}

/// Where a record is in its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub section: Section,
    pub kind: u16,
    pub class: u16,
    /// The seconds that it lives; something else in an `OPT` record.
    pub seconds: u32,
    /// Where these seconds are: four bytes.
    pub seconds_at: usize,
    /// All of it, from the name on.
    pub range: Range<usize>,
    pub data: Range<usize>,
}

impl Record {
    /// The address that it says, if it is one of the kinds that do.
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

/// All records of a message, or nothing if it is malformed.
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
    let seconds = message.get(at + 4..at + 8)?;
    Some(Record {
        section,
        kind: number_at(message, at)?,
        class: number_at(message, at + 2)?,
        seconds: u32::from_be_bytes(*seconds.first_chunk()?),
        seconds_at: at + 4,
        range: start..data.end,
        data,
    })
}

/// The name at a position as text, without the final dot. Bytes that are no text are replaced.
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
        if pointers > MOST_POINTERS || labels.len() > MOST_POINTERS {
            return None;
        }
    }
}

/// Where a name ends that may be shortened by a pointer.
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

    fn answer(id: u16, code: u8, name: &[u8]) -> Vec<u8> {
        let mut message = query(name);
        message[..2].copy_from_slice(&id.to_be_bytes());
        message[2] |= 0x80;
        message[3] |= code;
        message
    }

    #[test]
    fn only_the_right_answer_counts() {
        let query = Query::new(&query(b"\x02db\x00"), 7).unwrap();
        let check = |answer: &[u8], expected| assert_eq!(query.is_answered_by(answer), expected);
        check(&answer(7, 0, b"\x02db\x00"), true);
        check(&answer(7, 3, b"\x02DB\x00"), true);
        check(&answer(8, 0, b"\x02db\x00"), false);
        check(&answer(7, 0, b"\x02dc\x00"), false);
        check(query.message(), false);
        check(b"short", false);
        assert_eq!(query.finish(answer(7, 0, b"\x02db\x00"))[..2], [0xab, 0xcd]);
    }

    #[test]
    fn messages_that_ask_nothing_are_refused() {
        let check = |message: &[u8]| assert!(Query::new(message, 1).is_none(), "{message:?}");
        check(b"");
        check(&[0; 12]);
        check(&query(b"\x40toolong"));
        check(&query(b"\x3fends early"));
        check(&answer(1, 0, b"\x02db\x00"));
        check(&[query(b"\x00"), vec![0; 70_000]].concat());
    }

    #[test]
    fn codes_decide_whether_another_server_is_asked() {
        let check = |code, expected| assert_eq!(judge(&answer(1, code, b"\x00")), expected);
        check(0, Judgement::Final);
        check(1, Judgement::Final);
        check(2, Judgement::Unwilling);
        check(3, Judgement::Final);
        check(4, Judgement::Unwilling);
        check(5, Judgement::Unwilling);
        let mut cut = answer(1, 0, b"\x00");
        cut[2] |= 0x02;
        assert_eq!(judge(&cut), Judgement::CutShort);
    }

    /// An answer with an alias, an address, and the record that carries options.
    const ANSWER: &[u8] = b"\xab\xcd\x81\x80\0\x01\0\x02\0\0\0\x01\
        \x03www\x02db\0\0\x01\0\x01\
        \xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x02\xc0\x10\
        \xc0\x10\0\x01\0\x01\0\0\0\x1e\0\x04\x0a\0\0\x07\
        \0\0\x29\x04\xd0\0\0\0\0\0\0";

    #[test]
    fn records_are_found() {
        let records = records(ANSWER).unwrap();
        let seen: Vec<_> = records
            .iter()
            .map(|record| (record.section, record.kind, record.seconds))
            .collect();
        assert_eq!(
            seen,
            [
                (Section::Answer, kind::CNAME, 60),
                (Section::Answer, kind::A, 30),
                (Section::Additional, kind::OPT, 0),
            ]
        );
        assert_eq!(name_at(ANSWER, records[0].range.start).unwrap(), "www.db");
        assert_eq!(name_at(ANSWER, records[0].data.start).unwrap(), "db");
        assert_eq!(
            records[1].address(ANSWER),
            Some(IpAddr::from([10, 0, 0, 7]))
        );
        assert_eq!(records[0].address(ANSWER), None);
        assert_eq!(records[2].class, 1232);
        assert_eq!(records[2].range.end, ANSWER.len());
    }

    #[test]
    fn malformed_messages_harm_nobody() {
        for length in 0..ANSWER.len() {
            assert!(records(&ANSWER[..length]).is_none(), "{length}");
        }
        for position in 0..ANSWER.len() {
            for byte in [0x00, 0x3f, 0x40, 0xc0, 0xff] {
                let mut message = ANSWER.to_vec();
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
    fn questions_are_read() {
        let query = Query::new(&query(b"\x03Www\x02db\x00"), 7).unwrap();
        assert_eq!(query.name(), "Www.db");
        assert_eq!(query.kind(), kind::A);
        assert_eq!(query.id(), [0xab, 0xcd]);
        assert_eq!(query.message()[query.name_range()], *b"\x03Www\x02db\x00");
    }
}
