//! Reading: what came with the open, what was read ahead, and what must be asked for.
//!
//! The kernel reads ahead by 128 KiB, too little for a network. Whoever reads from front to back gets more: blocks are
//! asked for before the kernel does, several at a time, at first few and then as many as cover a long round trip. What
//! is read ahead is bounded for one reader and for all of them together.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use interceptor::Errno;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::handle::Handle;
use super::nodes::FRESH;
use crate::files::calls::Calls;

/// One block is one question, and fits into one window of a stream.
const BLOCK: u64 = 256 * 1024;
/// The most blocks ahead of one reader: 4 MiB cover 5 ms at 800 MB/s.
const AHEAD: u64 = 16;
/// The most blocks ahead of all readers.
const ALL_AHEAD: usize = 128;
/// Blocks that are kept behind a reader: the kernel has two requests of 1 MiB on their way, which may overtake each other.
const BEHIND: u64 = 4;
/// So far from where it is expected may a read be, and still be in order.
const SLACK: u64 = 2 * 1024 * 1024;

static BLOCKS: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug, Default)]
pub(super) struct Reading(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    first: Option<First>,
    /// Where a reader from front to back would go on.
    next: u64,
    /// Reads in order, one after the other.
    streak: u32,
    blocks: BTreeMap<u64, Block>,
}

/// What came with the open.
#[derive(Debug)]
struct First {
    bytes: Bytes,
    /// There is no more.
    whole: bool,
    since: Instant,
}

/// In the parts in which it came: bytes are not copied on their way to the kernel.
type Parts = Result<Vec<Bytes>, Errno>;

/// What was read, and when it came.
type Fetched = Option<(Parts, Instant)>;

/// A block that was or is being read ahead.
#[derive(Debug)]
struct Block {
    bytes: watch::Receiver<Fetched>,
    task: AbortHandle,
}

