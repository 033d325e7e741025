//! The process between the supervisor and the application, which ends everything when the supervisor ends. It is a fork
//! of the supervisor, so the rule of [`spawn`](super::spawn) applies here too: system calls only.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, RawFd};

use nix::errno::Errno;

use super::spawn::{
    ExecPointers, ProcessBody, SpawnPlan, StartPhase, send_message, send_report, signal_set,
    start_application,
};

/// Runs the watcher. All signals are blocked: only the end of the supervisor, or `SIGKILL`, ends it.
pub(super) unsafe fn watch(
    plan: &SpawnPlan<'_>,
    pointers: Option<&ExecPointers>,
    signals_before: &libc::sigset_t,
) -> ! {
    // SAFETY: system calls on plain numbers and on local variables.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"standin-watcher".as_ptr());
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        close_private(plan);
        let application = start_application(plan, pointers, signals_before);
        if application == -1 {
            send_report(
                plan.hand_over.as_raw_fd(),
                StartPhase::Fork,
                Errno::last_raw(),
            );
            libc::_exit(1);
        }
        let mut child_ended = signal_set();
        libc::sigaddset(&raw mut child_ended, libc::SIGCHLD);
        let signals = libc::signalfd(
            -1,
            &raw const child_ended,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        );
        keep_only([
            plan.control.as_raw_fd(),
            plan.supervisor.as_raw_fd(),
            signals,
        ]);
        loop {
            let reaped_all = reap_children(plan.control.as_raw_fd(), application);
            let readable = |fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            let mut waiting = [
                readable(plan.control.as_raw_fd()),
                readable(plan.supervisor.as_raw_fd()),
                readable(signals),
            ];
            // The supervisor sends nothing, so any event on its descriptors means that it has ended.
            libc::poll(waiting.as_mut_ptr(), 3, -1);
            if waiting[0].revents != 0 || waiting[1].revents != 0 {
                if !reaped_all {
                    end_children(signals);
                }
                libc::_exit(0);
            }
            drain(signals);
        }
    }
}

/// Closes the descriptors that `execve` would close. The application may wait long before it executes, and a peer that
/// waits for the end of a supervisor's connection must not have to wait for that.
unsafe fn close_private(plan: &SpawnPlan<'_>) {
    let result = match plan.body {
        ProcessBody::Run(_, result) => result.as_raw_fd(),
        ProcessBody::Execute(_) => -1,
    };
    let keep = [
        plan.control.as_raw_fd(),
        plan.supervisor.as_raw_fd(),
        plan.hand_over.as_raw_fd(),
        result,
    ];
    // SAFETY: plain numbers; nothing in this process uses the closed descriptors.
    unsafe {
        for_each_number(c"/proc/self/fd", |directory, _, descriptor| {
            let closes = libc::fcntl(descriptor, libc::F_GETFD) == libc::FD_CLOEXEC;
            if closes && descriptor != directory && !keep.contains(&descriptor) {
                libc::close(descriptor);
            }
        });
    }
}

/// Closes all descriptors but these, so that the watcher keeps no pipe or connection of the supervisor open.
pub(super) unsafe fn keep_only(mut keep: [RawFd; 3]) {
    keep.sort_unstable();
    let mut from: libc::c_long = 0;
    for descriptor in keep {
        let descriptor = libc::c_long::from(descriptor);
        if descriptor > from {
            // SAFETY: plain numbers; nothing in this process uses the closed descriptors any more.
            unsafe { libc::syscall(libc::SYS_close_range, from, descriptor - 1, 0) };
        }
        from = descriptor + 1;
    }
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_close_range, from, libc::c_long::from(i32::MAX), 0) };
}

unsafe fn drain(signals: RawFd) {
    let mut information = [0_u8; 128];
    // SAFETY: reads into a buffer of that length; the descriptor does not block.
    while unsafe { libc::read(signals, information.as_mut_ptr().cast(), information.len()) } > 0 {}
}

