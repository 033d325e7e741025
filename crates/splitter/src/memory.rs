//! The memory that an agent may use for bytes which it has received and not forwarded yet.
//!
//! The agent is in the target's pod, so the memory that it uses is memory that the application lacks. Everything that buffers
//! bytes of clients or of sessions therefore belongs to a [`Holder`], such as a client's connection, and charges one
//! [`Memory`] for it. What limits a single holder is backpressure: windows and buffer sizes. The budget limits all of them:
//!
//! - What can be refused, such as a new stream, is refused when its holder already has a large part of what is free.
//! - What cannot be refused, because the bytes are here already, is always charged. If it exceeds the budget, the holder of
//!   the most memory is evicted. A well-behaved client holds little, so it is served while others are evicted.

mod in_flight;
mod measured_reader;

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

pub use self::in_flight::{InFlight, MeasuredStream};
pub use self::measured_reader::MeasuredReader;

/// The default budget of an agent.
pub const DEFAULT_MEMORY: usize = 64 * 1024 * 1024;
/// A holder of less than this is never refused anything.
const SMALL: usize = 128 * 1024;
/// How much is read at once.
const MAX_READ: usize = 64 * 1024;
const MIN_READ: usize = 4 * 1024;

/// A budget of bytes. Cheap to clone; all clones are the same budget.
#[derive(Clone)]
pub struct Memory(Arc<Budget>);

struct Budget {
    limit: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
    /// What mirrors use of it.
    mirrors: AtomicUsize,
    holders: Mutex<HolderTable>,
}

#[derive(Default)]
struct HolderTable {
    last_id: u64,
    holders: HashMap<u64, Weak<HolderState>>,
}

/// One owner of buffers: a client's connection, or a stream of a session. Cheap to clone; all clones are the same holder.
#[derive(Clone)]
pub struct Holder(Arc<HolderState>);

struct HolderState {
    id: u64,
    memory: Memory,
    used: AtomicUsize,
    is_evicted: AtomicBool,
    evicted: Notify,
}

tokio::task_local! {
    static CLIENT: Holder;
}

/// Bytes that are charged until this is dropped.
pub struct Charge {
    holder: Holder,
    bytes: usize,
}

