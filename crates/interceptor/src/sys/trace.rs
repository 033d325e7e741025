//! Lets a suspended thread of another process make system calls of its own (`ptrace`).
//!
//! Only a process itself can change its working directory. So a thread that is suspended in an intercepted call is
//! stopped when this call returns, executes the system call instruction again with other arguments, and at the end
//! repeats the intercepted call. No code of ours runs in the process.
//!
//! The kernel accepts the calls of this module only from the thread that began to trace.

use std::ffi::CStr;
use std::fs::File;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;

use self::registers::Registers;
use super::memory::read_exactly;
use super::{check, check_int};

const PTRACE_SEIZE: libc::c_long = 0x4206;
const PTRACE_INTERRUPT: libc::c_long = 0x4207;
const PTRACE_SYSCALL: libc::c_long = 24;
const PTRACE_DETACH: libc::c_long = 17;
const PTRACE_GETREGSET: libc::c_long = 0x4204;
const PTRACE_SETREGSET: libc::c_long = 0x4205;
const PTRACE_GETSIGMASK: libc::c_long = 0x420a;
const PTRACE_SETSIGMASK: libc::c_long = 0x420b;
const PTRACE_O_TRACESYSGOOD: usize = 1;
const PTRACE_EVENT_STOP: libc::c_int = 128;
/// The set of general registers.
const NT_PRSTATUS: usize = 1;

/// The kernel's own error numbers that it turns into a repetition of the call.
const RESTARTS: std::ops::RangeInclusive<i64> = -516..=-512;

/// Enough for every path.
const BUFFER: u64 = 4096;

/// A thread that stops when its call returns.
pub(crate) struct SeizedThread(libc::pid_t);

impl SeizedThread {
    /// Begins to trace a thread that is suspended in an intercepted call. `EPERM` if another process traces it already,
    /// such as a debugger.
    pub(crate) fn new(thread: libc::pid_t) -> Result<Self, Errno> {
        trace(PTRACE_SEIZE, thread, 0, PTRACE_O_TRACESYSGOOD)?;
        match trace(PTRACE_INTERRUPT, thread, 0, 0) {
            Ok(()) => Ok(Self(thread)),
            Err(errno) => {
                release(thread);
                Err(errno)
            }
        }
    }

    /// Waits for the thread, whose call `number` must have been completed with `ERESTARTSYS`. Fails if the thread has
    /// ended, or if a signal interrupted the call before; then it continues as if it had not been traced.
    pub(crate) fn wait(self, number: libc::c_int) -> Result<StoppedThread, Errno> {
        let thread = self.0;
        loop {
            match wait_for_stop(thread)? {
                Stop::Event => break,
                // If this fails, it was killed, which is the next event.
                Stop::Call => drop(resume(thread, 0)),
                Stop::Signal(signal) => drop(resume(thread, signal)),
            }
        }
        let stopped = StoppedThread::new(thread, number);
        if stopped.is_err() {
            release(thread);
        }
        stopped
    }
}

/// A stopped thread that is about to repeat its call. Dropping it lets the thread continue.
pub(crate) struct StoppedThread {
    thread: libc::pid_t,
    /// At the system call instruction, with the arguments of the call.
    before_call: Registers,
    /// With which the thread continues.
    at_end: Registers,
    signal_mask: u64,
}

impl StoppedThread {
    fn new(thread: libc::pid_t, number: libc::c_int) -> Result<Self, Errno> {
        let found = read_registers(thread)?;
        let before_call = registers::before_call(found, number).ok_or(Errno::EAGAIN)?;
        let mut signal_mask: u64 = 0;
        let pointer = (&raw mut signal_mask).expose_provenance();
        trace(PTRACE_GETSIGMASK, thread, size_of::<u64>(), pointer)?;
        // A signal handler would see registers that are not those of the program.
        set_signal_mask(thread, u64::MAX)?;
        Ok(Self {
            thread,
            before_call,
            at_end: before_call,
            signal_mask,
        })
    }

