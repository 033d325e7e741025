//! An answer of a nameserver: how long it may be kept, what it says of addresses, and how it reads for somebody who
//! asks the same later.
//!
//! The bytes stay what the nameserver sent. Only what belongs to one asker is written over: the id, the letters of the
//! question, and the seconds that records still live.

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use protocol::dns::Query;
use protocol::dns::message::{self, Record, Section, code, kind};

/// What a datagram may hold when the asker does not say.
const PLAIN_ROOM: usize = 512;
const LARGEST_DATAGRAM: usize = 65_507;
const HEADER: usize = 12;

/// Nothing is kept longer, whatever a nameserver says: a session sees a change at the target within this time.
const LONGEST: Duration = Duration::from_secs(300);
/// A failure is kept just so long that an asker who tries again at once does not wait again.
const FAILURE: Duration = Duration::from_secs(1);

/// How a message travels between the application and us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    Datagram,
    Stream,
}

#[derive(Debug)]
pub(crate) struct Answer {
    bytes: Bytes,
    /// Where the seconds of records are.
    seconds: Vec<(usize, u32)>,
    /// Where the records of the answer proper end, one after the other.
    ends: Vec<usize>,
    /// The record that says that we speak EDNS.
    options: Option<Range<usize>>,
    lifetime: Option<Duration>,
    addresses: Vec<Resolved>,
}

/// An address, and all names that led to it: the one that was asked for first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub(crate) address: IpAddr,
    pub(crate) names: Vec<String>,
}

impl Answer {
    /// What a nameserver said to `query`.
    pub(crate) fn new(query: &Query, bytes: Bytes) -> Self {
        let records = message::records(&bytes).unwrap_or_default();
        let plain = |record: &&Record| record.kind != kind::OPT;
        let seconds = records.iter().filter(plain);
        let options = records.iter().find(|record| record.kind == kind::OPT);
        Self {
            seconds: seconds
                .map(|record| (record.seconds_at, record.seconds))
                .collect(),
            ends: of_answer(&records).map(|record| record.range.end).collect(),
            options: options.map(|record| record.range.clone()),
            lifetime: lifetime(query, &bytes, &records),
            addresses: addresses(query, &bytes, &records),
            bytes,
        }
    }

    /// An answer of our own: only a code.
    pub(crate) fn of_code(query: &Query, code: u8) -> Self {
        let question = query.message().get(..query.question_range().end);
        let mut bytes = question.unwrap_or_default().to_vec();
        if let Some(header) = bytes.first_chunk_mut::<HEADER>() {
            set_response(header, code);
            header[4..].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
        }
        Self::new(query, bytes.into())
    }

    /// How long it may be kept.
    pub(crate) fn lifetime(&self) -> Option<Duration> {
        self.lifetime
    }

    pub(crate) fn code(&self) -> u8 {
        message::code(&self.bytes).unwrap_or(code::SERVER_FAILED)
    }

    pub(crate) fn addresses(&self) -> &[Resolved] {
        &self.addresses
    }

    pub(crate) fn size(&self) -> usize {
        let names = self.addresses.iter().flat_map(|resolved| &resolved.names);
        let names: usize = names.map(String::len).sum();
        size_of::<Self>() + self.bytes.len() + self.seconds.len() * 24 + names
    }

    /// As it reads for an asker, this long after it came.
    pub(crate) fn for_asker(&self, query: &Query, age: Duration, carrier: Carrier) -> Vec<u8> {
        let mut bytes = self.bytes.to_vec();
        let age = u32::try_from(age.as_secs()).unwrap_or(u32::MAX);
        for (at, seconds) in &self.seconds {
            if let Some(place) = bytes.get_mut(*at..at + 4) {
                place.copy_from_slice(&seconds.saturating_sub(age).to_be_bytes());
            }
        }
        let asked = query.message().get(query.question_range());
        if let (Some(ours), Some(asked)) = (bytes.get_mut(query.question_range()), asked)
            && ours.eq_ignore_ascii_case(asked)
        {
            ours.copy_from_slice(asked);
        }
        let bytes = query.finish(bytes);
        match (carrier, room(query)) {
            (Carrier::Datagram, room) if bytes.len() > room => self.cut(query, &bytes, room),
            _ => bytes,
        }
    }

