//! Messages to the kernel and its answers, as far as they are the same for every family of netlink.
//!
//! The kernel does what is asked while it takes the message. So all answers are there when sending returns, and reading
//! never waits.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, getsockname,
    recv, sendto, socket_with,
};

/// Asks for something. Every message to the kernel has this flag.
const REQUEST: u16 = 0x1;
/// Asks for an answer also when all went well.
pub(super) const ACKNOWLEDGE: u16 = 0x4;
/// Asks for all there is.
pub(super) const DUMP: u16 = 0x300;
/// Makes what is not there, and fails when it is.
pub(super) const CREATE_NEW: u16 = 0x200 | CREATE;
/// Makes what is not there.
pub(super) const CREATE: u16 = 0x400;
/// Adds at the end of a list.
pub(super) const APPEND: u16 = 0x800;

const HEADER: usize = 16;
const KIND_ERROR: u16 = 2;
const KIND_DONE: u16 = 3;
const NESTED: u16 = 0x8000;
/// What a kernel puts into one answer at most, and more.
const ANSWER_BYTES: usize = 64 * 1024;

/// One message, without the parts of its header that only matter on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) body: Vec<u8>,
}

/// A list of attributes: each a length, a kind and a value, padded to four bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        // Values here are names, numbers and short lists; the format has no place for a longer one.
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(super) fn text(self, kind: u16, value: &str) -> Self {
        let mut terminated = value.as_bytes().to_vec();
        terminated.push(0);
        self.bytes(kind, &terminated)
    }

    /// A number in the order of the network, as nftables has them.
    pub(super) fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(super) fn nested(self, kind: u16, value: &Self) -> Self {
        self.bytes(kind | NESTED, &value.0)
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// The attributes in a message's body, after its fixed part. What is cut short ends the list.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & !NESTED, value))
    })
}

/// What the kernel said about the message at this position of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) position: usize,
    pub(super) content: Content,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// It is done, or this was all.
    Done,
    Failed(Errno),
    /// One of the things that were asked for, without its header.
    Item(Vec<u8>),
}

/// A conversation with one part of the kernel, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: OwnedFd,
    /// Tells this socket from all others of the same part and namespace, as long as it is open.
    pub(super) number: u32,
    sequence: u32,
}

impl Netlink {
    /// Without a protocol the conversation is about addresses and routes, whose number is 0.
    pub(super) fn open(protocol: Option<Protocol>) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        let own = SocketAddrNetlink::try_from(getsockname(&socket)?)?;
        Ok(Self {
            socket,
            number: own.pid(),
            sequence: 0,
        })
    }

    /// Sends messages together, and answers everything that the kernel says to them.
    pub(super) fn request(&mut self, messages: &[Message]) -> Result<Vec<Answer>, Errno> {
        let first = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        for message in messages {
            self.sequence = self.sequence.wrapping_add(1);
            encode(message, self.sequence, &mut bytes);
        }
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, &bytes, SendFlags::empty(), &kernel)?;
        let mut answers = Vec::new();
        let mut buffer = vec![0; ANSWER_BYTES];
        loop {
            match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, length)) => decode(&buffer[..length], first, messages.len(), &mut answers),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(answers),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Everything that answers one question.
    pub(super) fn items(&mut self, question: Message) -> Result<Vec<Vec<u8>>, Errno> {
        let mut items = Vec::new();
        for answer in self.request(&[question])? {
            match answer.content {
                Content::Done => {}
                Content::Failed(errno) => return Err(errno),
                Content::Item(body) => items.push(body),
            }
        }
        Ok(items)
    }
}

fn encode(message: &Message, sequence: u32, bytes: &mut Vec<u8>) {
    // A message has a few rules or ports in it: gigabytes are out of reach.
    let length = u32::try_from(HEADER + message.body.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&length.to_ne_bytes());
    bytes.extend_from_slice(&message.kind.to_ne_bytes());
    bytes.extend_from_slice(&(message.flags | REQUEST).to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&0_u32.to_ne_bytes());
    bytes.extend_from_slice(&message.body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// Splits what was read. What is no answer to the `count` messages from sequence number `first` on is left out.
fn decode(mut bytes: &[u8], first: u32, count: usize, answers: &mut Vec<Answer>) {
    while let Some(header) = bytes.get(..HEADER) {
        let number = |at: usize| {
            let bytes = header.get(at..at + 4).and_then(|four| four.try_into().ok());
            u32::from_ne_bytes(bytes.unwrap_or_default())
        };
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let length = usize::try_from(number(0)).unwrap_or(usize::MAX);
        let Some(body) = bytes.get(HEADER..length) else {
            return;
        };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        let position = usize::try_from(number(8).wrapping_sub(first)).unwrap_or(usize::MAX);
        if position >= count {
            continue;
        }
        let content = match kind {
            KIND_ERROR | KIND_DONE => {
                let code = body.get(..4).and_then(|four| four.try_into().ok());
                match i32::from_ne_bytes(code.unwrap_or_default()) {
                    0.. => Content::Done,
                    code => Content::Failed(Errno::from_raw_os_error(-code)),
                }
            }
            _ => Content::Item(body.to_vec()),
        };
        answers.push(Answer { position, content });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_read_back() {
        let inner = Attributes::new().number(3, 7);
        let list = Attributes::new().text(1, "ab").nested(2, &inner);
        let bytes = list.into_bytes();
        assert_eq!(bytes.len(), 8 + 12);
        let read: Vec<_> = attributes(&bytes).collect();
        assert_eq!(read[0], (1, &b"ab\0"[..]));
        assert_eq!(read[1].0, 2);
        let inside: Vec<_> = attributes(read[1].1).collect();
        assert_eq!(inside, [(3, &[0, 0, 0, 7][..])]);
    }

    #[test]
    fn attributes_that_are_cut_short_end_the_list() {
        let bytes = Attributes::new().number(1, 1).number(2, 2).into_bytes();
        for length in 0..bytes.len() {
            assert_eq!(attributes(&bytes[..length]).count(), length / 8);
        }
        // A length that covers not even itself.
        assert_eq!(attributes(&[1, 0, 1, 0, 0, 0]).count(), 0);
    }

    #[test]
    fn answers_find_their_message() {
        let answer = |kind, sequence, body: &[u8]| {
            let mut bytes = Vec::new();
            let body = body.to_vec();
            let message = Message {
                kind,
                flags: 0,
                body,
            };
            encode(&message, sequence, &mut bytes);
            bytes
        };
        let mut bytes = answer(KIND_ERROR, 11, &(-1_i32).to_ne_bytes());
        bytes.extend(answer(77, 10, &[1, 2, 3]));
        bytes.extend(answer(KIND_DONE, 10, &0_i32.to_ne_bytes()));
        // To a question that was asked before.
        bytes.extend(answer(KIND_DONE, 9, &0_i32.to_ne_bytes()));
        let mut answers = Vec::new();
        decode(&bytes, 10, 2, &mut answers);
        let contents: Vec<_> = answers
            .into_iter()
            .map(|answer| (answer.position, answer.content))
            .collect();
        assert_eq!(
            contents,
            [
                (1, Content::Failed(Errno::PERM)),
                (0, Content::Item(vec![1, 2, 3])),
                (0, Content::Done),
            ]
        );
        for length in 0..bytes.len() {
            decode(&bytes[..length], 10, 2, &mut Vec::new());
        }
    }
}