impl Drop for Block {
    fn drop(&mut self) {
        self.task.abort();
        BLOCKS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where the bytes of a read come from.
enum Source {
    Blocks(Vec<(u64, watch::Receiver<Fetched>)>),
    Ask,
}

impl Reading {
    pub(super) fn new(bytes: Bytes, whole: bool) -> Self {
        let first = First {
            bytes,
            whole,
            since: Instant::now(),
        };
        Self(Mutex::new(State {
            first: Some(first),
            ..State::default()
        }))
    }

    /// What came with the open, if that is all of the range.
    pub(super) fn at_hand(&self, offset: u64, size: u32) -> Option<Bytes> {
        let mut state = self.state();
        let first = state.first.as_ref()?;
        if first.since.elapsed() > FRESH {
            state.first = None;
            return None;
        }
        let length = first.bytes.len();
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(size as usize)?;
        if end > length && !first.whole {
            return None;
        }
        let bytes = first.bytes.slice(start.min(length)..end.min(length));
        state.note(offset, size);
        Some(bytes)
    }

    /// What was read so far is not good any more.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        state.first = None;
        state.blocks.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a range, in parts. `size` is the file's, as far as it is known.
pub(super) async fn read(
    calls: &Calls,
    handle: &Arc<Handle>,
    (offset, length): (u64, u32),
    size: u64,
) -> Result<Vec<Bytes>, Errno> {
    let source = {
        let mut state = handle.reading.state();
        state.note(offset, length);
        state.read_ahead(calls, handle, offset, size);
        state.source(offset, length)
    };
    if let Source::Blocks(blocks) = source
        && let Some(parts) = from_blocks(blocks, offset, length).await?
    {
        return Ok(parts);
    }
    calls
        .read(handle.remote.number, offset, length.into())
        .await
}

impl State {
    fn note(&mut self, offset: u64, size: u32) {
        let in_order = offset <= self.next + SLACK && offset + SLACK >= self.next;
        if in_order {
            self.streak = self.streak.saturating_add(1);
        } else {
            self.streak = 0;
            self.blocks.clear();
        }
        let end = offset.saturating_add(size.into());
        self.next = if in_order { self.next.max(end) } else { end };
    }

    /// Keeps blocks on their way, the more the longer somebody reads in order.
    fn read_ahead(&mut self, calls: &Calls, handle: &Arc<Handle>, offset: u64, size: u64) {
        let current = offset / BLOCK;
        let kept = current.saturating_sub(BEHIND);
        self.blocks
            .retain(|index, block| *index >= kept && !block.is_stale());
        if self.streak < 2 {
            return;
        }
        let ahead = AHEAD.min(1 << self.streak.min(8).saturating_sub(1));
        for index in current..=current + ahead {
            let is_inside = index * BLOCK < size;
            let begins_here = index > current || offset.is_multiple_of(BLOCK);
            if !is_inside
                || !begins_here
                || self.blocks.contains_key(&index)
                || BLOCKS.load(Ordering::Relaxed) >= ALL_AHEAD
            {
                continue;
            }
            self.blocks
                .insert(index, fetch(calls, handle.remote.number, index));
        }
    }

    fn source(&self, offset: u64, length: u32) -> Source {
        let last = offset.saturating_add(length.into()).saturating_sub(1) / BLOCK;
        let blocks = (offset / BLOCK..=last).map(|index| {
            let block = self.blocks.get(&index)?;
            Some((index, block.bytes.clone()))
        });
        blocks
            .collect::<Option<_>>()
            .map_or(Source::Ask, Source::Blocks)
    }
}

impl Block {
    fn new(
        read: impl Future<Output = Parts> + Send + 'static,
        start: impl FnOnce(Pin<Box<dyn Future<Output = ()> + Send>>) -> AbortHandle,
    ) -> Self {
        BLOCKS.fetch_add(1, Ordering::Relaxed);
        let (bytes_to_readers, bytes) = watch::channel(None);
        let task = start(Box::pin(async move {
            let parts = read.await;
            let _ = bytes_to_readers.send(Some((parts, Instant::now())));
        }));
        Self { bytes, task }
    }

    /// Counted from when it came: over a slow link all blocks take long, and whoever dropped them then would read them
    /// for ever.
    fn is_stale(&self) -> bool {
        let fetched = self.bytes.borrow();
        fetched
            .as_ref()
            .is_some_and(|(_, came)| came.elapsed() > FRESH)
    }
}

fn fetch(calls: &Calls, handle: u64, index: u64) -> Block {
    let asking = calls.clone();
    let read = async move { asking.read(handle, index * BLOCK, BLOCK).await };
    Block::new(read, |task| calls.start(task))
}

/// The range out of blocks; `None` if one of them was given up.
async fn from_blocks(
    blocks: Vec<(u64, watch::Receiver<Fetched>)>,
    offset: u64,
    length: u32,
) -> Result<Option<Vec<Bytes>>, Errno> {
    let end = offset + u64::from(length);
    let mut parts = Vec::with_capacity(blocks.len());
    for (index, mut block) in blocks {
        let fetched = match block.wait_for(Option::is_some).await {
            Ok(fetched) => fetched.clone(),
            Err(_) => None,
        };
        let Some((bytes, _)) = fetched else {
            return Ok(None);
        };
        let mut start = index * BLOCK;
        for part in bytes? {
            let length = part.len();
            let place = |at: u64| usize::try_from(at.saturating_sub(start)).unwrap_or(usize::MAX);
            let inside = place(offset).min(length)..place(end).min(length);
            if !inside.is_empty() {
                parts.push(part.slice(inside));
            }
            start += length as u64;
        }
        if start < (index + 1) * BLOCK {
            break;
        }
    }
    Ok(Some(parts))
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_block_that_took_long_is_good_when_it_comes_and_not_for_ever() {
        let read = async {
            sleep(FRESH * 3).await;
            Ok(vec![Bytes::from_static(b"x")])
        };
        let block = Block::new(read, |task| tokio::spawn(task).abort_handle());
        assert!(!block.is_stale());
        let mut bytes = block.bytes.clone();
        bytes.wait_for(Option::is_some).await.unwrap();
        assert!(!block.is_stale());
        advance(FRESH * 2).await;
        assert!(block.is_stale());
    }
}