    /// `chdir`. The path is written to memory that is mapped for this purpose: the stack may be too small, and a process
    /// that is about to execute a program often shares its memory with its parent. `ESRCH` if the thread was killed, and
    /// `EOPNOTSUPP` if the program has changed its code since the call: the call must then fail and not be repeated,
    /// because the same would follow again.
    pub(crate) fn change_directory(&self, path: &CStr) -> Result<(), Errno> {
        self.check_instruction()?;
        let path = path.to_bytes_with_nul();
        if path.len() as u64 > BUFFER {
            return Err(Errno::ENAMETOOLONG);
        }
        let protection = number(libc::PROT_READ | libc::PROT_WRITE);
        let flags = number(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let map = [0, BUFFER, protection, flags, u64::MAX, 0];
        let buffer = self.call(libc::SYS_mmap, map)?;
        let memory = File::options()
            .write(true)
            .open(format!("/proc/{}/mem", self.thread));
        let result = match memory.and_then(|memory| memory.write_all_at(path, buffer)) {
            Ok(()) => self.call(libc::SYS_chdir, [buffer, 0, 0, 0, 0, 0]),
            Err(_) => Err(Errno::EFAULT),
        };
        // `ESRCH` if the thread was killed, which also makes the others fail.
        self.call(libc::SYS_munmap, [buffer, BUFFER, 0, 0, 0, 0])?;
        result.map(drop)
    }

    fn check_instruction(&self) -> Result<(), Errno> {
        let mut instruction = [0; registers::INSTRUCTION.len()];
        let at = registers::instruction_address(&self.before_call);
        let is_readable = read_exactly(self.thread, at, &mut instruction).is_ok();
        match can_call(is_readable.then_some(&instruction)) {
            true => Ok(()),
            false => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Lets the thread continue after its call, which fails with this error.
    pub(crate) fn fail_call(mut self, errno: Errno) {
        self.at_end = registers::after_call(self.before_call, errno);
    }

    /// Makes a system call. It is filtered like any other call of the thread.
    fn call(&self, number: libc::c_long, arguments: [u64; 6]) -> Result<u64, Errno> {
        loop {
            write_registers(
                self.thread,
                registers::with_call(self.before_call, number, arguments),
            )?;
            // One stop before the call, and one after it.
            self.continue_to_call()?;
            self.continue_to_call()?;
            let result = registers::result(&read_registers(self.thread)?);
            match result {
                // Before Linux 5.19, job control interrupts a call that is intercepted.
                _ if RESTARTS.contains(&result) => {}
                -4095..=-1 => {
                    let number = i32::try_from(-result).unwrap_or_default();
                    return Err(Errno::from_raw(number));
                }
                _ => return Ok(result.cast_unsigned()),
            }
        }
    }

    fn continue_to_call(&self) -> Result<(), Errno> {
        let mut signal = 0;
        loop {
            resume(self.thread, signal)?;
            signal = match wait_for_stop(self.thread)? {
                Stop::Call => return Ok(()),
                // The thread stops again with its process when it is no longer traced.
                Stop::Event => 0,
                // Only signals that cannot be blocked.
                Stop::Signal(signal) => signal,
            };
        }
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        // An error means that the thread has ended.
        let _ = write_registers(self.thread, self.at_end);
        let _ = set_signal_mask(self.thread, self.signal_mask);
        release(self.thread);
    }
}

/// Whether the code from which a call was made can make another one. Code may be executable and not readable.
fn can_call(instruction: Option<&[u8]>) -> bool {
    instruction.is_none_or(|instruction| instruction == registers::INSTRUCTION)
}

/// Stops to trace. A thread that was killed meanwhile must be waited for: its parent does not get its exit status before.
fn release(thread: libc::pid_t) {
    while trace(PTRACE_DETACH, thread, 0, 0).is_err() && wait_for_stop(thread).is_ok() {}
}

fn number(flags: libc::c_int) -> u64 {
    u64::from(flags.cast_unsigned())
}

/// Why a traced thread has stopped.
enum Stop {
    /// It was interrupted, or its process was stopped.
    Event,
    /// Before or after a system call.
    Call,
    /// It is about to receive this signal.
    Signal(libc::c_int),
}

fn wait_for_stop(thread: libc::pid_t) -> Result<Stop, Errno> {
    let mut status = 0;
    loop {
        // SAFETY: writes to a local `int`.
        match check_int(unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) }) {
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    if !libc::WIFSTOPPED(status) {
        return Err(Errno::ESRCH);
    }
    const CALL: libc::c_int = libc::SIGTRAP | 0x80;
    Ok(match (status >> 16, libc::WSTOPSIG(status)) {
        (PTRACE_EVENT_STOP, _) => Stop::Event,
        (_, CALL) => Stop::Call,
        (_, signal) => Stop::Signal(signal),
    })
}

/// Continues until the next system call.
fn resume(thread: libc::pid_t, signal: libc::c_int) -> Result<(), Errno> {
    let signal = usize::try_from(signal).unwrap_or_default();
    trace(PTRACE_SYSCALL, thread, 0, signal)
}

fn set_signal_mask(thread: libc::pid_t, mask: u64) -> Result<(), Errno> {
    let pointer = (&raw const mask).expose_provenance();
    trace(PTRACE_SETSIGMASK, thread, size_of::<u64>(), pointer)
}

fn read_registers(thread: libc::pid_t) -> Result<Registers, Errno> {
    // SAFETY: registers are integers, for which zero is valid.
    let mut registers: Registers = unsafe { std::mem::zeroed() };
    transfer_registers(PTRACE_GETREGSET, thread, &mut registers)?;
    Ok(registers)
}

fn write_registers(thread: libc::pid_t, mut registers: Registers) -> Result<(), Errno> {
    transfer_registers(PTRACE_SETREGSET, thread, &mut registers)
}

fn transfer_registers(
    request: libc::c_long,
    thread: libc::pid_t,
    registers: &mut Registers,
) -> Result<(), Errno> {
    let mut vector = libc::iovec {
        iov_base: std::ptr::from_mut(registers).cast(),
        iov_len: size_of::<Registers>(),
    };
    let pointer = (&raw mut vector).expose_provenance();
    trace(request, thread, NT_PRSTATUS, pointer)
}

/// `ptrace`, by its number: the declarations of the C libraries differ.
fn trace(
    request: libc::c_long,
    thread: libc::pid_t,
    address: usize,
    data: usize,
) -> Result<(), Errno> {
    // SAFETY: every caller passes plain numbers, or the address of a local variable of the type that the request reads
    // or writes. The memory of the traced thread is not written.
    check(unsafe { libc::syscall(libc::SYS_ptrace, request, thread, address, data) }).map(drop)
}

#[cfg(target_arch = "x86_64")]
mod registers {
    use nix::errno::Errno;

    pub(super) type Registers = libc::user_regs_struct;

    /// `syscall`.
    pub(super) const INSTRUCTION: [u8; 2] = [0x0f, 0x05];
    const LENGTH: u64 = 2;
    /// Tells the kernel that the registers are not those of a call, which it might repeat.
    const NO_CALL: u64 = u64::MAX;

    /// The registers before the call that was interrupted. `None` if it was not call `number` that was.
    pub(super) fn before_call(mut found: Registers, number: libc::c_int) -> Option<Registers> {
        const ERESTARTSYS: i64 = 512;
        if found.rax.cast_signed() != -ERESTARTSYS
            || found.orig_rax.cast_signed() != i64::from(number)
        {
            return None;
        }
        found.rip -= LENGTH;
        found.rax = found.orig_rax;
        found.orig_rax = NO_CALL;
        Some(found)
    }

    pub(super) fn instruction_address(before: &Registers) -> u64 {
        before.rip
    }

    pub(super) fn with_call(
        mut before: Registers,
        number: libc::c_long,
        [first, second, third, fourth, fifth, sixth]: [u64; 6],
    ) -> Registers {
        before.rax = number.cast_unsigned();
        before.rdi = first;
        before.rsi = second;
        before.rdx = third;
        before.r10 = fourth;
        before.r8 = fifth;
        before.r9 = sixth;
        before
    }

    pub(super) fn result(after: &Registers) -> i64 {
        after.rax.cast_signed()
    }

    pub(super) fn after_call(mut before: Registers, errno: Errno) -> Registers {
        before.rip += LENGTH;
        before.rax = (-i64::from(errno as i32)).cast_unsigned();
        before
    }
}

#[cfg(target_arch = "aarch64")]
mod registers {
    use nix::errno::Errno;

    pub(super) type Registers = libc::user_regs_struct;

    /// `svc #0`.
    pub(super) const INSTRUCTION: [u8; 4] = [0x01, 0x00, 0x00, 0xd4];
    const LENGTH: u64 = 4;

    /// The registers before the call that was interrupted. `None` if it was not call `number` that was. The kernel has
    /// already prepared the repetition of the call.
    pub(super) fn before_call(found: Registers, number: libc::c_int) -> Option<Registers> {
        (found.regs[8].cast_signed() == i64::from(number)).then_some(found)
    }

    pub(super) fn instruction_address(before: &Registers) -> u64 {
        before.pc
    }

    pub(super) fn with_call(
        mut before: Registers,
        number: libc::c_long,
        arguments: [u64; 6],
    ) -> Registers {
        before.regs[8] = number.cast_unsigned();
        before.regs[..6].copy_from_slice(&arguments);
        before
    }

    pub(super) fn result(after: &Registers) -> i64 {
        after.regs[0].cast_signed()
    }

    pub(super) fn after_call(mut before: Registers, errno: Errno) -> Registers {
        before.pc += LENGTH;
        before.regs[0] = (-i64::from(errno as i32)).cast_unsigned();
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_instruction_of_a_call_is_executed_again() {
        let mut changed = registers::INSTRUCTION;
        changed[0] ^= 1;
        for (instruction, expected) in [
            (Some(&registers::INSTRUCTION[..]), true),
            (Some(&changed[..]), false),
            (Some(&[]), false),
            (None, true),
        ] {
            assert_eq!(can_call(instruction), expected, "{instruction:?}");
        }
    }
}
