//! Netlink requests and responses, as far as they are the same for all netlink families.
//!
//! The kernel processes a request while it is sent. So all responses are available when sending returns, and reading never
//! blocks.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, getsockname,
    recv, sendto, socket_with,
};

/// Set in every request (`NLM_F_REQUEST`).
const REQUEST: u16 = 0x1;
/// Requests a response also on success (`NLM_F_ACK`).
pub(super) const ACKNOWLEDGE: u16 = 0x4;
/// Requests all items (`NLM_F_DUMP`).
pub(super) const DUMP: u16 = 0x300;
/// Creates the item, and fails if it exists (`NLM_F_EXCL`).
pub(super) const CREATE_NEW: u16 = 0x200 | CREATE;
/// Creates the item if it does not exist (`NLM_F_CREATE`).
pub(super) const CREATE: u16 = 0x400;
/// Appends to a list (`NLM_F_APPEND`).
pub(super) const APPEND: u16 = 0x800;

const HEADER_LEN: usize = 16;
const KIND_ERROR: u16 = 2;
const KIND_DONE: u16 = 3;
const NESTED: u16 = 0x8000;
/// Larger than any response of the kernel.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// A request, without the parts of its header that are only needed for sending.
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
        // All values are names, numbers and short lists, far below the limit of the format.
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

    /// A number in network byte order, which nftables uses.
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

/// The attributes in a message's body, after its fixed part, up to the first truncated one.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & !NESTED, value))
    })
}

/// A response to the message at this position of a batch of requests.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) position: usize,
    pub(super) content: ResponseContent,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResponseContent {
    /// Success, or the end of a list.
    Done,
    Failed(Errno),
    /// One of the requested items, without its header.
    Item(Vec<u8>),
}

/// A netlink socket of one family, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: OwnedFd,
    /// The address of the socket: unique in its family and namespace while the socket is open.
    pub(super) port_id: u32,
    sequence: u32,
}

impl Netlink {
    /// No protocol means `NETLINK_ROUTE`, the family for addresses and routes, whose number is 0.
    pub(super) fn open(protocol: Option<Protocol>) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        let own = SocketAddrNetlink::try_from(getsockname(&socket)?)?;
        Ok(Self {
            socket,
            port_id: own.pid(),
            sequence: 0,
        })
    }

    /// Sends messages as one batch, and returns all responses.
    pub(super) fn request(&mut self, messages: &[Message]) -> Result<Vec<Response>, Errno> {
        let first = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        for message in messages {
            self.sequence = self.sequence.wrapping_add(1);
            encode(message, self.sequence, &mut bytes);
        }
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, &bytes, SendFlags::empty(), &kernel)?;
        let mut responses = Vec::new();
        let mut buffer = vec![0; MAX_RESPONSE_BYTES];
        loop {
            match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, length)) => decode(&buffer[..length], first, messages.len(), &mut responses),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(responses),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// All items that the kernel returns for one request.
    pub(super) fn items(&mut self, request: Message) -> Result<Vec<Vec<u8>>, Errno> {
        let mut items = Vec::new();
        for response in self.request(&[request])? {
            match response.content {
                ResponseContent::Done => {}
                ResponseContent::Failed(errno) => return Err(errno),
                ResponseContent::Item(body) => items.push(body),
            }
        }
        Ok(items)
    }
}

fn encode(message: &Message, sequence: u32, bytes: &mut Vec<u8>) {
    // A message contains a few rules or ports, far below the limit of the format.
    let length = u32::try_from(HEADER_LEN + message.body.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&length.to_ne_bytes());
    bytes.extend_from_slice(&message.kind.to_ne_bytes());
    bytes.extend_from_slice(&(message.flags | REQUEST).to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&0_u32.to_ne_bytes());
    bytes.extend_from_slice(&message.body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// Decodes responses. Those that do not belong to the `count` messages from sequence number `first` on are skipped.
fn decode(mut bytes: &[u8], first: u32, count: usize, responses: &mut Vec<Response>) {
    while let Some(header) = bytes.get(..HEADER_LEN) {
        let number = |at: usize| {
            let bytes = header.get(at..at + 4).and_then(|four| four.try_into().ok());
            u32::from_ne_bytes(bytes.unwrap_or_default())
        };
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let length = usize::try_from(number(0)).unwrap_or(usize::MAX);
        let Some(body) = bytes.get(HEADER_LEN..length) else {
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
                    0.. => ResponseContent::Done,
                    code => ResponseContent::Failed(Errno::from_raw_os_error(-code)),
                }
            }
            _ => ResponseContent::Item(body.to_vec()),
        };
        responses.push(Response { position, content });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_survive_encoding() {
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
    fn truncated_attributes_end_the_list() {
        let bytes = Attributes::new().number(1, 1).number(2, 2).into_bytes();
        for length in 0..bytes.len() {
            assert_eq!(attributes(&bytes[..length]).count(), length / 8);
        }
        // A length that is smaller than its own field.
        assert_eq!(attributes(&[1, 0, 1, 0, 0, 0]).count(), 0);
    }

    #[test]
    fn responses_are_matched_to_their_requests() {
        let response = |kind, sequence, body: &[u8]| {
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
        let mut bytes = response(KIND_ERROR, 11, &(-1_i32).to_ne_bytes());
        bytes.extend(response(77, 10, &[1, 2, 3]));
        bytes.extend(response(KIND_DONE, 10, &0_i32.to_ne_bytes()));
        // The response to an earlier request.
        bytes.extend(response(KIND_DONE, 9, &0_i32.to_ne_bytes()));
        let mut responses = Vec::new();
        decode(&bytes, 10, 2, &mut responses);
        let contents: Vec<_> = responses
            .into_iter()
            .map(|response| (response.position, response.content))
            .collect();
        assert_eq!(
            contents,
            [
                (1, ResponseContent::Failed(Errno::PERM)),
                (0, ResponseContent::Item(vec![1, 2, 3])),
                (0, ResponseContent::Done),
            ]
        );
        for length in 0..bytes.len() {
            decode(&bytes[..length], 10, 2, &mut Vec::new());
        }
    }
}
