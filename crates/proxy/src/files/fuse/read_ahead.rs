//! Reads: from the bytes that were prefetched with the open, from blocks that were read ahead, or from the target.
//!
//! The kernel reads ahead by 128 KiB, too little for a network. For sequential reads, blocks are requested before the
//! kernel needs them, several at a time: a few at first, and then as many as cover a long round trip. The number of
//! blocks is limited for each reader and in total.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use interceptor::Errno;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::handle::Handle;
use super::nodes::CACHE_TTL;
use crate::files::calls::FileCalls;

/// The size of a block. A block is one request, and fits into the window of an HTTP/2 stream.
const BLOCK_BYTES: u64 = 256 * 1024;
/// The maximum number of blocks ahead of one reader: 4 MiB cover 5 ms at 800 MB/s.
const MAX_BLOCKS_AHEAD: u64 = 16;
/// The maximum number of blocks of all readers.
const MAX_TOTAL_BLOCKS: usize = 128;
/// The number of blocks that are kept behind a reader: the kernel sends up to two requests of 1 MiB at a time, which may be
/// handled out of order.
const BLOCKS_BEHIND: u64 = 4;
/// How far a read may be from the expected offset and still count as sequential.
const REORDER_BYTES: u64 = 2 * 1024 * 1024;

static BLOCK_COUNT: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug, Default)]
pub(super) struct ReadAhead(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    prefetched: Option<PrefetchedBytes>,
    /// The expected offset of the next sequential read.
    next: u64,
    /// The number of consecutive sequential reads.
    sequential_reads: u32,
    blocks: BTreeMap<u64, Block>,
}

/// The bytes that the agent sent with the response to `open`.
#[derive(Debug)]
struct PrefetchedBytes {
    bytes: Bytes,
    /// These bytes are the whole file.
    whole: bool,
    received_at: Instant,
}

/// The chunks in which the bytes were received: they are passed to the kernel without a copy.
type ReadResult = Result<Vec<Bytes>, Errno>;

/// The result of a read, and when it was received.
type Fetched = Option<(ReadResult, Instant)>;

/// A block that is being read ahead, or was.
#[derive(Debug)]
struct Block {
    bytes: watch::Receiver<Fetched>,
    task: AbortHandle,
}

