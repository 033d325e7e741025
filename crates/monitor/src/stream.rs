//! The stream of events as text: Server-Sent Events, as browsers and `curl` read them.
//!
//! An event of the session has its number for an id, so that a reader who comes back says which it has. `counters` come
//! now and then; `missed` says how many events a reader will not get because it was too far behind.

use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::event::Entry;

/// What a line in the stream is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// Appends a message to text that is sent.
pub fn write(message: &Message, text: &mut String) {
    let (kind, id, data) = match message {
        Message::Event(entry) => (None, Some(entry.seq), serde_json::to_string(entry)),
        Message::Counters(counters) => (Some(COUNTERS), None, serde_json::to_string(counters)),
        Message::Missed(count) => {
            let missed = Missed { count: *count };
            (Some(MISSED), None, serde_json::to_string(&missed))
        }
    };
    // None of these types can fail to be written.
    let Ok(data) = data else { return };
    if let Some(id) = id {
        text.push_str("id: ");
        text.push_str(&id.to_string());
        text.push('\n');
    }
    if let Some(kind) = kind {
        text.push_str("event: ");
        text.push_str(kind);
        text.push('\n');
    }
    text.push_str("data: ");
    text.push_str(&data);
    text.push_str("\n\n");
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
        let mut text = String::from(": a comment\n\n");
        for message in &messages {
            write(message, &mut text);
        }
        assert!(text.contains("\n\nid: 3\ndata: {\"seq\":3,"), "{text}");
        for size in 1..text.len() {
            let mut reader = Reader::default();
            let pieces = text.as_bytes().chunks(size);
            let read: Vec<Message> = pieces.flat_map(|piece| reader.push(piece)).collect();
            assert_eq!(read, messages, "in pieces of {size}");
        }
    }
}