    /// What is sent of an answer that is too large for a datagram: as many records as fit, because some askers know
    /// nothing better, and that it was cut, so that the others come back with TCP.
    fn cut(&self, query: &Query, bytes: &[u8], room: usize) -> Vec<u8> {
        let has_question = bytes.get(4..6) == Some(&[0, 1]);
        let start = match has_question {
            true => query.question_range().end,
            false => HEADER,
        };
        let options = self.options.clone().and_then(|range| bytes.get(range));
        let options = options.unwrap_or_default();
        let fits = |end: &&usize| **end + options.len() <= room;
        let count = self.ends.iter().take_while(fits).count();
        let end = count.checked_sub(1).and_then(|last| self.ends.get(last));
        let mut cut = bytes
            .get(..*end.unwrap_or(&start))
            .unwrap_or_default()
            .to_vec();
        if let Some(header) = cut.first_chunk_mut::<HEADER>() {
            header[2] |= 0x02;
            let count = u16::try_from(count).unwrap_or(0).to_be_bytes();
            let options = u8::from(self.options.is_some());
            header[6..].copy_from_slice(&[count[0], count[1], 0, 0, 0, options]);
        }
        cut.extend_from_slice(options);
        cut
    }
}

/// An answer to something that is no question, if it has at least a header.
pub(crate) fn malformed(message: &[u8]) -> Option<Vec<u8>> {
    let mut header = *message.first_chunk::<HEADER>()?;
    if header[2] & 0x80 != 0 {
        return None;
    }
    set_response(&mut header, code::FORMAT_ERROR);
    header[4..].fill(0);
    Some(header.to_vec())
}

/// Keeps the id, the operation and whether recursion is desired.
fn set_response(header: &mut [u8; HEADER], code: u8) {
    header[2] = header[2] & 0x79 | 0x80;
    header[3] = 0x80 | code;
}

/// The largest datagram that the asker takes.
fn room(query: &Query) -> usize {
    let records = message::records(query.message()).unwrap_or_default();
    let options = records.iter().find(|record| record.kind == kind::OPT);
    options.map_or(PLAIN_ROOM, |options| {
        usize::from(options.class).clamp(PLAIN_ROOM, LARGEST_DATAGRAM)
    })
}

fn lifetime(query: &Query, bytes: &[u8], records: &[Record]) -> Option<Duration> {
    let header = bytes.first_chunk::<HEADER>()?;
    let is_plain_question = header[2] & 0x78 == 0;
    let is_cut = header[2] & 0x02 != 0;
    if !is_plain_question || is_cut {
        return None;
    }
    let answers = || of_answer(records);
    let seconds = match message::code(bytes)? {
        code::SERVER_FAILED => return Some(FAILURE),
        code::NO_ERROR if answers().any(|record| record.kind == query.kind()) => None,
        code::NO_ERROR | code::NO_NAME => Some(negative_seconds(bytes, records)?),
        _ => return None,
    };
    let seconds = answers()
        .map(|record| sane(record.seconds))
        .chain(seconds)
        .min()?;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()).min(LONGEST))
}

fn of_answer(records: &[Record]) -> impl Iterator<Item = &Record> {
    let is_answer = |record: &&Record| record.section == Section::Answer;
    records.iter().filter(is_answer)
}

/// How long it holds that there is nothing: the zone says it. Without a word of the zone, it holds only now.
fn negative_seconds(bytes: &[u8], records: &[Record]) -> Option<u32> {
    let zone = records
        .iter()
        .find(|record| record.section == Section::Authority && record.kind == kind::SOA)?;
    let minimum = bytes.get(zone.data.clone())?.last_chunk::<4>()?;
    Some(sane(zone.seconds).min(sane(u32::from_be_bytes(*minimum))))
}

/// Seconds with the highest bit set mean none.
fn sane(seconds: u32) -> u32 {
    if seconds > i32::MAX.unsigned_abs() {
        0
    } else {
        seconds
    }
}

/// The addresses of the answer. Aliases are followed from the name that was asked for; each name on the way leads to
/// the address.
fn addresses(query: &Query, bytes: &[u8], records: &[Record]) -> Vec<Resolved> {
    let owner = |record: &Record| message::name_at(bytes, record.range.start);
    let answers = || of_answer(records);
    let mut chain = vec![query.name().to_ascii_lowercase()];
    // An alias that leads back to itself must end, too.
    for _ in 0..records.len() {
        let Some(last) = chain.last() else { break };
        let alias = answers()
            .filter(|record| record.kind == kind::CNAME)
            .find(|record| owner(record).is_some_and(|owner| owner.eq_ignore_ascii_case(last)));
        let next = alias.and_then(|record| message::name_at(bytes, record.data.start));
        match next.map(|name| name.to_ascii_lowercase()) {
            Some(name) if !chain.contains(&name) => chain.push(name),
            _ => break,
        }
    }
    let resolved = |record: &Record| {
        let address = record.address(bytes)?;
        let owner = owner(record)?.to_ascii_lowercase();
        let names = match chain.iter().position(|name| *name == owner) {
            Some(position) => chain.get(..=position)?.to_vec(),
            None => vec![owner],
        };
        Some(Resolved { address, names })
    };
    answers().filter_map(resolved).collect()
}

#[cfg(test)]
pub(crate) mod tests;
