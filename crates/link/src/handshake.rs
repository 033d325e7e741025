//! The handshake: the first message of each end on a new connection.
//!
//! The client sends HELLO with the link ID, the offset up to which it has received, the resume window that it requests, and
//! a token. The server responds with WELCOME and its own position, or with REFUSE and a reason. Both ends then know at which
//! offset each stream continues, and frames follow.
//!
//! A handshake message starts with ten bytes that are the same in every version of the protocol: `SLNK`, the version (2),
//! the kind (1), a zero, and the length of the body (2). So each version can parse the messages of every other, and report
//! the mismatch. The bodies of HELLO and WELCOME depend on the version; that of REFUSE never changes.

use std::fmt;
use std::time::Duration;

use crate::error::{LinkError, Malformed};
use crate::frame::{MAX_TEXT, readable, truncated};

/// The version of the protocol that this crate implements.
pub const VERSION: u16 = 1;
/// Maximum length of a token, in bytes.
pub const MAX_TOKEN: usize = 8 * 1024;

pub(crate) const PREAMBLE: usize = 10;
const MAGIC: [u8; 4] = *b"SLNK";
const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSE: u8 = 3;
const HELLO_FIXED: usize = 16 + 4 + 1 + POSITION + 4;
const WELCOME_LENGTH: usize = POSITION + 4;
const POSITION: usize = 8 + 8 + 4;

/// The ID of a link. It is random, so that no client can guess the ID of another client's link.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkId(pub(crate) [u8; 16]);

impl LinkId {
    pub(crate) fn random() -> Self {
        Self(rand::random())
    }
}

impl fmt::Display for LinkId {
    /// The first four bytes: enough to distinguish links in a log, and not enough to take one over.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(formatter, "{:08x}", u32::from_be_bytes([a, b, c, d]))
    }
}

impl fmt::Debug for LinkId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "LinkId({self})")
    }
}

/// A client's credential. It is never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl Token {
    /// Tokens longer than [`MAX_TOKEN`] are rejected here, so that encoding cannot fail later.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, LinkError> {
        let bytes = bytes.into();
        if bytes.len() > MAX_TOKEN {
            let text = format!("it has more than {MAX_TOKEN} bytes");
            return Err(LinkError::WrongToken { text });
        }
        Ok(Self(bytes))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Token({} bytes)", self.0.len())
    }
}

/// The receive position of one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// The offset of the first byte that has not been received.
    pub(crate) received: u64,
    /// The offset of the first byte for which there is no room yet.
    pub(crate) limit: u64,
    /// The size of this end's replay buffer. The peer must acknowledge bytes before it is full.
    pub(crate) replay_capacity: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) id: LinkId,
    /// Counts the client's attempts to connect, so that a delayed connection does not replace a newer one.
    pub(crate) attempt: u32,
    /// The client has never received WELCOME: the server may create the link if it does not exist.
    pub(crate) fresh: bool,
    pub(crate) position: Position,
    /// The requested resume window.
    pub(crate) window: Duration,
    pub(crate) token: Token,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) position: Position,
    /// The granted resume window.
    pub(crate) window: Duration,
}

/// Why a server refuses a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The body is empty; the preamble contains the server's version.
    Version,
    Token(String),
    StateLost,
    WindowExpired(Duration),
    /// The link was aborted while the client was disconnected.
    Aborted(crate::Abort),
    /// Both streams had ended, and everything was delivered.
    Finished,
    /// The link has a newer connection.
    Superseded,
    Other(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HandshakeResponse {
    Welcome(Welcome),
    Refuse { refusal: Refusal, version: u16 },
}

/// The first bytes of a handshake message, which every version can parse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub(crate) version: u16,
    kind: u8,
    /// The length of the body. At most a few bytes more than [`MAX_TOKEN`].
    pub(crate) length: usize,
}

impl Preamble {
    pub(crate) fn decode(bytes: &[u8; PREAMBLE]) -> Result<Self, Malformed> {
        let &[a, b, c, d, version_high, version_low, kind, zero, high, low] = bytes;
        if [a, b, c, d] != MAGIC || zero != 0 {
            return Err(Malformed::NotALink);
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length > HELLO_FIXED + MAX_TOKEN {
            return Err(Malformed::HandshakeLength { kind, length });
        }
        Ok(Self {
            version: u16::from_be_bytes([version_high, version_low]),
            kind,
            length,
        })
    }

    fn bad_length(self) -> Malformed {
        Malformed::HandshakeLength {
            kind: self.kind,
            length: self.length,
        }
    }
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let token = self.token.as_bytes();
        let mut out = start(HELLO, HELLO_FIXED + token.len());
        out.extend_from_slice(&self.id.0);
        out.extend_from_slice(&self.attempt.to_be_bytes());
        out.push(u8::from(self.fresh));
        put_position(&mut out, &self.position);
        out.extend_from_slice(&milliseconds(self.window).to_be_bytes());
        out.extend_from_slice(token);
        out
    }

