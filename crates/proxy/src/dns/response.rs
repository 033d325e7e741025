//! The response of a nameserver: how long it may be cached, which addresses it contains, and its form for a later client
//! with the same query.
//!
//! The bytes are those that the nameserver sent. Only the fields that belong to one client are overwritten: the ID, the
//! case of the name in the question, and the remaining TTLs.

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use protocol::dns::Query;
use protocol::dns::message::{self, Record, Section, code, kind};

/// The maximum UDP payload for a client without EDNS.
const MIN_UDP_PAYLOAD: usize = 512;
const MAX_UDP_PAYLOAD: usize = 65_507;
const HEADER_BYTES: usize = 12;

/// No response is cached longer than this, so that a session sees changes at the target within this time.
const MAX_TTL: Duration = Duration::from_secs(300);
/// How long a failure is cached: just long enough that an immediate retry does not wait again.
const FAILURE_TTL: Duration = Duration::from_secs(1);

/// The transport between the application and the resolver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DnsTransport {
    Udp,
    Tcp,
}

#[derive(Debug)]
pub(crate) struct DnsResponse {
    bytes: Bytes,
    /// The offsets of the TTLs in the message, and their values.
    ttls: Vec<(usize, u32)>,
    /// The offsets at which the records of the answer section end.
    answer_ends: Vec<usize>,
    /// The range of the EDNS record.
    opt_record: Option<Range<usize>>,
    cache_ttl: Option<Duration>,
    addresses: Vec<ResolvedAddress>,
}

/// An address, with all names that resolve to it, the queried one first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResolvedAddress {
    pub(crate) address: IpAddr,
    pub(crate) names: Vec<String>,
}

impl DnsResponse {
    /// Parses the response of a nameserver to `query`.
    pub(crate) fn new(query: &Query, bytes: Bytes) -> Self {
        let records = message::records(&bytes).unwrap_or_default();
        let has_ttl = |record: &&Record| record.kind != kind::OPT;
        let ttls = records.iter().filter(has_ttl);
        let opt_record = records.iter().find(|record| record.kind == kind::OPT);
        Self {
            ttls: ttls.map(|record| (record.ttl_at, record.ttl)).collect(),
            answer_ends: answer_records(&records)
                .map(|record| record.range.end)
                .collect(),
            opt_record: opt_record.map(|record| record.range.clone()),
            cache_ttl: cache_ttl(query, &bytes, &records),
            addresses: addresses(query, &bytes, &records),
            bytes,
        }
    }

    /// A response of the resolver itself, with only a response code.
    pub(crate) fn with_code(query: &Query, code: u8) -> Self {
        let question = query.message().get(..query.question_range().end);
        let mut bytes = question.unwrap_or_default().to_vec();
        if let Some(header) = bytes.first_chunk_mut::<HEADER_BYTES>() {
            set_response(header, code);
            header[4..].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
        }
        Self::new(query, bytes.into())
    }

    /// How long it may be cached.
    pub(crate) fn cache_ttl(&self) -> Option<Duration> {
        self.cache_ttl
    }

    pub(crate) fn code(&self) -> u8 {
        message::code(&self.bytes).unwrap_or(code::SERVER_FAILED)
    }

    pub(crate) fn addresses(&self) -> &[ResolvedAddress] {
        &self.addresses
    }

    pub(crate) fn size(&self) -> usize {
        let names = self.addresses.iter().flat_map(|resolved| &resolved.names);
        let names: usize = names.map(String::len).sum();
        size_of::<Self>() + self.bytes.len() + self.ttls.len() * 24 + names
    }

    /// The message for a client, this long after the response was received.
    pub(crate) fn for_query(
        &self,
        query: &Query,
        age: Duration,
        transport: DnsTransport,
    ) -> Vec<u8> {
        let mut bytes = self.bytes.to_vec();
        let age = u32::try_from(age.as_secs()).unwrap_or(u32::MAX);
        for (at, ttl) in &self.ttls {
            if let Some(field) = bytes.get_mut(*at..at + 4) {
                field.copy_from_slice(&ttl.saturating_sub(age).to_be_bytes());
            }
        }
        let queried = query.message().get(query.question_range());
        if let (Some(question), Some(queried)) = (bytes.get_mut(query.question_range()), queried)
            && question.eq_ignore_ascii_case(queried)
        {
            question.copy_from_slice(queried);
        }
        let bytes = query.finish(bytes);
        match (transport, max_udp_payload(query)) {
            (DnsTransport::Udp, max_bytes) if bytes.len() > max_bytes => {
                self.truncate(query, &bytes, max_bytes)
            }
            _ => bytes,
        }
    }

