//! The seccomp filter: a table of the calls that are intercepted, compiled to a BPF program.
//!
//! A call that the filter allows costs nothing: the kernel caches the numbers that are always allowed. An intercepted
//! call costs two context switches. So a rule tests everything that it can see: the number of the call and its six
//! arguments, but never the memory that an argument points to.

use crate::syscalls::{Call, Group, NATIVE_ARCHITECTURE, TABLE};

/// Internet datagram sockets get descriptors from this number on; see [`crate::outgoing`]. It is below `FD_SETSIZE`, so
/// that `select` works on them.
pub(crate) const FIRST_DATAGRAM_DESCRIPTOR: u32 = 768;

/// Which groups of calls are intercepted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InterceptSettings {
    pub(crate) files: bool,
    pub(crate) outgoing: bool,
    pub(crate) incoming: bool,
    pub(crate) hostname: bool,
    /// Whether `io_uring_setup` fails with `ENOSYS`: a filter does not see operations that are submitted to a ring.
    pub(crate) refuse_io_uring: bool,
    pub(crate) first_datagram_descriptor: u32,
    /// Whether only fatal signals interrupt intercepted calls, on kernels that support it (`WAIT_KILLABLE_RECV`).
    pub(crate) wait_killable: bool,
}

/// What a test leads to if it is true, or false.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Next,
    Intercept,
    Pass,
}

/// A comparison with the lower 32 bits of an argument, or the upper ones if the step says so.
#[derive(Debug, Clone, Copy)]
enum Test {
    Equals(u32),
    AtLeast(u32),
    AnyBit(u32),
}

#[derive(Debug, Clone, Copy)]
struct Step {
    argument: u32,
    upper: bool,
    mask: Option<u32>,
    test: Test,
    yes: Verdict,
    no: Verdict,
}

const fn step(argument: u32, test: Test, yes: Verdict, no: Verdict) -> Step {
    Step {
        argument,
        upper: false,
        mask: None,
        test,
        yes,
        no,
    }
}

/// Intercepts if the pointer in `argument` is not null.
const fn pointer(argument: u32) -> [Step; 2] {
    let lower = step(argument, Test::Equals(0), Verdict::Next, Verdict::Intercept);
    let upper = Step {
        upper: true,
        ..step(argument, Test::Equals(0), Verdict::Pass, Verdict::Intercept)
    };
    [lower, upper]
}

/// Allows `fstat` in its modern forms: a descriptor and an empty path. The kernel has the correct result.
///
/// This also allows a non-empty path together with `AT_EMPTY_PATH` and a descriptor; programs do not use that
/// combination.
const fn not_on_descriptor(flags: u32) -> [Step; 2] {
    const AT_EMPTY_PATH: u32 = 0x1000;
    const SIGN: u32 = 0x8000_0000;
    [
        step(
            flags,
            Test::AnyBit(AT_EMPTY_PATH),
            Verdict::Next,
            Verdict::Intercept,
        ),
        step(0, Test::AnyBit(SIGN), Verdict::Intercept, Verdict::Pass),
    ]
}

/// A message has a destination on a datagram socket, or if it opens the connection on which it is sent.
const fn has_destination(settings: &InterceptSettings, flags: u32) -> [Step; 2] {
    const MSG_FASTOPEN: u32 = 0x2000_0000;
    let first = Test::AtLeast(settings.first_datagram_descriptor);
    [
        step(0, first, Verdict::Intercept, Verdict::Next),
        step(
            flags,
            Test::AnyBit(MSG_FASTOPEN),
            Verdict::Intercept,
            Verdict::Pass,
        ),
    ]
}

