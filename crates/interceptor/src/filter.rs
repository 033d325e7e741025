//! The seccomp filter: which calls wait for an answer, as a table, and the table as a program for the kernel.
//!
//! A call that the filter lets pass costs nothing: the kernel remembers which numbers always pass. A call that it
//! catches costs two context switches. So a rule judges by everything it can see, which is the call's number and its
//! six arguments, but never memory that an argument points to.

use crate::syscalls::{Call, Group, NATIVE_ARCHITECTURE, TABLE};

/// Internet datagram sockets get descriptors from this number on, see [`crate::outgoing`]. Below `FD_SETSIZE`, so that
/// `select` works on them.
pub(crate) const FIRST_DATAGRAM_DESCRIPTOR: u32 = 768;

/// Which groups of calls are caught.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Catch {
    pub(crate) files: bool,
    pub(crate) outgoing: bool,
    pub(crate) incoming: bool,
    pub(crate) hostname: bool,
    /// Whether `io_uring_setup` is answered with `ENOSYS`: what goes through a ring, no filter sees.
    pub(crate) refuse_io_uring: bool,
    pub(crate) first_datagram_descriptor: u32,
    /// Whether signals wait for answers where the kernel can do that.
    pub(crate) let_signals_wait: bool,
}

/// What follows when a test is true, or false.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Next,
    Catch,
    Pass,
}

/// What a test compares. Words are the lower 32 bits of an argument unless they say otherwise.
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
    yes: Then,
    no: Then,
}

const fn step(argument: u32, test: Test, yes: Then, no: Then) -> Step {
    Step {
        argument,
        upper: false,
        mask: None,
        test,
        yes,
        no,
    }
}

/// Catches when the pointer in `argument` is not null.
const fn pointer(argument: u32) -> [Step; 2] {
    let lower = step(argument, Test::Equals(0), Then::Next, Then::Catch);
    let upper = Step {
        upper: true,
        ..step(argument, Test::Equals(0), Then::Pass, Then::Catch)
    };
    [lower, upper]
}

/// `fstat` in its modern forms: a descriptor and an empty path. The kernel knows the answer best.
///
/// A path that is not empty together with `AT_EMPTY_PATH` and a descriptor passes too; nobody writes that.
const fn not_on_descriptor(flags: u32) -> [Step; 2] {
    const AT_EMPTY_PATH: u32 = 0x1000;
    const SIGN: u32 = 0x8000_0000;
    [
        step(flags, Test::AnyBit(AT_EMPTY_PATH), Then::Next, Then::Catch),
        step(0, Test::AnyBit(SIGN), Then::Catch, Then::Pass),
    ]
}

/// A message may name its peer on a datagram socket, and where it opens the connection that it is sent on.
const fn sends_message(catch: &Catch, flags: u32) -> [Step; 2] {
    const MSG_FASTOPEN: u32 = 0x2000_0000;
    let first = Test::AtLeast(catch.first_datagram_descriptor);
    [
        step(0, first, Then::Catch, Then::Next),
        step(flags, Test::AnyBit(MSG_FASTOPEN), Then::Catch, Then::Pass),
    ]
}