    /// Truncates a response that is too large for UDP. It contains as many records as fit, because some clients do not
    /// retry, and has the TC flag, so that the others retry over TCP.
    fn truncate(&self, query: &Query, bytes: &[u8], max_bytes: usize) -> Vec<u8> {
        let has_question = bytes.get(4..6) == Some(&[0, 1]);
        let start = match has_question {
            true => query.question_range().end,
            false => HEADER_BYTES,
        };
        let opt_record = self.opt_record.clone().and_then(|range| bytes.get(range));
        let opt_record = opt_record.unwrap_or_default();
        let fits = |end: &&usize| **end + opt_record.len() <= max_bytes;
        let count = self.answer_ends.iter().take_while(fits).count();
        let end = count
            .checked_sub(1)
            .and_then(|last| self.answer_ends.get(last));
        let mut truncated = bytes
            .get(..*end.unwrap_or(&start))
            .unwrap_or_default()
            .to_vec();
        if let Some(header) = truncated.first_chunk_mut::<HEADER_BYTES>() {
            header[2] |= 0x02;
            let count = u16::try_from(count).unwrap_or(0).to_be_bytes();
            let additional = u8::from(self.opt_record.is_some());
            header[6..].copy_from_slice(&[count[0], count[1], 0, 0, 0, additional]);
        }
        truncated.extend_from_slice(opt_record);
        truncated
    }
}

/// The response to a malformed query. `None` if the message has no complete header, or is itself a response.
pub(crate) fn malformed(message: &[u8]) -> Option<Vec<u8>> {
    let mut header = *message.first_chunk::<HEADER_BYTES>()?;
    if header[2] & 0x80 != 0 {
        return None;
    }
    set_response(&mut header, code::FORMAT_ERROR);
    header[4..].fill(0);
    Some(header.to_vec())
}

/// Makes a query header a response header. Keeps the ID, the opcode and the RD flag.
fn set_response(header: &mut [u8; HEADER_BYTES], code: u8) {
    header[2] = header[2] & 0x79 | 0x80;
    header[3] = 0x80 | code;
}

/// The maximum UDP payload that the client accepts.
fn max_udp_payload(query: &Query) -> usize {
    let records = message::records(query.message()).unwrap_or_default();
    let opt_record = records.iter().find(|record| record.kind == kind::OPT);
    opt_record.map_or(MIN_UDP_PAYLOAD, |opt_record| {
        usize::from(opt_record.class).clamp(MIN_UDP_PAYLOAD, MAX_UDP_PAYLOAD)
    })
}

fn cache_ttl(query: &Query, bytes: &[u8], records: &[Record]) -> Option<Duration> {
    let header = bytes.first_chunk::<HEADER_BYTES>()?;
    let is_standard_query = header[2] & 0x78 == 0;
    let is_truncated = header[2] & 0x02 != 0;
    if !is_standard_query || is_truncated {
        return None;
    }
    let answers = || answer_records(records);
    let negative_ttl = match message::code(bytes)? {
        code::SERVER_FAILED => return Some(FAILURE_TTL),
        code::NO_ERROR if answers().any(|record| record.kind == query.kind()) => None,
        code::NO_ERROR | code::NO_NAME => Some(negative_ttl(bytes, records)?),
        _ => return None,
    };
    let ttl = answers()
        .map(|record| valid_ttl(record.ttl))
        .chain(negative_ttl)
        .min()?;
    (ttl > 0).then(|| Duration::from_secs(ttl.into()).min(MAX_TTL))
}

fn answer_records(records: &[Record]) -> impl Iterator<Item = &Record> {
    let is_answer = |record: &&Record| record.section == Section::Answer;
    records.iter().filter(is_answer)
}

/// How long a negative response may be cached: the SOA record says it. Without one, it must not be cached.
fn negative_ttl(bytes: &[u8], records: &[Record]) -> Option<u32> {
    let zone = records
        .iter()
        .find(|record| record.section == Section::Authority && record.kind == kind::SOA)?;
    let minimum = bytes.get(zone.data.clone())?.last_chunk::<4>()?;
    Some(valid_ttl(zone.ttl).min(valid_ttl(u32::from_be_bytes(*minimum))))
}

/// A TTL with the highest bit set counts as zero (RFC 2181).
fn valid_ttl(ttl: u32) -> u32 {
    if ttl > i32::MAX.unsigned_abs() {
        0
    } else {
        ttl
    }
}

/// The addresses in the answer section. Aliases are followed from the queried name; each name in the chain resolves to the
/// address.
fn addresses(query: &Query, bytes: &[u8], records: &[Record]) -> Vec<ResolvedAddress> {
    let owner = |record: &Record| message::name_at(bytes, record.range.start);
    let answers = || answer_records(records);
    let mut chain = vec![query.name().to_ascii_lowercase()];
    // The number of steps is limited in case of a loop.
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
        Some(ResolvedAddress { address, names })
    };
    answers().filter_map(resolved).collect()
}

#[cfg(test)]
pub(crate) mod tests;
