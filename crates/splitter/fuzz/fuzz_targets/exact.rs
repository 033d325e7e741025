//! `cargo +nightly fuzz run exact`, in the folder above. Its corpus is also replayed by the tests of the crate.
#![no_main]

#[path = "../../tests/splitter/exact_check.rs"]
mod exact_check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for pieces in [&[usize::MAX][..], &[1], &[5, 1, 13]] {
        exact_check::check(bytes, pieces);
    }
});
