//! The holder of a port, stored in the kernel with the rules.
//!
//! Only processes with NET_ADMIN in a network can read this data. So a secret in it authenticates both sides: a peer that
//! knows it could redirect the port itself, and the process that listens on the endpoint is the one that redirects it. The
//! secret is never sent. Each side proves that it knows it with an HMAC of two nonces that are new for each handshake.

use std::fmt;

use ring::hmac;

/// The kernel stores up to 256 bytes of user data with a table.
const MAX_BYTES: usize = 256;
/// The user data of a table is a list of a kind, a length, and that many bytes. The kinds that `nft` uses are low numbers.
const COMMENT: u8 = 0;
/// An incompatible change of the handshake needs a new number, so that agents of other releases find no endpoint.
const PEER_ENDPOINT: u8 = 78;

const NAME_LEN: usize = 8;
const SECRET_LEN: usize = 16;

/// The agent that redirects a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    /// A name for the errors of other agents.
    pub(crate) name: String,
    /// The endpoint where other agents can join. None if the holder does not share the port.
    pub(crate) peer_endpoint: Option<PeerEndpoint>,
}

/// Where other agents of the network connect to the holder: the name of a Unix socket, and the secret for its handshake.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PeerEndpoint {
    name: [u8; NAME_LEN],
    secret: [u8; SECRET_LEN],
}

impl PeerEndpoint {
    /// An endpoint with a random name and secret.
    pub(crate) fn new() -> Self {
        Self {
            name: rand::random(),
            secret: rand::random(),
        }
    }

    /// The abstract name of the socket. It is not a secret.
    pub(crate) fn socket_name(&self) -> String {
        format!("standin-{:016x}", u64::from_be_bytes(self.name))
    }

    /// The proof that the given side of a handshake knows the secret.
    pub(crate) fn proof(&self, role: Role, handshake: &Handshake) -> [u8; PROOF_LEN] {
        let proof = hmac::sign(&self.key(), &handshake.message(role));
        let mut bytes = [0; PROOF_LEN];
        for (byte, from) in bytes.iter_mut().zip(proof.as_ref()) {
            *byte = *from;
        }
        bytes
    }

    /// Whether the proof of the other side is valid. The comparison takes constant time.
    pub(crate) fn verify(
        &self,
        role: Role,
        handshake: &Handshake,
        proof: &[u8; PROOF_LEN],
    ) -> bool {
        hmac::verify(&self.key(), &handshake.message(role), proof).is_ok()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.secret)
    }
}

/// The length of a proof.
pub(crate) const PROOF_LEN: usize = 32;

/// A side of the handshake. The proof of one side is not valid for the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The agent that redirects the port.
    Holder,
    /// The agent that connects.
    Joiner,
}

/// A fresh nonce from each side.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Handshake {
    pub(crate) holder_nonce: [u8; 16],
    pub(crate) joiner_nonce: [u8; 16],
}

impl Handshake {
    /// The message that is signed.
    fn message(&self, role: Role) -> Vec<u8> {
        let role: &[u8] = match role {
            Role::Holder => b"holder",
            Role::Joiner => b"joiner",
        };
        [role, &self.holder_nonce, &self.joiner_nonce].concat()
    }
}

impl fmt::Debug for PeerEndpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PeerEndpoint")
    }
}

impl Holder {
    /// Encodes the user data of a table. `nft` shows the name as a comment. It is truncated to fit.
    pub(super) fn to_user_data(&self) -> Vec<u8> {
        let mut data = Vec::new();
        let mut part = |kind: u8, value: &[u8]| {
            data.push(kind);
            data.push(u8::try_from(value.len()).unwrap_or(u8::MAX));
            data.extend_from_slice(value);
        };
        let peer_endpoint = self.peer_endpoint.map(|endpoint| {
            let parts = [&endpoint.name[..], &endpoint.secret];
            parts.concat()
        });
        let others = peer_endpoint.as_ref().map_or(0, |bytes| 2 + bytes.len());
        // Two bytes of header, and a terminating zero.
        let mut end = self.name.len().min(MAX_BYTES - others - 3);
        while !self.name.is_char_boundary(end) {
            end -= 1;
        }
        part(COMMENT, &[&self.name.as_bytes()[..end], &[0]].concat());
        if let Some(bytes) = peer_endpoint {
            part(PEER_ENDPOINT, &bytes);
        }
        data
    }

    /// Decodes the user data of a table, up to the first truncated part.
    pub(super) fn from_user_data(mut data: &[u8]) -> Self {
        let mut holder = Self {
            name: "another agent".to_owned(),
            peer_endpoint: None,
        };
        while let [kind, length, rest @ ..] = data {
            let Some((value, rest)) = rest.split_at_checked(usize::from(*length)) else {
                break;
            };
            data = rest;
            match *kind {
                COMMENT => {
                    let text = value.strip_suffix(&[0]).unwrap_or(value);
                    holder.name = String::from_utf8_lossy(text).into_owned();
                }
                PEER_ENDPOINT => holder.peer_endpoint = decode_endpoint(value),
                _ => {}
            }
        }
        holder
    }
}

fn decode_endpoint(value: &[u8]) -> Option<PeerEndpoint> {
    let (name, secret) = value.split_first_chunk()?;
    Some(PeerEndpoint {
        name: *name,
        secret: secret.try_into().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_survives_encoding() {
        let check = |name: &str, expected: &str, peer_endpoint: Option<PeerEndpoint>| {
            let holder = Holder {
                name: name.to_owned(),
                peer_endpoint,
            };
            let data = holder.to_user_data();
            assert!(data.len() <= MAX_BYTES);
            let read = Holder::from_user_data(&data);
            assert_eq!(read.name, expected);
            assert_eq!(read.peer_endpoint, peer_endpoint);
            for length in 0..data.len() {
                Holder::from_user_data(&data[..length]);
            }
        };
        for endpoint in [None, Some(PeerEndpoint::new())] {
            check("Ada", "Ada", endpoint);
            check("", "", endpoint);
        }
        // Truncated at a character boundary.
        let long = "ü".repeat(200);
        check(&long, &"ü".repeat(126), None);
        check(&long, &"ü".repeat(113), Some(PeerEndpoint::new()));
    }

    #[test]
    fn secrets_are_hidden_and_a_proof_is_valid_for_one_side_of_one_handshake() {
        let endpoint = PeerEndpoint::new();
        assert_eq!(format!("{endpoint:?}"), "PeerEndpoint");
        let handshake = Handshake::default();
        let proof = endpoint.proof(Role::Holder, &handshake);
        assert!(endpoint.verify(Role::Holder, &handshake, &proof));
        assert!(!endpoint.verify(Role::Joiner, &handshake, &proof));
        assert!(!PeerEndpoint::new().verify(Role::Holder, &handshake, &proof));
        for other in [
            Handshake {
                holder_nonce: [1; 16],
                ..handshake
            },
            Handshake {
                joiner_nonce: [1; 16],
                ..handshake
            },
        ] {
            assert!(!endpoint.verify(Role::Holder, &other, &proof));
        }
    }
}
