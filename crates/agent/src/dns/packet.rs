//! DNS messages, as far as carrying them needs: the header and the question.

use crate::{Error, Result};

const HEADER: usize = 12;
const LONGEST: usize = u16::MAX as usize;

/// What an answer's code means for asking on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// An answer, also one that says "no such name".
    Final,
    /// It was cut to fit: ask again over TCP.
    CutShort,
    /// The server cannot or will not answer: another one may.
    Unwilling,
}

/// A message that asks one question, with an id of our own.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    /// The id with which the answer goes back.
    id: [u8; 2],
    message: Vec<u8>,
    question_end: usize,
}

impl Query {
    /// Takes a client's message. The id is replaced, because a client's may be easy to guess.
    pub(crate) fn new(message: &[u8], own_id: u16) -> Result<Self> {
        const NOT_ONE: Error = Error::Missing("DNS message with one question");
        let id = *message.first_chunk().ok_or(NOT_ONE)?;
        let questions = message.get(4..6).ok_or(NOT_ONE)?;
        if questions != [0, 1] || message.len() > LONGEST || message[2] & 0x80 != 0 {
            return Err(NOT_ONE);
        }
        let question_end = question_end(message).ok_or(NOT_ONE)?;
        let mut message = message.to_vec();
        message[..2].copy_from_slice(&own_id.to_be_bytes());
        Ok(Self {
            id,
            message,
            question_end,
        })
    }

    pub(crate) fn message(&self) -> &[u8] {
        &self.message
    }

    /// The message with its length before it, as it is sent over TCP.
    pub(crate) fn message_for_tcp(&self) -> Vec<u8> {
        let length = u16::try_from(self.message.len()).unwrap_or(u16::MAX);
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend_from_slice(&self.message);
        framed
    }

    /// Whether `answer` is one to this query, and not somebody's guess.
    pub(crate) fn is_answered_by(&self, answer: &[u8]) -> bool {
        let Some(header) = answer.first_chunk::<HEADER>() else {
            return false;
        };
        let is_response = header[2] & 0x80 != 0;
        let same_question = match header[4..6] {
            // Some servers do not repeat the question when they refuse it.
            [0, 0] => judge(answer) != Judgement::Final || header[3] & 0x0f != 0,
            [0, 1] => answer
                .get(HEADER..self.question_end)
                .is_some_and(|question| {
                    question.eq_ignore_ascii_case(&self.message[HEADER..self.question_end])
                }),
            _ => false,
        };
        is_response && header[..2] == self.message[..2] && same_question
    }

    /// Gives the answer the id that the client knows.
    pub(crate) fn finish(&self, mut answer: Vec<u8>) -> Vec<u8> {
        answer[..2].copy_from_slice(&self.id);
        answer
    }
}

pub(crate) fn judge(answer: &[u8]) -> Judgement {
    const SERVER_FAILED: u8 = 2;
    const NOT_IMPLEMENTED: u8 = 4;
    const REFUSED: u8 = 5;
    let Some(header) = answer.first_chunk::<HEADER>() else {
        return Judgement::Unwilling;
    };
    match header[3] & 0x0f {
        SERVER_FAILED | NOT_IMPLEMENTED | REFUSED => Judgement::Unwilling,
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
    let end = position + 1 + 4;
    (end <= message.len()).then_some(end)
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
        let check = |message: &[u8]| assert!(Query::new(message, 1).is_err(), "{message:?}");
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
}
