//! Datagrams inside a byte stream.
//!
//! A frame is a length of four bytes, big-endian, and that many bytes: a type byte and its content.
//!
//! | type byte | content |
//! |---|---|
//! | 0 | the payload, to or from the connected peer |
//! | 4 | address (4), port (2), the payload |
//! | 6 | address (16), scope (4), port (2), the payload |
//! | 255 | an error number (4): the pending error of the socket, which the next call on it would return |

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::{Error, Result};

/// The maximum payload. UDP allows up to 65,507 bytes; a Unix datagram may be longer.
pub const MAX_DATAGRAM_BYTES: usize = 256 * 1024;

const PLAIN: u8 = 0;
const IPV4: u8 = 4;
const IPV6: u8 = 6;
const FAILED: u8 = 255;

const LENGTH_BYTES: usize = 4;
const MAX_HEAD: usize = 1 + 16 + 4 + 2;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Datagram {
    Payload {
        /// The destination or the source. `None` on a connected socket.
        address: Option<SocketAddr>,
        payload: Bytes,
    },
    /// The socket reported this error number.
    Failed(i32),
}

impl Datagram {
    /// Appends the frame.
    pub fn encode(&self, frames: &mut BytesMut) {
        match self {
            Self::Payload { address, payload } => encode_payload(*address, payload, frames),
            Self::Failed(number) => {
                frames.put_u32(5);
                frames.put_u8(FAILED);
                frames.put_i32(*number);
            }
        }
    }
}

fn encode_payload(address: Option<SocketAddr>, payload: &[u8], frames: &mut BytesMut) {
    frames.reserve(LENGTH_BYTES + MAX_HEAD + payload.len());
    let start = frames.len();
    frames.put_u32(0);
    match address {
        None => frames.put_u8(PLAIN),
        Some(SocketAddr::V4(address)) => {
            frames.put_u8(IPV4);
            frames.put_slice(&address.ip().octets());
            frames.put_u16(address.port());
        }
        Some(SocketAddr::V6(address)) => {
            frames.put_u8(IPV6);
            frames.put_slice(&address.ip().octets());
            frames.put_u32(address.scope_id());
            frames.put_u16(address.port());
        }
    }
    frames.put_slice(payload);
    let length = frames.len() - start - LENGTH_BYTES;
    // The receiver rejects a datagram whose length does not fit into four bytes, because it exceeds the maximum.
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    frames[start..start + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
}

/// Decodes the datagrams in a byte stream, whose chunks need not align with frames.
#[derive(Debug, Default)]
pub struct DatagramDecoder {
    received: BytesMut,
}

impl DatagramDecoder {
    /// Adds received bytes. The buffer has at most one frame and the bytes pushed since
    /// [`next_datagram`](Self::next_datagram) last returned `None`.
    pub fn push(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// The next datagram, if it is complete. After an error, the rest of the stream cannot be decoded.
    pub fn next_datagram(&mut self) -> Result<Option<Datagram>> {
        let Some(length) = self.received.first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length);
        let length_bytes = usize::try_from(length).unwrap_or(usize::MAX);
        if length_bytes > MAX_DATAGRAM_BYTES + MAX_HEAD {
            return Err(Error::DatagramTooLong(length.into()));
        }
        if self.received.len() < LENGTH_BYTES + length_bytes {
            return Ok(None);
        }
        self.received.advance(LENGTH_BYTES);
        decode(self.received.split_to(length_bytes).freeze()).map(Some)
    }
}

fn decode(mut frame: Bytes) -> Result<Datagram> {
    const SHORT: Error = Error::BadDatagram("it ends early");
    let address = match frame.try_get_u8().map_err(|_| SHORT)? {
        PLAIN => None,
        IPV4 => {
            let ip = Ipv4Addr::from(frame.try_get_u32().map_err(|_| SHORT)?);
            let port = frame.try_get_u16().map_err(|_| SHORT)?;
            Some(SocketAddrV4::new(ip, port).into())
        }
        IPV6 => {
            let ip = Ipv6Addr::from(frame.try_get_u128().map_err(|_| SHORT)?);
            let scope = frame.try_get_u32().map_err(|_| SHORT)?;
            let port = frame.try_get_u16().map_err(|_| SHORT)?;
            Some(SocketAddrV6::new(ip, port, 0, scope).into())
        }
        FAILED => {
            return frame.try_get_i32().map(Datagram::Failed).map_err(|_| SHORT);
        }
        _ => return Err(Error::BadDatagram("it is of an unknown kind")),
    };
    Ok(Datagram::Payload {
        address,
        payload: frame,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> Vec<Datagram> {
        let payload = |address: Option<&str>, payload: &[u8]| Datagram::Payload {
            address: address.map(|text| text.parse().unwrap()),
            payload: Bytes::copy_from_slice(payload),
        };
        vec![
            payload(None, b"hello"),
            payload(None, b""),
            payload(Some("192.0.2.1:53"), b"query"),
            payload(Some("[2001:db8::1]:53"), b""),
            payload(Some("[fe80::1%7]:65535"), &[0xff; 3000]),
            Datagram::Failed(111),
        ]
    }

    #[test]
    fn datagrams_are_decoded_from_chunks_of_any_size() {
        let mut stream = BytesMut::new();
        for datagram in examples() {
            datagram.encode(&mut stream);
        }
        for size in [1, 2, 3, 7, 64, stream.len()] {
            let mut decoder = DatagramDecoder::default();
            let mut found = Vec::new();
            for chunk in stream.chunks(size) {
                decoder.push(chunk);
                while let Some(datagram) = decoder.next_datagram().unwrap() {
                    found.push(datagram);
                }
            }
            assert_eq!(found, examples(), "in chunks of {size}");
        }
    }

    #[test]
    fn malformed_frames_are_rejected() {
        let check = |stream: &[u8], expected: &str| {
            let mut decoder = DatagramDecoder::default();
            decoder.push(stream);
            let error = decoder.next_datagram().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(&[0xff, 0xff, 0xff, 0xff], "exceeds the maximum");
        check(&[0, 0, 0, 0], "ends early");
        check(&[0, 0, 0, 3, IPV4, 1, 2], "ends early");
        check(&[0, 0, 0, 2, FAILED, 1], "ends early");
        check(&[0, 0, 0, 1, 9], "unknown kind");
    }
}