fn conditions(call: Call, settings: &InterceptSettings) -> Vec<Step> {
    match call {
        Call::NewFstatAt => not_on_descriptor(3).to_vec(),
        Call::Statx => not_on_descriptor(2).to_vec(),
        // Without a path the former two are about the descriptor itself. A caller of `accept` that wants no peer
        // address may use `getpeername` later, which is intercepted.
        Call::UtimensAt | Call::FutimesAt | Call::Accept | Call::Accept4 => pointer(1).to_vec(),
        Call::SendTo | Call::ReceiveFrom => pointer(4).to_vec(),
        Call::ReceiveMessage | Call::ReceiveMessages => {
            let first = Test::AtLeast(settings.first_datagram_descriptor);
            vec![step(0, first, Verdict::Intercept, Verdict::Pass)]
        }
        Call::SendMessage => has_destination(settings, 2).to_vec(),
        Call::SendMessages => has_destination(settings, 3).to_vec(),
        Call::GetSocketOption => {
            let level = Test::Equals(libc::SOL_SOCKET.cast_unsigned());
            let option = Test::Equals(libc::SO_ERROR.cast_unsigned());
            vec![
                step(1, level, Verdict::Next, Verdict::Pass),
                step(2, option, Verdict::Intercept, Verdict::Pass),
            ]
        }
        Call::Socket => {
            let version4 = Test::Equals(libc::AF_INET.cast_unsigned());
            let version6 = Test::Equals(libc::AF_INET6.cast_unsigned());
            let datagram = Test::Equals(libc::SOCK_DGRAM.cast_unsigned());
            // The upper bits are flags.
            let kind = Step {
                mask: Some(0xf),
                ..step(1, datagram, Verdict::Next, Verdict::Pass)
            };
            vec![
                kind,
                step(0, version4, Verdict::Intercept, Verdict::Next),
                step(0, version6, Verdict::Intercept, Verdict::Pass),
            ]
        }
        _ => Vec::new(),
    }
}

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const JUMP_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// The number of `brk` in the 32-bit ABI of both architectures: every such program calls it early, and rarely.
const FOREIGN_PROBE: u32 = 45;

fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

fn return_action(action: u32) -> libc::sock_filter {
    instruction(RETURN, action, 0, 0)
}

/// Compiles the filter program.
pub(crate) fn program(settings: &InterceptSettings) -> Vec<libc::sock_filter> {
    let mut program = vec![
        instruction(LOAD_WORD, ARCHITECTURE, 0, 0),
        instruction(JUMP_EQUAL, NATIVE_ARCHITECTURE, 4, 0),
        // Programs of another architecture run locally. One call is intercepted so that we can report them.
        instruction(LOAD_WORD, NUMBER, 0, 0),
        instruction(JUMP_EQUAL, FOREIGN_PROBE, 0, 1),
        return_action(libc::SECCOMP_RET_USER_NOTIF),
        return_action(libc::SECCOMP_RET_ALLOW),
        instruction(LOAD_WORD, NUMBER, 0, 0),
    ];
    if settings.refuse_io_uring {
        let refused = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
        let number = u32::try_from(libc::SYS_io_uring_setup).unwrap_or(u32::MAX);
        program.push(instruction(JUMP_EQUAL, number, 0, 1));
        program.push(return_action(refused));
    }
    for (number, call) in TABLE {
        let intercepted = match call.group() {
            Group::Process => true,
            Group::Files | Group::Root => settings.files,
            Group::Outgoing => settings.outgoing,
            // Listeners of the application itself affect where its own connections go.
            Group::Incoming => settings.incoming || settings.outgoing && *call == Call::Listen,
            Group::Sockets => settings.outgoing || settings.incoming,
            Group::Hostname => settings.hostname,
        };
        if let (true, Ok(number)) = (intercepted, u32::try_from(*number)) {
            program.extend(rule(number, &conditions(*call, settings)));
        }
    }
    program.push(return_action(libc::SECCOMP_RET_ALLOW));
    program
}

