//! The bytes that are on their way: written by the user, and kept until the peer has acknowledged them.
//!
//! They lie in blocks of one size, so that the block of a number is found by arithmetic, nothing is ever moved, and
//! blocks are used again. The block freed last is used first: it is the one that the processor still has in its cache.

use std::collections::VecDeque;
use std::io::IoSlice;

const BLOCK: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Outbox {
    capacity: usize,
    /// The number of the first byte of the first block.
    base: u64,
    /// The number of the first byte that is still needed.
    start: u64,
    /// The number that the next byte will get.
    end: u64,
    /// All but the last are full.
    blocks: VecDeque<Vec<u8>>,
    /// Freed blocks for the next bytes, until [`Outbox::shrink`].
    spare: Vec<Vec<u8>>,
}

impl Outbox {
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

    /// The number that the next byte will get.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// How many bytes are kept.
    pub(crate) fn length(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// How many more bytes may be written.
    pub(crate) fn room(&self) -> usize {
        self.capacity.saturating_sub(self.length())
    }

    /// Keeps as many of these bytes as there is room for, and says how many.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.room());
        let mut rest = &bytes[..count];
        while !rest.is_empty() {
            let within = (self.end - self.base) as usize % BLOCK;
            if within == 0 {
                let block = self.spare.pop();
                self.blocks
                    .push_back(block.unwrap_or_else(|| Vec::with_capacity(BLOCK)));
            }
            let (now, later) = rest.split_at(rest.len().min(BLOCK - within));
            if let Some(block) = self.blocks.back_mut() {
                block.extend_from_slice(now);
            }
            self.end += now.len() as u64;
            rest = later;
        }
        count
    }

    /// Forgets everything before this number, which must not be after the end.
    pub(crate) fn release(&mut self, number: u64) {
        self.start = self.start.max(number.min(self.end));
        while self.start - self.base >= BLOCK as u64 {
            self.base += BLOCK as u64;
            self.keep_spare();
        }
        if self.start == self.end && self.start > self.base {
            // Nothing is left of the last block either: start at its beginning again.
            self.base = self.start;
            self.keep_spare();
        }
    }

    /// Gives memory back that a burst of bytes has needed.
    pub(crate) fn shrink(&mut self) {
        self.spare.truncate(1);
    }

    fn keep_spare(&mut self) {
        if let Some(mut block) = self.blocks.pop_front() {
            block.clear();
            self.spare.push(block);
        }
    }

    /// Adds the bytes from this number on, `length` of them, as slices to what is written next. All must be kept here.
    pub(crate) fn slices<'a>(
        &'a self,
        number: u64,
        length: usize,
        add: &mut impl FnMut(IoSlice<'a>),
    ) {
        let offset = (number - self.base) as usize;
        let mut within = offset % BLOCK;
        let mut rest = length;
        for block in self.blocks.iter().skip(offset / BLOCK) {
            if rest == 0 {
                break;
            }
            let count = rest.min(BLOCK - within);
            add(IoSlice::new(&block[within..within + count]));
            rest -= count;
            within = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(outbox: &Outbox, number: u64, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        outbox.slices(number, length, &mut |slice| {
            bytes.extend_from_slice(&slice);
        });
        bytes
    }

    fn byte(number: usize) -> u8 {
        (number % 251) as u8
    }

    #[test]
    fn bytes_stay_until_they_are_released() {
        let mut outbox = Outbox::new(3 * BLOCK);
        let all: Vec<u8> = (0..10 * BLOCK).map(byte).collect();
        let mut released = 0;
        while released < all.len() {
            let end = outbox.end() as usize;
            let step = (end % 7919) + 1;
            outbox.push(&all[end..all.len().min(end + step)]);
            assert!(outbox.length() <= 3 * BLOCK);
            assert!(outbox.blocks.len() <= 5);
            let length = outbox.length();
            assert_eq!(
                read(&outbox, released as u64, length),
                all[released..released + length]
            );
            if outbox.room() == 0 || outbox.end() as usize == all.len() {
                released += length.min(step * 5);
                outbox.release(released as u64);
            }
        }
        assert_eq!(outbox.length(), 0);
    }

    #[test]
    fn an_empty_box_holds_one_spare_block_and_no_other() {
        let mut outbox = Outbox::new(BLOCK);
        for round in 1..100_u64 {
            assert_eq!(outbox.push(b"twelve bytes"), 12);
            outbox.release(round * 12);
        }
        assert_eq!((outbox.blocks.len(), outbox.spare.len()), (0, 1));
    }

    #[test]
    fn memory_is_given_back() {
        let mut outbox = Outbox::new(100 * BLOCK);
        outbox.push(&vec![1; 50 * BLOCK]);
        outbox.release(49 * BLOCK as u64);
        assert_eq!((outbox.blocks.len(), outbox.spare.len()), (1, 49));
        outbox.shrink();
        assert_eq!((outbox.blocks.len(), outbox.spare.len()), (1, 1));
    }

    #[test]
    fn what_does_not_fit_is_not_taken() {
        let mut outbox = Outbox::new(5);
        assert_eq!(outbox.push(b"seven.."), 5);
        assert_eq!(outbox.push(b"x"), 0);
        outbox.release(2);
        assert_eq!(outbox.push(b"xyz"), 2);
        assert_eq!(
            read(&outbox, 2, 5),
            b"ven".iter().chain(b"xy").copied().collect::<Vec<_>>()
        );
    }
}
