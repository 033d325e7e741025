//! Signal handlers. They only write the signal and its origin to a pipe.
//!
//! Signals are not blocked and read from a signalfd instead, because the program would inherit the blocked signals.

use std::io::{PipeReader, pipe};
use std::os::fd::IntoRawFd as _;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// The write end of the pipe, which is never closed.
static PIPE: AtomicI32 = AtomicI32::new(-1);

/// The message for each signal: its number, and whether the kernel sent it for the terminal.
pub(crate) type Message = [u8; 2];

#[allow(unsafe_code, reason = "a handler is called with pointers")]
extern "C" fn handle(number: libc::c_int, information: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // The interrupted code must find its errno unchanged.
    let before = Errno::last_raw();
    // SAFETY: the kernel passes a valid pointer to handlers that are installed with SA_SIGINFO.
    let by_terminal = unsafe { (*information).si_code } == libc::SI_KERNEL;
    let message: Message = [u8::try_from(number).unwrap_or(0), u8::from(by_terminal)];
    let pipe = PIPE.load(Ordering::Relaxed);
    // SAFETY: `write` is allowed in handlers, and is given a buffer with its length.
    unsafe { libc::write(pipe, message.as_ptr().cast(), message.len()) };
    Errno::set_raw(before);
}

/// Catches these signals from now on. Ignored signals stay ignored, because the parent process has set that on purpose.
pub(crate) fn catch(signals: &[Signal]) -> std::io::Result<PipeReader> {
    let (reader, writer) = pipe()?;
    PIPE.store(writer.into_raw_fd(), Ordering::Relaxed);
    for signal in signals {
        let before = set(*signal, SigHandler::SigAction(handle))?;
        if before == SigHandler::SigIgn {
            set(*signal, before)?;
        }
    }
    Ok(reader)
}

/// Catches a signal again after [`release`].
pub(crate) fn catch_again(signal: Signal) {
    let _ = set(signal, SigHandler::SigAction(handle));
}

/// Restores the default action of a signal.
pub(crate) fn release(signal: Signal) {
    let _ = set(signal, SigHandler::SigDfl);
}

#[allow(unsafe_code, reason = "handlers can do anything at any time")]
fn set(signal: Signal, handler: SigHandler) -> nix::Result<SigHandler> {
    let flags = SaFlags::SA_RESTART | SaFlags::SA_SIGINFO;
    let action = SigAction::new(handler, flags, SigSet::empty());
    // SAFETY: the only handler makes one async-signal-safe system call and preserves errno.
    let before = unsafe { sigaction(signal, &action) }?;
    Ok(before.handler())
}