/// Compiles one rule, which is skipped as a whole if the number differs.
fn rule(number: u32, steps: &[Step]) -> Vec<libc::sock_filter> {
    let mut body: Vec<libc::sock_filter> = Vec::new();
    // Built from the end, so that the distance to both return instructions is known.
    for (index, step) in steps.iter().enumerate().rev() {
        let last = index + 1 == steps.len();
        // After the jump come the later steps, then the return of `Intercept`, then that of `Pass`.
        let later = u8::try_from(body.len()).unwrap_or(u8::MAX);
        let distance = |then| match then {
            Verdict::Next if last => later,
            Verdict::Next => 0,
            Verdict::Intercept => later,
            Verdict::Pass => later + 1,
        };
        let offset = ARGUMENTS + step.argument * 8 + if step.upper { 4 } else { 0 };
        let (code, k) = match step.test {
            Test::Equals(k) => (JUMP_EQUAL, k),
            Test::AtLeast(k) => (JUMP_AT_LEAST, k),
            Test::AnyBit(k) => (JUMP_ANY_BIT, k),
        };
        let mut instructions = vec![instruction(LOAD_WORD, offset, 0, 0)];
        instructions.extend(step.mask.map(|mask| instruction(AND, mask, 0, 0)));
        instructions.push(instruction(code, k, distance(step.yes), distance(step.no)));
        body.splice(0..0, instructions);
    }
    body.push(return_action(libc::SECCOMP_RET_USER_NOTIF));
    if !steps.is_empty() {
        body.push(return_action(libc::SECCOMP_RET_ALLOW));
    }
    let length = u8::try_from(body.len()).unwrap_or(u8::MAX);
    let mut rule = vec![instruction(JUMP_EQUAL, number, 0, length)];
    rule.extend(body);
    rule
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERCEPT_ALL: InterceptSettings = InterceptSettings {
        files: true,
        outgoing: true,
        incoming: true,
        hostname: true,
        refuse_io_uring: true,
        first_datagram_descriptor: FIRST_DATAGRAM_DESCRIPTOR,
        wait_killable: true,
    };

    /// Executes the program like the kernel.
    fn evaluate(architecture: u32, number: i64, arguments: [u64; 6]) -> u32 {
        let program = program(&INTERCEPT_ALL);
        let mut data = Vec::new();
        data.extend(u32::try_from(number).unwrap().to_ne_bytes());
        data.extend(architecture.to_ne_bytes());
        data.extend([0; 8]);
        data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        let (mut accumulator, mut at) = (0_u32, 0);
        loop {
            let instruction = &program[at];
            at += 1;
            let jump = match instruction.code {
                LOAD_WORD => {
                    let offset = instruction.k as usize;
                    accumulator = u32::from_ne_bytes(data[offset..offset + 4].try_into().unwrap());
                    continue;
                }
                AND => {
                    accumulator &= instruction.k;
                    continue;
                }
                RETURN => return instruction.k,
                JUMP_EQUAL => accumulator == instruction.k,
                JUMP_AT_LEAST => accumulator >= instruction.k,
                JUMP_ANY_BIT => accumulator & instruction.k != 0,
                other => panic!("instruction {other}"),
            };
            at += usize::from(if jump { instruction.jt } else { instruction.jf });
        }
    }

    #[test]
    fn intercepted_calls() {
        const INTERCEPTED: u32 = libc::SECCOMP_RET_USER_NOTIF;
        const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;
        const AT_CWD: u64 = 0xffff_ff9c;
        let high = u64::from(FIRST_DATAGRAM_DESCRIPTOR);
        let far = 0x7f00_0000_0000;
        #[rustfmt::skip] // A table is read by its columns.
        let table = [
            ("openat",                  libc::SYS_openat,     [AT_CWD, far, 0, 0, 0, 0],      INTERCEPTED),
            ("read",                    libc::SYS_read,       [3, far, 10, 0, 0, 0],          ALLOWED),
            ("stat of a path",          libc::SYS_newfstatat, [AT_CWD, far, far, 0, 0, 0],    INTERCEPTED),
            ("stat below a directory",  libc::SYS_newfstatat, [3, far, far, 0, 0, 0],         INTERCEPTED),
            ("stat of a descriptor",    libc::SYS_newfstatat, [3, far, far, 0x1000, 0, 0],    ALLOWED),
            ("stat of the directory",   libc::SYS_newfstatat, [AT_CWD, far, far, 0x1000, 0, 0], INTERCEPTED),
            ("statx of a descriptor",   libc::SYS_statx,      [3, far, 0x1000, 0, far, 0],    ALLOWED),
            ("statx of a path",         libc::SYS_statx,      [AT_CWD, far, 0, 0, far, 0],    INTERCEPTED),
            ("futimens",                libc::SYS_utimensat,  [3, 0, far, 0, 0, 0],           ALLOWED),
            ("utimensat",               libc::SYS_utimensat,  [AT_CWD, far, far, 0, 0, 0],    INTERCEPTED),
            ("send",                    libc::SYS_sendto,     [3, far, 10, 0, 0, 0],          ALLOWED),
            ("sendto",                  libc::SYS_sendto,     [3, far, 10, 0, far, 16],       INTERCEPTED),
            ("sendto, a page boundary", libc::SYS_sendto,     [3, far, 10, 0, 1 << 32, 16],   INTERCEPTED),
            ("recv",                    libc::SYS_recvfrom,   [3, far, 10, 0, 0, 0],          ALLOWED),
            ("sendmsg on a stream",     libc::SYS_sendmsg,    [3, far, 0, 0, 0, 0],           ALLOWED),
            ("sendmsg on datagrams",    libc::SYS_sendmsg,    [high, far, 0, 0, 0, 0],        INTERCEPTED),
            ("sendmsg that connects",   libc::SYS_sendmsg,    [3, far, 0x2000_0000, 0, 0, 0], INTERCEPTED),
            ("sendmmsg on a stream",    libc::SYS_sendmmsg,   [3, far, 1, 0x4000, 0, 0],      ALLOWED),
            ("sendmmsg that connects",  libc::SYS_sendmmsg,   [3, far, 1, 0x2000_0000, 0, 0], INTERCEPTED),
            ("SO_ERROR",                libc::SYS_getsockopt, [3, 1, 4, far, far, 0],         INTERCEPTED),
            ("SO_TYPE",                 libc::SYS_getsockopt, [3, 1, 3, far, far, 0],         ALLOWED),
            ("TCP_INFO",                libc::SYS_getsockopt, [3, 6, 4, far, far, 0],         ALLOWED),
            ("a TCP socket",            libc::SYS_socket,     [2, 1, 0, 0, 0, 0],             ALLOWED),
            ("a UDP socket",            libc::SYS_socket,     [2, 0x80802, 0, 0, 0, 0],       INTERCEPTED),
            ("a UDP socket, IPv6",      libc::SYS_socket,     [10, 2, 0, 0, 0, 0],            INTERCEPTED),
            ("a Unix datagram socket",  libc::SYS_socket,     [1, 2, 0, 0, 0, 0],             ALLOWED),
            ("accept",                  libc::SYS_accept4,    [3, far, far, 0, 0, 0],         INTERCEPTED),
            ("accept, no address",       libc::SYS_accept4,    [3, 0, 0, 0x80800, 0, 0],       ALLOWED),
            ("bind",                    libc::SYS_bind,       [3, far, 16, 0, 0, 0],          INTERCEPTED),
            ("a ring",                  libc::SYS_io_uring_setup, [8, far, 0, 0, 0, 0],       libc::SECCOMP_RET_ERRNO | 38),
        ];
        for (what, number, arguments, expected) in table {
            assert_eq!(
                evaluate(NATIVE_ARCHITECTURE, number, arguments),
                expected,
                "{what}"
            );
        }
        assert_eq!(
            evaluate(0x4000_0003, 5, [0; 6]),
            ALLOWED,
            "open of a 32-bit program"
        );
        assert_eq!(
            evaluate(0x4000_0003, 45, [0; 6]),
            INTERCEPTED,
            "brk of a 32-bit program"
        );
    }

    #[test]
    fn program_fits_the_kernel_limit() {
        assert!(program(&INTERCEPT_ALL).len() < 4096);
    }
}
