//! The stream of events as text: Server-Sent Events, as browsers and `curl` read them.
//!
//! An event of the session has its number for an id, so that a reader who comes back says which it has. `counters` come
//! now and then; `missed` says how many events a reader will not get because it was too far behind.

use std::io::Write as _;

use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::event::Entry;

/// What a reader gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    Event(Entry),
    Counters(Counters),
    Missed(u64),
}

const COUNTERS: &str = "counters";
const MISSED: &str = "missed";

#[derive(Debug, Serialize, Deserialize)]
struct Missed {
    count: u64,
}

/// Appends an event to what is sent.
pub fn write_event(entry: &Entry, sent: &mut Vec<u8>) {
    let before = sent.len();
    // Memory takes everything.
    let _ = writeln!(sent, "id: {}", entry.seq);
    write_data(entry, before, sent);
}

pub fn write_counters(counters: &Counters, sent: &mut Vec<u8>) {
    write_kind(COUNTERS, counters, sent);
}

/// A reader will not get so many events.
pub fn write_missed(count: u64, sent: &mut Vec<u8>) {
    write_kind(MISSED, &Missed { count }, sent);
}

fn write_kind(kind: &str, data: &impl Serialize, sent: &mut Vec<u8>) {
    let before = sent.len();
    let _ = writeln!(sent, "event: {kind}");
    write_data(data, before, sent);
}

/// Ends a message. One that cannot be written is left out as a whole; none of our types is such.
fn write_data(data: &impl Serialize, before: usize, sent: &mut Vec<u8>) {
    sent.extend_from_slice(b"data: ");
    match serde_json::to_writer(&mut *sent, data) {
        Ok(()) => sent.extend_from_slice(b"\n\n"),
        Err(_) => sent.truncate(before),
    }
}

/// Reads a stream in pieces of any size. What it does not understand is left out.
#[derive(Debug, Default)]
pub struct Reader {
    rest: Vec<u8>,
}

impl Reader {
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Message> {
        self.rest.extend_from_slice(bytes);
        let mut messages = Vec::new();
        let mut start = 0;
        while let Some(length) = end_of_block(&self.rest[start..]) {
            let block = &self.rest[start..start + length];
            if let Ok(text) = std::str::from_utf8(block) {
                messages.extend(parse(text));
            }
            start += length + 2;
        }
        self.rest.drain(..start);
        messages
    }
}

fn end_of_block(bytes: &[u8]) -> Option<usize> {
    bytes.windows(2).position(|pair| pair == b"\n\n")
}

fn parse(block: &str) -> Option<Message> {
    let field = |name: &str| {
        block
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    };
    let data = field("data")?;
    match field("event") {
        None => serde_json::from_str(data).ok().map(Message::Event),
        Some(COUNTERS) => serde_json::from_str(data).ok().map(Message::Counters),
        Some(MISSED) => {
            let missed: Missed = serde_json::from_str(data).ok()?;
            Some(Message::Missed(missed.count))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, Level};

    #[test]
    fn what_is_written_is_read_in_pieces_of_any_size() {
        let entry = Entry {
            seq: 3,
            time: 5,
            event: Event::Notice {
                level: Level::Info,
                text: "two\nlines, and ü".to_owned(),
            },
        };
        let messages = [
            Message::Missed(4),
            Message::Event(entry),
            Message::Counters(Counters::default()),
        ];
        let mut sent = b": a comment\n\n".to_vec();
        for message in &messages {
            match message {
                Message::Missed(count) => write_missed(*count, &mut sent),
                Message::Event(entry) => write_event(entry, &mut sent),
                Message::Counters(counters) => write_counters(counters, &mut sent),
            }
        }
        let text = String::from_utf8(sent.clone()).unwrap();
        assert!(text.contains("\n\nid: 3\ndata: {\"seq\":3,"), "{text}");
        for size in 1..sent.len() {
            let mut reader = Reader::default();
            let pieces = sent.chunks(size);
            let read: Vec<Message> = pieces.flat_map(|piece| reader.push(piece)).collect();
            assert_eq!(read, messages, "in pieces of {size}");
        }
    }
}
