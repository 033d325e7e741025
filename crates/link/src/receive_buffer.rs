//! The receive buffer: bytes that were received and that the user has not read yet.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

/// Parts smaller than this are merged while other parts are unread. Otherwise a peer that sends single bytes would make each
/// of them cost a hundred bytes, and the limit of the buffer would not bound its memory.
const SMALL: usize = 16 * 1024;
const MERGED_SIZE: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(crate) struct ReceiveBuffer {
    parts: VecDeque<Bytes>,
    /// Merged small parts. They follow all of `parts`.
    merged: BytesMut,
    length: usize,
}

impl ReceiveBuffer {
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn push(&mut self, bytes: Bytes) {
        self.length += bytes.len();
        let may_merge = !self.parts.is_empty() || !self.merged.is_empty();
        if bytes.len() < SMALL && may_merge {
            self.merged.extend_from_slice(&bytes);
            if self.merged.len() >= MERGED_SIZE {
                self.finish_merging();
            }
            return;
        }
        self.finish_merging();
        self.parts.push_back(bytes);
    }

    /// Reads at most `room` bytes, in pieces, and returns how many.
    pub(crate) fn read(&mut self, mut add: impl FnMut(&[u8]), mut room: usize) -> usize {
        let mut count = 0;
        if self.parts.is_empty() {
            self.finish_merging();
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
                self.finish_merging();
            }
        }
        self.length -= count;
        count
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn finish_merging(&mut self) {
        if !self.merged.is_empty() {
            self.parts.push_back(self.merged.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_all_sizes_are_read_in_order() {
        let mut receive_buffer = ReceiveBuffer::default();
        let (mut expected, mut read) = (Vec::new(), Vec::new());
        let sizes = [5000, 1, 1, 1023, 1024, 3, 20_000, 7];
        for round in 0..200_u32 {
            for size in sizes {
                let part = vec![(round % 256) as u8; size];
                expected.extend_from_slice(&part);
                receive_buffer.push(part.into());
            }
            receive_buffer.read(|bytes| read.extend_from_slice(bytes), 26_000);
        }
        while receive_buffer.read(|bytes| read.extend_from_slice(bytes), 9) > 0 {}
        assert_eq!(read, expected);
        assert_eq!(receive_buffer.length(), 0);
    }

    #[test]
    fn single_bytes_do_not_cost_a_part_each() {
        let mut receive_buffer = ReceiveBuffer::default();
        for _ in 0..100_000 {
            receive_buffer.push(Bytes::from_static(b"x"));
        }
        assert!(
            receive_buffer.parts.len() <= 2 + 100_000 / MERGED_SIZE,
            "{}",
            receive_buffer.parts.len()
        );
    }
}