    /// Decodes a HELLO of this version. The caller has checked the version.
    pub(crate) fn decode(preamble: Preamble, body: &[u8]) -> Result<Self, Malformed> {
        if preamble.kind != HELLO {
            return Err(Malformed::Handshake(preamble.kind));
        }
        let decode = |mut fields: Fields<'_>| {
            Some(Self {
                id: LinkId(fields.array()?),
                attempt: fields.u32()?,
                fresh: fields.array::<1>()? != [0],
                position: fields.position()?,
                window: Duration::from_millis(fields.u32()?.into()),
                token: Token(fields.0.to_vec()),
            })
        };
        decode(Fields(body)).ok_or_else(|| preamble.bad_length())
    }
}

impl Welcome {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend(start(WELCOME, WELCOME_LENGTH));
        put_position(out, &self.position);
        out.extend_from_slice(&milliseconds(self.window).to_be_bytes());
    }
}

impl HandshakeResponse {
    pub(crate) fn decode(preamble: Preamble, body: &[u8]) -> Result<Self, Malformed> {
        match preamble.kind {
            WELCOME if preamble.version == VERSION => {
                let decode = |mut fields: Fields<'_>| {
                    Some(Welcome {
                        position: fields.position()?,
                        window: Duration::from_millis(fields.u32()?.into()),
                    })
                };
                let welcome = decode(Fields(body)).filter(|_| body.len() == WELCOME_LENGTH);
                let welcome = welcome.ok_or_else(|| preamble.bad_length())?;
                Ok(Self::Welcome(welcome))
            }
            WELCOME => Ok(Self::Refuse {
                refusal: Refusal::Version,
                version: preamble.version,
            }),
            REFUSE => {
                let refusal = Refusal::decode(body).ok_or_else(|| preamble.bad_length())?;
                Ok(Self::Refuse {
                    refusal,
                    version: preamble.version,
                })
            }
            kind => Err(Malformed::Handshake(kind)),
        }
    }
}

impl Refusal {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (code, number, text) = match self {
            Self::Version => (1, 0, ""),
            Self::Token(text) => (2, 0, text.as_str()),
            Self::StateLost => (3, 0, ""),
            Self::WindowExpired(window) => (4, milliseconds(*window), ""),
            Self::Aborted(abort) => (5, abort.code.into(), abort.text.as_str()),
            Self::Finished => (6, 0, ""),
            Self::Superseded => (7, 0, ""),
            Self::Other(text) => (8, 0, text.as_str()),
        };
        let text = truncated(text);
        let mut out = start(REFUSE, 1 + 4 + text.len());
        out.push(code);
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(text.as_bytes());
        out
    }

    fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let [code] = fields.array()?;
        let number = fields.u32()?;
        if fields.0.len() > MAX_TEXT {
            return None;
        }
        let text = readable(fields.0);
        Some(match code {
            1 => Self::Version,
            2 => Self::Token(text),
            3 => Self::StateLost,
            4 => Self::WindowExpired(Duration::from_millis(number.into())),
            5 => Self::Aborted(crate::Abort {
                // Codes have two bytes; the upper two are zero.
                code: number as u16,
                text,
            }),
            6 => Self::Finished,
            7 => Self::Superseded,
            // A later version may have more reasons. Their text is still shown.
            _ => Self::Other(text),
        })
    }
}

fn start(kind: u8, length: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREAMBLE + length);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_be_bytes());
    out.extend_from_slice(&[kind, 0]);
    // The token is the longest part, and its length is limited.
    out.extend_from_slice(&(length as u16).to_be_bytes());
    out
}

fn put_position(out: &mut Vec<u8>, position: &Position) {
    out.extend_from_slice(&position.received.to_be_bytes());
    out.extend_from_slice(&position.limit.to_be_bytes());
    out.extend_from_slice(&position.replay_capacity.to_be_bytes());
}

fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

/// Decodes fields of fixed size from the front of a body.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const LENGTH: usize>(&mut self) -> Option<[u8; LENGTH]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn position(&mut self) -> Option<Position> {
        Some(Position {
            received: self.u64()?,
            limit: self.u64()?,
            replay_capacity: self.u32()?,
        })
    }
}

#[cfg(test)]
mod tests;
