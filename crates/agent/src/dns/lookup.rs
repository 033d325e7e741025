//! The addresses of a name: hosts file, search list, both families, in one call.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use protocol::dns::{ResolvConf, find_in_hosts};
use protocol::rpc::{Address, Family, LookupRequest, LookupResponse, Outcome};

use super::exchange::exchange;
use crate::connection::Connection;
use crate::{Error, Result};

pub(crate) async fn lookup(
    connection: &Connection,
    request: &LookupRequest,
) -> Result<LookupResponse> {
    let (name, family) = (request.name.as_str(), request.family());
    if let Ok(address) = name.parse::<IpAddr>() {
        connection.admit().await?;
        return Ok(of_hosts(name, &[address]));
    }
    let hosts = connection.configuration(b"/etc/hosts").await?;
    if let Some(known) = find_in_hosts(&hosts, name, family) {
        return Ok(of_hosts(&known.canonical_name, &known.addresses));
    }
    let settings = connection.resolv_conf().await?;
    // As libc judges at the end: a name without an address is more than a failure, and a failure more than no name.
    let mut worst = Outcome::NoName;
    for candidate in settings.candidates(name) {
        let answer = ask(connection, &settings, &candidate, family).await?;
        match answer.outcome() {
            Outcome::Found | Outcome::NoAnswer => return Ok(answer),
            Outcome::NoAddress => worst = Outcome::NoAddress,
            Outcome::ServerFailed if worst == Outcome::NoName => worst = Outcome::ServerFailed,
            _ => {}
        }
    }
    Ok(without_addresses(worst))
}

/// Asks for one full name, both families at the same time.
async fn ask(
    connection: &Connection,
    settings: &ResolvConf,
    name: &str,
    family: Family,
) -> Result<LookupResponse> {
    let Ok(name) = Name::from_ascii(name) else {
        // Longer than a name can be, or with empty labels: nobody has such a name.
        return Ok(without_addresses(Outcome::NoName));
    };
    let ask = |kind: RecordType, wanted: bool| {
        let name = name.clone();
        async move {
            match wanted {
                true => Some(ask_kind(connection, settings, name, kind).await),
                false => None,
            }
        }
    };
    let (ipv4, ipv6) = tokio::join!(
        ask(RecordType::A, family != Family::Ipv6),
        ask(RecordType::AAAA, family != Family::Ipv4),
    );
    let mut answers = Vec::new();
    for answer in [ipv4, ipv6].into_iter().flatten() {
        answers.push(answer?);
    }
    Ok(merge(answers))
}

async fn ask_kind(
    connection: &Connection,
    settings: &ResolvConf,
    name: Name,
    kind: RecordType,
) -> Result<LookupResponse> {
    let mut query = Message::new(rand::random(), MessageType::Query, OpCode::Query);
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(name, kind));
    let Ok(query) = query.to_vec() else {
        return Ok(without_addresses(Outcome::NoName));
    };
    let answer: Result<(Bytes, SocketAddr)> = exchange(&connection.agent, settings, &query).await;
    match answer {
        Ok((answer, _)) => Ok(read_answer(&answer, kind)),
        // Nobody was there. Everything else is the agent's or the target's trouble.
        Err(Error::Operation { .. }) => Ok(without_addresses(Outcome::NoAnswer)),
        Err(error) => Err(error),
    }
}

fn read_answer(answer: &[u8], kind: RecordType) -> LookupResponse {
    let Ok(message) = Message::from_vec(answer) else {
        return without_addresses(Outcome::ServerFailed);
    };
    match message.metadata.response_code {
        ResponseCode::NoError => {}
        ResponseCode::NXDomain => return without_addresses(Outcome::NoName),
        _ => return without_addresses(Outcome::ServerFailed),
    }
    let mut canonical_name = String::new();
    let mut addresses = Vec::new();
    for record in &message.answers {
        let address: IpAddr = match &record.data {
            RData::A(address) if kind == RecordType::A => address.0.into(),
            RData::AAAA(address) if kind == RecordType::AAAA => address.0.into(),
            _ => continue,
        };
        // The records' owner is the end of the chain of aliases.
        canonical_name = record.name.to_ascii().trim_end_matches('.').to_owned();
        addresses.push(address_message(address, record.ttl));
    }
    LookupResponse {
        outcome: match addresses.is_empty() {
            true => Outcome::NoAddress.into(),
            false => Outcome::Found.into(),
        },
        addresses,
        canonical_name,
        from_hosts: false,
    }
}

/// One answer from the answers of both families: what was found counts, then that the name exists.
fn merge(answers: Vec<LookupResponse>) -> LookupResponse {
    const BEST_FIRST: [Outcome; 5] = [
        Outcome::Found,
        Outcome::NoAddress,
        Outcome::NoAnswer,
        Outcome::ServerFailed,
        Outcome::NoName,
    ];
    let outcome = BEST_FIRST
        .into_iter()
        .find(|outcome| answers.iter().any(|answer| answer.outcome() == *outcome))
        .unwrap_or(Outcome::NoName);
    let mut merged = without_addresses(outcome);
    for answer in answers {
        if merged.canonical_name.is_empty() {
            merged.canonical_name = answer.canonical_name;
        }
        merged.addresses.extend(answer.addresses);
    }
    merged
}

fn of_hosts(name: &str, addresses: &[IpAddr]) -> LookupResponse {
    LookupResponse {
        outcome: Outcome::Found.into(),
        addresses: addresses
            .iter()
            .map(|address| address_message(*address, 0))
            .collect(),
        canonical_name: name.to_owned(),
        from_hosts: true,
    }
}

fn address_message(address: IpAddr, seconds_to_live: u32) -> Address {
    let address = match address {
        IpAddr::V4(address) => Bytes::copy_from_slice(&address.octets()),
        IpAddr::V6(address) => Bytes::copy_from_slice(&address.octets()),
    };
    Address {
        address,
        seconds_to_live,
    }
}

fn without_addresses(outcome: Outcome) -> LookupResponse {
    LookupResponse {
        outcome: outcome.into(),
        ..LookupResponse::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_become_one_answer() {
        let check = |left: Outcome, right: Outcome, expected: Outcome| {
            let merged = merge(vec![without_addresses(left), without_addresses(right)]);
            assert_eq!(merged.outcome(), expected, "{left:?} and {right:?}");
        };
        check(Outcome::Found, Outcome::NoAddress, Outcome::Found);
        check(
            Outcome::NoAddress,
            Outcome::ServerFailed,
            Outcome::NoAddress,
        );
        check(Outcome::NoName, Outcome::NoName, Outcome::NoName);
        check(Outcome::NoAnswer, Outcome::Found, Outcome::Found);
        check(Outcome::NoAnswer, Outcome::NoAnswer, Outcome::NoAnswer);
    }

    #[test]
    fn garbage_is_a_failed_server() {
        let answer = read_answer(b"garbage", RecordType::A);
        assert_eq!(answer.outcome(), Outcome::ServerFailed);
    }
}