fn conditions(call: Call, catch: &Catch) -> Vec<Step> {
    match call {
        Call::NewFstatAt => not_on_descriptor(3).to_vec(),
        Call::Statx => not_on_descriptor(2).to_vec(),
        // Without a path the former are about the descriptor itself. Who does not want to know the peer of a connection
        // now may ask later.
        Call::UtimensAt | Call::FutimesAt | Call::Accept | Call::Accept4 => pointer(1).to_vec(),
        Call::SendTo | Call::ReceiveFrom => pointer(4).to_vec(),
        Call::ReceiveMessage | Call::ReceiveMessages => {
            let first = Test::AtLeast(catch.first_datagram_descriptor);
            vec![step(0, first, Then::Catch, Then::Pass)]
        }
        Call::SendMessage => sends_message(catch, 2).to_vec(),
        Call::SendMessages => sends_message(catch, 3).to_vec(),
        Call::GetSocketOption => {
            let level = Test::Equals(libc::SOL_SOCKET.cast_unsigned());
            let option = Test::Equals(libc::SO_ERROR.cast_unsigned());
            vec![
                step(1, level, Then::Next, Then::Pass),
                step(2, option, Then::Catch, Then::Pass),
            ]
        }
        Call::Socket => {
            let version4 = Test::Equals(libc::AF_INET.cast_unsigned());
            let version6 = Test::Equals(libc::AF_INET6.cast_unsigned());
            let datagram = Test::Equals(libc::SOCK_DGRAM.cast_unsigned());
            // The upper bits are flags.
            let kind = Step {
                mask: Some(0xf),
                ..step(1, datagram, Then::Next, Then::Pass)
            };
            vec![
                kind,
                step(0, version4, Then::Catch, Then::Next),
                step(0, version6, Then::Catch, Then::Pass),
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

/// `brk`, on the 32-bit side of both architectures: every such program calls it early, and seldom.
const FOREIGN_PROBE: u32 = 45;

fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

fn answer(action: u32) -> libc::sock_filter {
    instruction(RETURN, action, 0, 0)
}

/// The program for the kernel.
pub(crate) fn program(catch: &Catch) -> Vec<libc::sock_filter> {
    let mut program = vec![
        instruction(LOAD_WORD, ARCHITECTURE, 0, 0),
        instruction(JUMP_EQUAL, NATIVE_ARCHITECTURE, 4, 0),
        // Programs of another architecture run locally. One call is caught so that we can say so.
        instruction(LOAD_WORD, NUMBER, 0, 0),
        instruction(JUMP_EQUAL, FOREIGN_PROBE, 0, 1),
        answer(libc::SECCOMP_RET_USER_NOTIF),
        answer(libc::SECCOMP_RET_ALLOW),
        instruction(LOAD_WORD, NUMBER, 0, 0),
    ];
    if catch.refuse_io_uring {
        let refused = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
        let number = u32::try_from(libc::SYS_io_uring_setup).unwrap_or(u32::MAX);
        program.push(instruction(JUMP_EQUAL, number, 0, 1));
        program.push(answer(refused));
    }
    for (number, call) in TABLE {
        let caught = match call.group() {
            Group::Process => true,
            Group::Files | Group::Root => catch.files,
            Group::Outgoing => catch.outgoing,
            // What the application itself listens on matters where its connections go.
            Group::Incoming => catch.incoming || catch.outgoing && *call == Call::Listen,
            Group::Sockets => catch.outgoing || catch.incoming,
            Group::Hostname => catch.hostname,
        };
        if let (true, Ok(number)) = (caught, u32::try_from(*number)) {
            program.extend(rule(number, &conditions(*call, catch)));
        }
    }
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    program
}

/// One rule: skipped as a whole when the number is another one.
fn rule(number: u32, steps: &[Step]) -> Vec<libc::sock_filter> {
    let mut body: Vec<libc::sock_filter> = Vec::new();
    // Built from the end, so that the distance to both answers is known.
    for (index, step) in steps.iter().enumerate().rev() {
        let last = index + 1 == steps.len();
        // After the jump come the later steps, then Catch, then Pass.
        let later = u8::try_from(body.len()).unwrap_or(u8::MAX);
        let distance = |then| match then {
            Then::Next if last => later,
            Then::Next => 0,
            Then::Catch => later,
            Then::Pass => later + 1,
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
    body.push(answer(libc::SECCOMP_RET_USER_NOTIF));
    if !steps.is_empty() {
        body.push(answer(libc::SECCOMP_RET_ALLOW));
    }
    let length = u8::try_from(body.len()).unwrap_or(u8::MAX);
    let mut rule = vec![instruction(JUMP_EQUAL, number, 0, length)];
    rule.extend(body);
    rule
}

#[cfg(test)]
mod tests {
    use super::*;

    const CATCH: Catch = Catch {
        files: true,
        outgoing: true,
        incoming: true,
        hostname: true,
        refuse_io_uring: true,
        first_datagram_descriptor: FIRST_DATAGRAM_DESCRIPTOR,
        let_signals_wait: true,
    };

    /// Runs the program as the kernel would.
    fn judge(architecture: u32, number: i64, arguments: [u64; 6]) -> u32 {
        let program = program(&CATCH);
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
    fn what_is_caught() {
        const CAUGHT: u32 = libc::SECCOMP_RET_USER_NOTIF;
        const PASSES: u32 = libc::SECCOMP_RET_ALLOW;
        const AT_CWD: u64 = 0xffff_ff9c;
        let high = u64::from(FIRST_DATAGRAM_DESCRIPTOR);
        let far = 0x7f00_0000_0000;
        #[rustfmt::skip] // A table is read by its columns.
        let table = [
            ("openat",                  libc::SYS_openat,     [AT_CWD, far, 0, 0, 0, 0],      CAUGHT),
            ("read",                    libc::SYS_read,       [3, far, 10, 0, 0, 0],          PASSES),
            ("stat of a path",          libc::SYS_newfstatat, [AT_CWD, far, far, 0, 0, 0],    CAUGHT),
            ("stat below a directory",  libc::SYS_newfstatat, [3, far, far, 0, 0, 0],         CAUGHT),
            ("stat of a descriptor",    libc::SYS_newfstatat, [3, far, far, 0x1000, 0, 0],    PASSES),
            ("stat of the directory",   libc::SYS_newfstatat, [AT_CWD, far, far, 0x1000, 0, 0], CAUGHT),
            ("statx of a descriptor",   libc::SYS_statx,      [3, far, 0x1000, 0, far, 0],    PASSES),
            ("statx of a path",         libc::SYS_statx,      [AT_CWD, far, 0, 0, far, 0],    CAUGHT),
            ("futimens",                libc::SYS_utimensat,  [3, 0, far, 0, 0, 0],           PASSES),
            ("utimensat",               libc::SYS_utimensat,  [AT_CWD, far, far, 0, 0, 0],    CAUGHT),
            ("send",                    libc::SYS_sendto,     [3, far, 10, 0, 0, 0],          PASSES),
            ("sendto",                  libc::SYS_sendto,     [3, far, 10, 0, far, 16],       CAUGHT),
            ("sendto, a page boundary", libc::SYS_sendto,     [3, far, 10, 0, 1 << 32, 16],   CAUGHT),
            ("recv",                    libc::SYS_recvfrom,   [3, far, 10, 0, 0, 0],          PASSES),
            ("sendmsg on a stream",     libc::SYS_sendmsg,    [3, far, 0, 0, 0, 0],           PASSES),
            ("sendmsg on datagrams",    libc::SYS_sendmsg,    [high, far, 0, 0, 0, 0],        CAUGHT),
            ("sendmsg that connects",   libc::SYS_sendmsg,    [3, far, 0x2000_0000, 0, 0, 0], CAUGHT),
            ("sendmmsg on a stream",    libc::SYS_sendmmsg,   [3, far, 1, 0x4000, 0, 0],      PASSES),
            ("sendmmsg that connects",  libc::SYS_sendmmsg,   [3, far, 1, 0x2000_0000, 0, 0], CAUGHT),
            ("SO_ERROR",                libc::SYS_getsockopt, [3, 1, 4, far, far, 0],         CAUGHT),
            ("SO_TYPE",                 libc::SYS_getsockopt, [3, 1, 3, far, far, 0],         PASSES),
            ("TCP_INFO",                libc::SYS_getsockopt, [3, 6, 4, far, far, 0],         PASSES),
            ("a TCP socket",            libc::SYS_socket,     [2, 1, 0, 0, 0, 0],             PASSES),
            ("a UDP socket",            libc::SYS_socket,     [2, 0x80802, 0, 0, 0, 0],       CAUGHT),
            ("a UDP socket, IPv6",      libc::SYS_socket,     [10, 2, 0, 0, 0, 0],            CAUGHT),
            ("a Unix datagram socket",  libc::SYS_socket,     [1, 2, 0, 0, 0, 0],             PASSES),
            ("accept",                  libc::SYS_accept4,    [3, far, far, 0, 0, 0],         CAUGHT),
            ("accept of anybody",       libc::SYS_accept4,    [3, 0, 0, 0x80800, 0, 0],       PASSES),
            ("bind",                    libc::SYS_bind,       [3, far, 16, 0, 0, 0],          CAUGHT),
            ("a ring",                  libc::SYS_io_uring_setup, [8, far, 0, 0, 0, 0],       libc::SECCOMP_RET_ERRNO | 38),
        ];
        for (what, number, arguments, expected) in table {
            assert_eq!(
                judge(NATIVE_ARCHITECTURE, number, arguments),
                expected,
                "{what}"
            );
        }
        assert_eq!(
            judge(0x4000_0003, 5, [0; 6]),
            PASSES,
            "open of a 32-bit program"
        );
        assert_eq!(
            judge(0x4000_0003, 45, [0; 6]),
            CAUGHT,
            "brk of a 32-bit program"
        );
    }

    #[test]
    fn the_program_fits_into_the_kernel() {
        assert!(program(&CATCH).len() < 4096);
    }
}
