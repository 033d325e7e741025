//! Who holds a port, as it is written into the kernel beside the rules.
//!
//! Only who has NET_ADMIN in a network can read what is written there. So a secret in it proves both: that whoever knows it
//! could redirect the port himself, and that whoever waits at the meeting point is the one who does. It is never said: each
//! side shows that it knows it by what it makes of two numbers that are new for each meeting.

use std::fmt;

use ring::hmac;

/// The kernel keeps up to 256 bytes with a table.
const MOST_BYTES: usize = 256;
/// The parts of a table's user data: a kind, a length, and so many bytes. Those that `nft` writes have low numbers.
const COMMENT: u8 = 0;
/// Another one when agents meet in another way: one of another release then finds no meeting point.
const MEETING_POINT: u8 = 78;

const NAME_BYTES: usize = 8;
const SECRET_BYTES: usize = 16;

/// Who holds a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    /// In words, for the one who is refused because of it.
    pub(crate) name: String,
    /// Where he can be asked to share it.
    pub(crate) meeting_point: Option<MeetingPoint>,
}

/// Where agents of one network find each other: a socket with a name that only they know how to use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MeetingPoint {
    name: [u8; NAME_BYTES],
    secret: [u8; SECRET_BYTES],
}

impl MeetingPoint {
    /// One that nobody has used before.
    pub(crate) fn new() -> Self {
        Self {
            name: rand::random(),
            secret: rand::random(),
        }
    }

    /// The name of the socket, which everybody can see.
    pub(crate) fn socket_name(&self) -> String {
        format!("standin-{:016x}", u64::from_be_bytes(self.name))
    }

    /// What only somebody can say who knows the secret.
    pub(crate) fn proof(&self, of: Role, meeting: &Meeting) -> [u8; PROOF_BYTES] {
        let proof = hmac::sign(&self.key(), &meeting.words(of));
        let mut bytes = [0; PROOF_BYTES];
        for (byte, from) in bytes.iter_mut().zip(proof.as_ref()) {
            *byte = *from;
        }
        bytes
    }

    /// Whether the other side knows the secret. Takes the same time wherever the proof is wrong.
    pub(crate) fn accepts(&self, of: Role, meeting: &Meeting, proof: &[u8; PROOF_BYTES]) -> bool {
        hmac::verify(&self.key(), &meeting.words(of), proof).is_ok()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.secret)
    }
}

/// The length of a proof.
pub(crate) const PROOF_BYTES: usize = 32;

/// Which side of a meeting somebody is: what the one proves is worth nothing for the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Who redirects the port.
    Holder,
    /// Who comes.
    Joiner,
}

/// A number from each side, which nobody has used before.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Meeting {
    pub(crate) holders: [u8; 16],
    pub(crate) joiners: [u8; 16],
}

impl Meeting {
    fn words(&self, of: Role) -> Vec<u8> {
        let role: &[u8] = match of {
            Role::Holder => b"holder",
            Role::Joiner => b"joiner",
        };
        [role, &self.holders, &self.joiners].concat()
    }
}

impl fmt::Debug for MeetingPoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("MeetingPoint")
    }
}

impl Holder {
    /// As the user data of a table. The name is what `nft` shows as its comment, cut where there is no more room.
    pub(super) fn to_user_data(&self) -> Vec<u8> {
        let mut data = Vec::new();
        let mut part = |kind: u8, value: &[u8]| {
            data.push(kind);
            data.push(u8::try_from(value.len()).unwrap_or(u8::MAX));
            data.extend_from_slice(value);
        };
        let meeting_point = self.meeting_point.map(|point| {
            let parts = [&point.name[..], &point.secret];
            parts.concat()
        });
        let others = meeting_point.as_ref().map_or(0, |bytes| 2 + bytes.len());
        // A header of two bytes and a zero at the end.
        let mut end = self.name.len().min(MOST_BYTES - others - 3);
        while !self.name.is_char_boundary(end) {
            end -= 1;
        }
        part(COMMENT, &[&self.name.as_bytes()[..end], &[0]].concat());
        if let Some(bytes) = meeting_point {
            part(MEETING_POINT, &bytes);
        }
        data
    }

    /// Reads the user data of a table. What is cut short ends it.
    pub(super) fn from_user_data(mut data: &[u8]) -> Self {
        let mut holder = Self {
            name: "another agent".to_owned(),
            meeting_point: None,
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
                MEETING_POINT => holder.meeting_point = meeting_point(value),
                _ => {}
            }
        }
        holder
    }
}

fn meeting_point(value: &[u8]) -> Option<MeetingPoint> {
    let (name, secret) = value.split_first_chunk()?;
    Some(MeetingPoint {
        name: *name,
        secret: secret.try_into().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_read_back() {
        let check = |name: &str, expected: &str, meeting_point: Option<MeetingPoint>| {
            let holder = Holder {
                name: name.to_owned(),
                meeting_point,
            };
            let data = holder.to_user_data();
            assert!(data.len() <= MOST_BYTES);
            let read = Holder::from_user_data(&data);
            assert_eq!(read.name, expected);
            assert_eq!(read.meeting_point, meeting_point);
            for length in 0..data.len() {
                Holder::from_user_data(&data[..length]);
            }
        };
        for point in [None, Some(MeetingPoint::new())] {
            check("Ada", "Ada", point);
            check("", "", point);
        }
        // Cut where a letter ends.
        let long = "ü".repeat(200);
        check(&long, &"ü".repeat(126), None);
        check(&long, &"ü".repeat(113), Some(MeetingPoint::new()));
    }

    #[test]
    fn a_secret_is_never_shown_and_a_proof_is_good_for_one_side_of_one_meeting() {
        let point = MeetingPoint::new();
        assert_eq!(format!("{point:?}"), "MeetingPoint");
        let meeting = Meeting::default();
        let proof = point.proof(Role::Holder, &meeting);
        assert!(point.accepts(Role::Holder, &meeting, &proof));
        assert!(!point.accepts(Role::Joiner, &meeting, &proof));
        assert!(!MeetingPoint::new().accepts(Role::Holder, &meeting, &proof));
        for other in [
            Meeting {
                holders: [1; 16],
                ..meeting
            },
            Meeting {
                joiners: [1; 16],
                ..meeting
            },
        ] {
            assert!(!point.accepts(Role::Holder, &other, &proof));
        }
    }
}
