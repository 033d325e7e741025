//! Memory to read into, shared by all connections of a thread. A connection that waits has none of its own.

use std::cell::Cell;

/// Large enough that moving a body costs few calls.
const SIZE: usize = 64 * 1024;

thread_local! {
    static SCRATCH: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// Lends the memory. Whoever asks again in the meantime gets other memory, so this works however it is nested.
pub(crate) fn with_scratch<T>(use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut scratch = SCRATCH
        .take()
        .unwrap_or_else(|| vec![0; SIZE].into_boxed_slice());
    let result = use_it(&mut scratch);
    SCRATCH.set(Some(scratch));
    result
}
