//! All `unsafe` code of this crate.
#![expect(
    unsafe_code,
    reason = "system calls without a safe wrapper elsewhere; each block says why it is sound"
)]

pub(crate) mod child;
pub(crate) mod lease;
pub(crate) mod readiness;
