//! The bytes that have arrived and that the user has not read yet.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

/// Parts smaller than this are copied together while others wait. Otherwise a peer that sends single bytes would make each cost a
/// hundred, and the bound on what is kept here would not bound memory.
const SMALL: usize = 16 * 1024;
const GATHER: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    parts: VecDeque<Bytes>,
    /// The small parts that came last, after all of `parts`.
    gathered: BytesMut,
    length: usize,
}

impl Inbox {
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn push(&mut self, bytes: Bytes) {
        self.length += bytes.len();
        let gathering = !self.parts.is_empty() || !self.gathered.is_empty();
        if bytes.len() < SMALL && gathering {
            self.gathered.extend_from_slice(&bytes);
            if self.gathered.len() >= GATHER {
                self.end_gathering();
            }
            return;
        }
        self.end_gathering();
        self.parts.push_back(bytes);
    }

    /// Hands out at most `room` bytes, in pieces, and says how many.
    pub(crate) fn read(&mut self, mut add: impl FnMut(&[u8]), mut room: usize) -> usize {
        let mut count = 0;
        if self.parts.is_empty() {
            self.end_gathering();
        }
        while let Some(part) = self.parts.front_mut() {
            let length = part.len().min(room);
            add(&part[..length]);
            (count, room) = (count + length, room - length);
            if length < part.len() {
                part.advance(length);
                break;
            }
            self.parts.pop_front();
            if self.parts.is_empty() {
                self.end_gathering();
            }
        }
        self.length -= count;
        count
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn end_gathering(&mut self) {
        if !self.gathered.is_empty() {
            self.parts.push_back(self.gathered.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_all_sizes_come_out_in_order_and_small_ones_are_gathered() {
        let mut inbox = Inbox::default();
        let (mut expected, mut read) = (Vec::new(), Vec::new());
        let sizes = [5000, 1, 1, 1023, 1024, 3, 20_000, 7];
        for round in 0..200_u32 {
            for size in sizes {
                let part = vec![(round % 256) as u8; size];
                expected.extend_from_slice(&part);
                inbox.push(part.into());
            }
            inbox.read(|bytes| read.extend_from_slice(bytes), 26_000);
        }
        while inbox.read(|bytes| read.extend_from_slice(bytes), 9) > 0 {}
        assert_eq!(read, expected);
        assert_eq!(inbox.length(), 0);
    }

    #[test]
    fn single_bytes_do_not_cost_a_part_each() {
        let mut inbox = Inbox::default();
        for _ in 0..100_000 {
            inbox.push(Bytes::from_static(b"x"));
        }
        assert!(
            inbox.parts.len() <= 2 + 100_000 / GATHER,
            "{}",
            inbox.parts.len()
        );
    }
}
