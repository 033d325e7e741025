//! A read buffer that all connections of a thread share. An idle connection has no buffer of its own.

use std::cell::Cell;

/// Large enough that forwarding a body takes few system calls.
const SIZE: usize = 64 * 1024;

thread_local! {
    static READ_BUFFER: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// Lends the buffer. A nested call gets a new buffer.
pub(crate) fn with_read_buffer<T>(use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut buffer = READ_BUFFER
        .take()
        .unwrap_or_else(|| vec![0; SIZE].into_boxed_slice());
    let result = use_it(&mut buffer);
    READ_BUFFER.set(Some(buffer));
    result
}