/// Reaps ended children, and reports the exit of the application. True if there are no children left.
unsafe fn reap_children(control: RawFd, application: libc::pid_t) -> bool {
    loop {
        let mut status = 0;
        // SAFETY: writes to a local `int`.
        let ended = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        match ended {
            -1 => return true,
            0 => return false,
            _ if ended == application => {
                // SAFETY: a descriptor that stays open.
                unsafe { send_message(control, status) };
            }
            _ => {}
        }
    }
}

/// Kills until no child is left. Orphaned grandchildren become our children, because we are the subreaper.
unsafe fn end_children(signals: RawFd) {
    // SAFETY: system calls on plain numbers and on local variables.
    unsafe {
        while !reap_children(-1, -1) {
            kill_children();
            let mut waiting = [libc::pollfd {
                fd: signals,
                events: libc::POLLIN,
                revents: 0,
            }];
            // There is no signal for a child that was created after the list was read, hence the timeout.
            libc::poll(waiting.as_mut_ptr(), 1, 20);
            drain(signals);
        }
    }
}

/// Sends `SIGKILL` to each of our children that `/proc` lists.
unsafe fn kill_children() {
    // SAFETY: system calls on plain numbers.
    unsafe {
        let us = libc::getpid();
        for_each_number(c"/proc", |directory, name, process| {
            if parent_of(directory, name) == Some(us) {
                libc::kill(process, libc::SIGKILL);
            }
        });
    }
}

/// Calls `with` for each entry of a directory whose name is a number, with the open directory, the zero-terminated name
/// and the number.
unsafe fn for_each_number(path: &CStr, with: impl Fn(RawFd, &[u8], libc::c_int)) {
    // SAFETY: system calls on local buffers with their lengths. Directory entries are parsed as the kernel writes them:
    // each has its length at offset 16 and its zero-terminated name at offset 19.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let directory = libc::open(path.as_ptr(), flags);
        let mut entries = [0_u8; 4096];
        loop {
            let length = libc::syscall(
                libc::SYS_getdents64,
                directory,
                entries.as_mut_ptr(),
                entries.len(),
            );
            let Ok(length @ 1..) = usize::try_from(length) else {
                break;
            };
            let mut rest = entries.get(..length).unwrap_or(&[]);
            while let Some((entry, name)) = next_entry(rest) {
                if let Some(number) = number(name) {
                    with(directory, name, number);
                }
                rest = rest.get(entry..).unwrap_or(&[]);
            }
        }
        libc::close(directory);
    }
}

/// The length of the first directory entry, and its name including the terminating zero.
fn next_entry(entries: &[u8]) -> Option<(usize, &[u8])> {
    let length = u16::from_ne_bytes([*entries.get(16)?, *entries.get(17)?]);
    let name = entries.get(19..usize::from(length))?;
    let end = name.iter().position(|byte| *byte == 0)?;
    Some((usize::from(length), name.get(..=end)?))
}

fn number(text: &[u8]) -> Option<libc::pid_t> {
    let mut value: libc::pid_t = 0;
    let mut seen = false;
    for byte in text {
        match byte {
            b'0'..=b'9' => value = value.checked_mul(10)?.checked_add(i32::from(byte - b'0'))?,
            0 | b' ' => break,
            _ => return None,
        }
        seen = true;
    }
    seen.then_some(value)
}

/// The parent of the process with this zero-terminated name, in the open directory `/proc`.
unsafe fn parent_of(directory: RawFd, name: &[u8]) -> Option<libc::pid_t> {
    let mut path = [0_u8; 32];
    let digits = name.len().checked_sub(1)?;
    path.get_mut(..digits)?.copy_from_slice(name.get(..digits)?);
    path.get_mut(digits..digits + 6)?
        .copy_from_slice(b"/stat\0");
    let mut text = [0_u8; 512];
    // SAFETY: the path is zero-terminated; the buffer has the given length.
    let length = unsafe {
        let file = libc::openat(
            directory,
            path.as_ptr().cast(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        );
        let length = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        length
    };
    let text = text.get(..usize::try_from(length).ok()?)?;
    // "pid (name) state parent …", where the name may contain any character.
    let after_name = text.iter().rposition(|byte| *byte == b')')?;
    number(text.get(after_name + 4..)?)
}
