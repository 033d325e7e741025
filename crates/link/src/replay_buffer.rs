//! The replay buffer: bytes that the user has written, kept until the peer acknowledges them.
//!
//! They are stored in blocks of one size, so that the block of an offset is found by arithmetic, nothing is ever moved, and
//! blocks are reused. The block that was freed last is reused first, because it is most likely still in the CPU cache.

use std::collections::VecDeque;
use std::io::IoSlice;

const BLOCK: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct ReplayBuffer {
    capacity: usize,
    /// The offset of the first byte of the first block.
    base: u64,
    /// The offset of the first byte that is not acknowledged.
    start: u64,
    /// The offset of the next byte.
    end: u64,
    /// All but the last are full.
    blocks: VecDeque<Vec<u8>>,
    /// Free blocks for reuse, until [`ReplayBuffer::shrink`].
    spare: Vec<Vec<u8>>,
}

impl ReplayBuffer {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            base: 0,
            start: 0,
            end: 0,
            blocks: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// The offset of the next byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// How many bytes are buffered.
    pub(crate) fn length(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// How many more bytes may be written.
    pub(crate) fn room(&self) -> usize {
        self.capacity.saturating_sub(self.length())
    }

    /// Buffers as many of these bytes as there is room for, and returns how many.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.room());
        let mut rest = &bytes[..count];
        while !rest.is_empty() {
            let offset_in_block = (self.end - self.base) as usize % BLOCK;
            if offset_in_block == 0 {
                let block = self.spare.pop();
                self.blocks
                    .push_back(block.unwrap_or_else(|| Vec::with_capacity(BLOCK)));
            }
            let (now, later) = rest.split_at(rest.len().min(BLOCK - offset_in_block));
            if let Some(block) = self.blocks.back_mut() {
                block.extend_from_slice(now);
            }
            self.end += now.len() as u64;
            rest = later;
        }
        count
    }

    /// Releases everything before this offset. Offsets after the end are clamped.
    pub(crate) fn release(&mut self, offset: u64) {
        self.start = self.start.max(offset.min(self.end));
        while self.start - self.base >= BLOCK as u64 {
            self.base += BLOCK as u64;
            self.keep_spare();
        }
        if self.start == self.end && self.start > self.base {
            // The last block is unused as well: the next byte starts a new one.
            self.base = self.start;
            self.keep_spare();
        }
    }

    /// Frees the memory that a burst of bytes has needed.
    pub(crate) fn shrink(&mut self) {
        self.spare.truncate(1);
    }

    fn keep_spare(&mut self) {
        if let Some(mut block) = self.blocks.pop_front() {
            block.clear();
            self.spare.push(block);
        }
    }

    /// Passes `length` bytes from this offset on to `add`, as slices. All of them must be buffered.
    pub(crate) fn slices<'a>(
        &'a self,
        offset: u64,
        length: usize,
        add: &mut impl FnMut(IoSlice<'a>),
    ) {
        let offset = (offset - self.base) as usize;
        let mut offset_in_block = offset % BLOCK;
        let mut rest = length;
        for block in self.blocks.iter().skip(offset / BLOCK) {
            if rest == 0 {
                break;
            }
            let count = rest.min(BLOCK - offset_in_block);
            add(IoSlice::new(
                &block[offset_in_block..offset_in_block + count],
            ));
            rest -= count;
            offset_in_block = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(replay_buffer: &ReplayBuffer, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        replay_buffer.slices(offset, length, &mut |slice| {
            bytes.extend_from_slice(&slice);
        });
        bytes
    }

    fn byte(offset: usize) -> u8 {
        (offset % 251) as u8
    }

    #[test]
    fn bytes_stay_until_they_are_released() {
        let mut replay_buffer = ReplayBuffer::new(3 * BLOCK);
        let all: Vec<u8> = (0..10 * BLOCK).map(byte).collect();
        let mut released = 0;
        while released < all.len() {
            let end = replay_buffer.end() as usize;
            let step = (end % 7919) + 1;
            replay_buffer.push(&all[end..all.len().min(end + step)]);
            assert!(replay_buffer.length() <= 3 * BLOCK);
            assert!(replay_buffer.blocks.len() <= 5);
            let length = replay_buffer.length();
            assert_eq!(
                read(&replay_buffer, released as u64, length),
                all[released..released + length]
            );
            if replay_buffer.room() == 0 || replay_buffer.end() as usize == all.len() {
                released += length.min(step * 5);
                replay_buffer.release(released as u64);
            }
        }
        assert_eq!(replay_buffer.length(), 0);
    }

    #[test]
    fn an_empty_buffer_has_one_spare_block_and_no_other() {
        let mut replay_buffer = ReplayBuffer::new(BLOCK);
        for round in 1..100_u64 {
            assert_eq!(replay_buffer.push(b"twelve bytes"), 12);
            replay_buffer.release(round * 12);
        }
        assert_eq!(
            (replay_buffer.blocks.len(), replay_buffer.spare.len()),
            (0, 1)
        );
    }

    #[test]
    fn shrinking_frees_memory() {
        let mut replay_buffer = ReplayBuffer::new(100 * BLOCK);
        replay_buffer.push(&vec![1; 50 * BLOCK]);
        replay_buffer.release(49 * BLOCK as u64);
        assert_eq!(
            (replay_buffer.blocks.len(), replay_buffer.spare.len()),
            (1, 49)
        );
        replay_buffer.shrink();
        assert_eq!(
            (replay_buffer.blocks.len(), replay_buffer.spare.len()),
            (1, 1)
        );
    }

    #[test]
    fn bytes_beyond_the_capacity_are_not_buffered() {
        let mut replay_buffer = ReplayBuffer::new(5);
        assert_eq!(replay_buffer.push(b"seven.."), 5);
        assert_eq!(replay_buffer.push(b"x"), 0);
        replay_buffer.release(2);
        assert_eq!(replay_buffer.push(b"xyz"), 2);
        assert_eq!(
            read(&replay_buffer, 2, 5),
            b"ven".iter().chain(b"xy").copied().collect::<Vec<_>>()
        );
    }
}
