//! Who holds a port, as it is written into the kernel beside the rules.
//!
//! Only who has NET_ADMIN in a network can read what is written there. So a secret in it proves both: that whoever knows it
//! could redirect the port himself, and that whoever waits at the meeting point is the one who does.

use std::fmt;

/// The kernel keeps up to 256 bytes with a table.
const MOST_BYTES: usize = 256;
/// The parts of a table's user data: a kind, a length, and so many bytes. Those that `nft` writes have low numbers.
const COMMENT: u8 = 0;
const MEETING_POINT: u8 = 77;

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

    /// What whoever comes must say first.
    pub(crate) fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
    }

    /// Whether this is the secret. Takes the same time wherever they differ.
    pub(crate) fn accepts(&self, said: &[u8; SECRET_BYTES]) -> bool {
        let pairs = self.secret.iter().zip(said);
        let different = pairs.fold(0, |different, (own, said)| different | (own ^ said));
        std::hint::black_box(different) == 0
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
    fn a_secret_is_never_shown_and_only_itself_accepted() {
        let point = MeetingPoint::new();
        assert_eq!(format!("{point:?}"), "MeetingPoint");
        assert!(point.accepts(point.secret()));
        assert!(!point.accepts(MeetingPoint::new().secret()));
    }
}
