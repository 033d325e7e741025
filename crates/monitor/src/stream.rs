//! The event stream as Server-Sent Events, for browsers and `curl`.
//!
//! The id of an event is its number, so that a reader that reconnects can resume. `counters` are output at intervals; `missed` is
//! the number of events that a slow reader will not get.

use std::io::Write as _;

use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::event::Entry;

/// A message of the stream.
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

/// Appends an event to the output.
pub fn write_event(entry: &Entry, output: &mut Vec<u8>) {
    let before = output.len();
    // Writing to memory cannot fail.
    let _ = writeln!(output, "id: {}", entry.seq);
    write_data(entry, before, output);
}

pub fn write_counters(counters: &Counters, output: &mut Vec<u8>) {
    write_kind(COUNTERS, counters, output);
}

/// Appends the number of events that the reader will not get.
pub fn write_missed(count: u64, output: &mut Vec<u8>) {
    write_kind(MISSED, &Missed { count }, output);
}

fn write_kind(kind: &str, data: &impl Serialize, output: &mut Vec<u8>) {
    let before = output.len();
    let _ = writeln!(output, "event: {kind}");
    write_data(data, before, output);
}

/// Appends the data and ends the message. A message that cannot be serialized is omitted, which does not happen with the
/// types here.
fn write_data(data: &impl Serialize, before: usize, output: &mut Vec<u8>) {
    output.extend_from_slice(b"data: ");
    match serde_json::to_writer(&mut *output, data) {
        Ok(()) => output.extend_from_slice(b"\n\n"),
        Err(_) => output.truncate(before),
    }
}

/// Parses a stream in pieces of any size. Unknown messages are skipped.
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
    fn a_stream_is_parsed_in_pieces_of_any_size() {
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
        let mut output = b": a comment\n\n".to_vec();
        for message in &messages {
            match message {
                Message::Missed(count) => write_missed(*count, &mut output),
                Message::Event(entry) => write_event(entry, &mut output),
                Message::Counters(counters) => write_counters(counters, &mut output),
            }
        }
        let text = String::from_utf8(output.clone()).unwrap();
        assert!(text.contains("\n\nid: 3\ndata: {\"seq\":3,"), "{text}");
        for size in 1..output.len() {
            let mut reader = Reader::default();
            let pieces = output.chunks(size);
            let read: Vec<Message> = pieces.flat_map(|piece| reader.push(piece)).collect();
            assert_eq!(read, messages, "in pieces of {size}");
        }
    }
}