impl Memory {
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Budget {
            limit,
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            mirrors: AtomicUsize::new(0),
            holders: Mutex::default(),
        }))
    }

    #[must_use]
    pub fn of_mebibytes(limit: usize) -> Self {
        Self::new(limit.saturating_mul(1 << 20))
    }

    /// The bytes that are charged now.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// The most bytes that were ever charged at the same time.
    #[must_use]
    pub fn peak(&self) -> usize {
        self.0.peak.load(Ordering::Relaxed)
    }

    /// The bytes that can be charged before anything is evicted.
    #[must_use]
    pub fn free(&self) -> usize {
        self.0.limit.saturating_sub(self.used())
    }

    /// Charges bytes of mirrors, which together get at most a quarter: a mirror may be dropped at any time. They have no
    /// holder, so they are never evicted.
    pub(crate) fn reserve_for_mirror(&self, bytes: usize) -> bool {
        let mirrors = &self.0.mirrors;
        let fits = mirrors.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.0.limit / 4;
        if fits {
            self.add(bytes);
        } else {
            mirrors.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    pub(crate) fn release_from_mirror(&self, bytes: usize) {
        self.0.mirrors.fetch_sub(bytes, Ordering::Relaxed);
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// How much to read at once: less when little memory is free, because what is read may have to wait.
    #[must_use]
    pub fn read_size(&self) -> usize {
        (self.free() / 128).clamp(MIN_READ, MAX_READ)
    }

    /// Whether more is charged than the budget, because those that are evicted have not released theirs yet.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.used() > self.0.limit
    }

    /// A new holder, with nothing charged.
    #[must_use]
    pub fn holder(&self) -> Holder {
        let mut table = self.0.holders.lock();
        table.last_id += 1;
        let state = Arc::new(HolderState {
            id: table.last_id,
            memory: self.clone(),
            used: AtomicUsize::new(0),
            is_evicted: AtomicBool::new(false),
            evicted: Notify::new(),
        });
        table.holders.insert(state.id, Arc::downgrade(&state));
        Holder(state)
    }

    fn add(&self, bytes: usize) {
        let used = self.0.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.0.peak.fetch_max(used, Ordering::Relaxed);
    }

    /// Evicts the largest holders until the rest fits. Memory of holders that are evicted already counts as free: their tasks
    /// are ending.
    fn enforce(&self) {
        if self.used() <= self.0.limit {
            return;
        }
        // Dropping the last reference to a holder locks the table, so it must happen after this.
        let holders: Vec<_> = {
            let table = self.0.holders.lock();
            table.holders.values().filter_map(Weak::upgrade).collect()
        };
        let mut remaining: Vec<_> = holders
            .iter()
            .filter(|holder| !holder.is_evicted.load(Ordering::Relaxed))
            .map(|holder| (holder.used.load(Ordering::Relaxed), holder))
            .collect();
        let ending = holders
            .iter()
            .filter(|holder| holder.is_evicted.load(Ordering::Relaxed));
        let ending: usize = ending
            .map(|holder| holder.used.load(Ordering::Relaxed))
            .sum();
        let mut used = self.used().saturating_sub(ending);
        remaining.sort_by_key(|(used, _)| *used);
        while used > self.0.limit {
            let Some((largest, holder)) = remaining.pop() else {
                return;
            };
            used -= largest;
            tracing::debug!(bytes = largest, "buffers evicted");
            holder.is_evicted.store(true, Ordering::Relaxed);
            holder.evicted.notify_waiters();
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(DEFAULT_MEMORY)
    }
}

impl Holder {
    /// Charges bytes that are in memory already.
    #[must_use]
    pub fn charge(&self, bytes: usize) -> Charge {
        self.add(bytes);
        Charge {
            holder: self.clone(),
            bytes,
        }
    }

    /// Charges bytes that can be refused. A large holder gets at most half of what is free, so that several of them leave
    /// something for small ones.
    #[must_use]
    pub fn try_charge(&self, bytes: usize) -> Option<Charge> {
        self.may_charge(bytes).then(|| self.charge(bytes))
    }

    /// Charges data until it and all clones have been dropped, such as when the library has written it to a socket.
    #[must_use]
    pub fn keep(&self, data: Bytes) -> Bytes {
        struct Kept {
            data: Bytes,
            _charge: Charge,
        }
        impl AsRef<[u8]> for Kept {
            fn as_ref(&self) -> &[u8] {
                &self.data
            }
        }
        if data.is_empty() {
            return data;
        }
        Bytes::from_owner(Kept {
            _charge: self.charge(data.len()),
            data,
        })
    }

    /// The holder of the client whose connection the current task serves. `None` in tasks of single streams.
    #[must_use]
    pub fn of_client() -> Option<Self> {
        CLIENT.try_with(Self::clone).ok()
    }

    /// Runs the future that serves a client's connection, until it ends or is evicted. It is borrowed, because a future that is
    /// passed by value takes its size twice.
    pub(crate) async fn serve(self, serving: Pin<&mut impl Future<Output = ()>>) {
        tokio::select! {
            () = CLIENT.scope(self.clone(), serving) => {}
            () = self.evicted() => tracing::debug!("client evicted"),
        }
    }

    fn may_charge(&self, bytes: usize) -> bool {
        let used = self.used().saturating_add(bytes);
        !self.is_evicted() && (used <= SMALL || used <= self.memory().free() / 2)
    }

    /// The bytes that this holder is charged for.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.0.is_evicted.load(Ordering::Relaxed)
    }

    /// Waits until the holder must release everything.
    pub async fn evicted(&self) {
        let notified = self.0.evicted.notified();
        let mut notified = std::pin::pin!(notified);
        // Registered before the flag is read, so that no notification is lost.
        notified.as_mut().enable();
        if !self.is_evicted() {
            notified.await;
        }
    }

    fn add(&self, bytes: usize) {
        if bytes > 0 {
            self.0.used.fetch_add(bytes, Ordering::Relaxed);
            self.memory().add(bytes);
            self.memory().enforce();
        }
    }

    fn release(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
        self.memory().0.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Charge {
    #[must_use]
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Changes what is charged to what is in memory now.
    pub fn resize(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes > before {
            self.holder.add(bytes - before);
        } else if bytes < before {
            self.holder.release(before - bytes);
        }
    }

    /// Charges more, like [`Holder::try_charge`]. Returns whether that was possible.
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        let is_allowed = self.holder.may_charge(bytes);
        if is_allowed {
            self.resize(self.bytes + bytes);
        }
        is_allowed
    }

    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.holder.release(self.bytes);
    }
}

impl Drop for HolderState {
    fn drop(&mut self) {
        self.memory.0.holders.lock().holders.remove(&self.id);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (used, limit) = (self.used(), self.0.limit);
        write!(formatter, "Memory({used} of {limit} bytes)")
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Holder({} bytes)", self.used())
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Charge({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_are_released_when_they_end() {
        let memory = Memory::new(1000);
        let holder = memory.holder();
        let mut first = holder.charge(300);
        let second = holder.charge(200);
        assert_eq!(
            (memory.used(), holder.used(), memory.free()),
            (500, 500, 500)
        );
        first.resize(100);
        assert_eq!((memory.used(), memory.peak()), (300, 500));
        drop((first, second));
        assert_eq!((memory.used(), holder.used(), memory.peak()), (0, 0, 500));
    }

    #[test]
    fn the_largest_holder_is_evicted_first_and_only_as_many_as_needed() {
        let memory = Memory::new(1000);
        let holders: Vec<_> = (0..4).map(|_| memory.holder()).collect();
        let evicted = || -> Vec<bool> { holders.iter().map(Holder::is_evicted).collect() };
        let _charges = [100, 500, 300, 100].map({
            let mut holders = holders.iter();
            move |bytes| holders.next().unwrap().charge(bytes)
        });
        assert_eq!(evicted(), [false; 4]);
        let _more = holders[0].charge(1);
        assert_eq!(evicted(), [false, true, false, false]);
        // Its memory counts as free, although it is still charged.
        let _more = holders[3].charge(450);
        assert_eq!(evicted(), [false, true, false, false]);
        let _more = holders[0].charge(100);
        assert_eq!(evicted(), [false, true, false, true]);
    }

    #[test]
    fn a_large_holder_is_refused_before_memory_is_exhausted() {
        let limit = 16 * SMALL;
        let memory = Memory::new(limit);
        let (large, small) = (memory.holder(), memory.holder());
        let mut charges = Vec::new();
        charges.extend(std::iter::from_fn(|| large.try_charge(SMALL)));
        assert!(
            large.used() >= limit / 4 && memory.free() > limit / 2,
            "{memory:?}"
        );
        // Others that are large get less and less, and something is always left for a small one.
        for _ in 0..100 {
            let other = memory.holder();
            charges.extend(std::iter::from_fn(|| other.try_charge(SMALL / 2)));
        }
        let charge = small.try_charge(SMALL / 2);
        assert!(charge.is_some() && !small.is_evicted());
        assert!(large.is_evicted());
    }

    #[tokio::test]
    async fn a_holder_that_waits_is_notified_of_its_eviction() {
        let memory = Memory::new(1);
        let holder = memory.holder();
        let (evicted, charge) = tokio::join!(holder.evicted(), async { holder.charge(2) });
        assert_eq!((evicted, charge.bytes()), ((), 2));
        // Also one that begins to wait later.
        holder.evicted().await;
    }
}
