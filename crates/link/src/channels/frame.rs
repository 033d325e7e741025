//! The frames of channels: one byte for the kind, four for the channel number, and the body.

use std::io::{self, IoSlice};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

const DATA: u8 = 0;
const OPEN: u8 = 1;
const CLOSE: u8 = 2;
const CREDIT: u8 = 3;
const MESSAGE: u8 = 4;
const FINISHED: u8 = 5;

const HEADER: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Data {
        channel: u32,
        bytes: Bytes,
    },
    Open {
        channel: u32,
        endpoint: u32,
    },
    /// The reason is empty for a regular end.
    Close {
        channel: u32,
        why: String,
    },
    /// This many more bytes may be sent.
    Credit {
        channel: u32,
        bytes: u32,
    },
    Message(Bytes),
    Finished,
}

impl Frame {
    pub(super) fn encode(&self) -> Bytes {
        let whole = |kind: u8, channel: u32, rest: &[u8]| {
            let mut bytes = BytesMut::with_capacity(HEADER + rest.len());
            bytes.put_u8(kind);
            bytes.put_u32(channel);
            bytes.put_slice(rest);
            bytes.freeze()
        };
        match self {
            Self::Data { channel, bytes } => whole(DATA, *channel, bytes),
            Self::Open { channel, endpoint } => whole(OPEN, *channel, &endpoint.to_be_bytes()),
            Self::Close { channel, why } => whole(CLOSE, *channel, why.as_bytes()),
            Self::Credit { channel, bytes } => whole(CREDIT, *channel, &bytes.to_be_bytes()),
            Self::Message(message) => whole(MESSAGE, 0, message),
            Self::Finished => whole(FINISHED, 0, &[]),
        }
    }

    pub(super) fn decode(mut bytes: Bytes) -> io::Result<Self> {
        if bytes.len() < HEADER {
            return Err(super::invalid_data("a frame is too short"));
        }
        let (kind, channel) = (bytes.get_u8(), bytes.get_u32());
        let number = |bytes: &Bytes| {
            let number: [u8; 4] = bytes
                .as_ref()
                .try_into()
                .map_err(|_| super::invalid_data("a frame has the wrong length"))?;
            Ok::<_, io::Error>(u32::from_be_bytes(number))
        };
        Ok(match kind {
            DATA => Self::Data { channel, bytes },
            OPEN => Self::Open {
                channel,
                endpoint: number(&bytes)?,
            },
            CLOSE => Self::Close {
                channel,
                why: String::from_utf8_lossy(&bytes).into_owned(),
            },
            CREDIT => Self::Credit {
                channel,
                bytes: number(&bytes)?,
            },
            MESSAGE => Self::Message(bytes),
            FINISHED => Self::Finished,
            _ => return Err(super::invalid_data("a frame has an unknown kind")),
        })
    }
}

/// A data frame with the first bytes of the slices, at most `max`, and how many they are.
pub(super) fn data(channel: u32, slices: &[IoSlice<'_>], max: usize) -> (Bytes, usize) {
    let length = slices
        .iter()
        .map(|slice| slice.len())
        .sum::<usize>()
        .min(max);
    let mut frame = BytesMut::with_capacity(HEADER + length);
    frame.put_u8(DATA);
    frame.put_u32(channel);
    let mut left = length;
    for slice in slices {
        let part = &slice[..slice.len().min(left)];
        frame.put_slice(part);
        left -= part.len();
    }
    (frame.freeze(), length)
}