impl Drop for Block {
    fn drop(&mut self) {
        self.task.abort();
        BLOCK_COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where the bytes of a read come from.
enum ReadSource {
    Blocks(Vec<(u64, watch::Receiver<Fetched>)>),
    Target,
}

impl ReadAhead {
    pub(super) fn new(bytes: Bytes, whole: bool) -> Self {
        let prefetched = PrefetchedBytes {
            bytes,
            whole,
            received_at: Instant::now(),
        };
        Self(Mutex::new(State {
            prefetched: Some(prefetched),
            ..State::default()
        }))
    }

    /// The range, if it is within the prefetched bytes.
    pub(super) fn prefetched(&self, offset: u64, size: u32) -> Option<Bytes> {
        let mut state = self.0.lock();
        let prefetched = state.prefetched.as_ref()?;
        if prefetched.received_at.elapsed() > CACHE_TTL {
            state.prefetched = None;
            return None;
        }
        let length = prefetched.bytes.len();
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(size as usize)?;
        if end > length && !prefetched.whole {
            return None;
        }
        let bytes = prefetched.bytes.slice(start.min(length)..end.min(length));
        state.record_read(offset, size);
        Some(bytes)
    }

    /// Discards everything that was prefetched or read ahead.
    pub(super) fn clear(&self) {
        let mut state = self.0.lock();
        state.prefetched = None;
        state.blocks.clear();
    }
}

/// Reads a range. `size` is the cached size of the file.
pub(super) async fn read(
    calls: &FileCalls,
    handle: &Arc<Handle>,
    (offset, length): (u64, u32),
    size: u64,
) -> Result<Vec<Bytes>, Errno> {
    let source = {
        let mut state = handle.read_ahead.0.lock();
        state.record_read(offset, length);
        state.read_ahead(calls, handle, offset, size);
        state.source(offset, length)
    };
    if let ReadSource::Blocks(blocks) = source
        && let Some(chunks) = from_blocks(blocks, offset, length).await?
    {
        return Ok(chunks);
    }
    calls
        .read(handle.remote.number, offset, length.into())
        .await
}

impl State {
    fn record_read(&mut self, offset: u64, size: u32) {
        let is_sequential =
            offset <= self.next + REORDER_BYTES && offset + REORDER_BYTES >= self.next;
        if is_sequential {
            self.sequential_reads = self.sequential_reads.saturating_add(1);
        } else {
            self.sequential_reads = 0;
            self.blocks.clear();
        }
        let end = offset.saturating_add(size.into());
        self.next = if is_sequential {
            self.next.max(end)
        } else {
            end
        };
    }

    /// Requests blocks in advance; the longer the reads are sequential, the more.
    fn read_ahead(&mut self, calls: &FileCalls, handle: &Arc<Handle>, offset: u64, size: u64) {
        let current = offset / BLOCK_BYTES;
        let first_kept = current.saturating_sub(BLOCKS_BEHIND);
        self.blocks
            .retain(|index, block| *index >= first_kept && !block.is_stale());
        if self.sequential_reads < 2 {
            return;
        }
        let ahead = MAX_BLOCKS_AHEAD.min(1 << self.sequential_reads.min(8).saturating_sub(1));
        for index in current..=current + ahead {
            let is_inside = index * BLOCK_BYTES < size;
            let begins_here = index > current || offset.is_multiple_of(BLOCK_BYTES);
            if !is_inside
                || !begins_here
                || self.blocks.contains_key(&index)
                || BLOCK_COUNT.load(Ordering::Relaxed) >= MAX_TOTAL_BLOCKS
            {
                continue;
            }
            self.blocks
                .insert(index, fetch_block(calls, handle.remote.number, index));
        }
    }

    fn source(&self, offset: u64, length: u32) -> ReadSource {
        let last = offset.saturating_add(length.into()).saturating_sub(1) / BLOCK_BYTES;
        let blocks = (offset / BLOCK_BYTES..=last).map(|index| {
            let block = self.blocks.get(&index)?;
            Some((index, block.bytes.clone()))
        });
        blocks
            .collect::<Option<_>>()
            .map_or(ReadSource::Target, ReadSource::Blocks)
    }
}

impl Block {
    fn new(
        read: impl Future<Output = ReadResult> + Send + 'static,
        start: impl FnOnce(Pin<Box<dyn Future<Output = ()> + Send>>) -> AbortHandle,
    ) -> Self {
        BLOCK_COUNT.fetch_add(1, Ordering::Relaxed);
        let (bytes_to_readers, bytes) = watch::channel(None);
        let task = start(Box::pin(async move {
            let chunks = read.await;
            let _ = bytes_to_readers.send(Some((chunks, Instant::now())));
        }));
        Self { bytes, task }
    }

    /// The age counts from when the block was received. Over a slow link all blocks take long: if the age counted from the
    /// request, every block would be dropped and requested again.
    fn is_stale(&self) -> bool {
        let fetched = self.bytes.borrow();
        fetched
            .as_ref()
            .is_some_and(|(_, received_at)| received_at.elapsed() > CACHE_TTL)
    }
}

fn fetch_block(calls: &FileCalls, handle: u64, index: u64) -> Block {
    let task_calls = calls.clone();
    let read = async move {
        task_calls
            .read(handle, index * BLOCK_BYTES, BLOCK_BYTES)
            .await
    };
    Block::new(read, |task| calls.spawn_abortable(task))
}

/// The range out of blocks; `None` if one of them was dropped.
async fn from_blocks(
    blocks: Vec<(u64, watch::Receiver<Fetched>)>,
    offset: u64,
    length: u32,
) -> Result<Option<Vec<Bytes>>, Errno> {
    let end = offset + u64::from(length);
    let mut chunks = Vec::with_capacity(blocks.len());
    for (index, mut block) in blocks {
        let fetched = match block.wait_for(Option::is_some).await {
            Ok(fetched) => fetched.clone(),
            Err(_) => None,
        };
        let Some((bytes, _)) = fetched else {
            return Ok(None);
        };
        let mut start = index * BLOCK_BYTES;
        for chunk in bytes? {
            let length = chunk.len();
            let index = |at: u64| usize::try_from(at.saturating_sub(start)).unwrap_or(usize::MAX);
            let inside = index(offset).min(length)..index(end).min(length);
            if !inside.is_empty() {
                chunks.push(chunk.slice(inside));
            }
            start += length as u64;
        }
        if start < (index + 1) * BLOCK_BYTES {
            break;
        }
    }
    Ok(Some(chunks))
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_block_expires_after_it_was_received() {
        let read = async {
            sleep(CACHE_TTL * 3).await;
            Ok(vec![Bytes::from_static(b"x")])
        };
        let block = Block::new(read, |task| tokio::spawn(task).abort_handle());
        assert!(!block.is_stale());
        let mut bytes = block.bytes.clone();
        bytes.wait_for(Option::is_some).await.unwrap();
        assert!(!block.is_stale());
        advance(CACHE_TTL * 2).await;
        assert!(block.is_stale());
    }
}
