//! Resolves a name to addresses: hosts file, search list and both families, in one call.

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
        return Ok(found_in_hosts(name, &[address]));
    }
    let hosts = connection.configuration(b"/etc/hosts").await?;
    if let Some(matched) = find_in_hosts(&hosts, name, family) {
        return Ok(found_in_hosts(&matched.canonical_name, &matched.addresses));
    }
    let settings = connection.resolv_conf().await?;
    // The same precedence as in libc: no address is better than a failure, and a failure is better than no name.
    let mut best = Outcome::NoName;
    for candidate in settings.candidates(name) {
        let response = resolve(connection, &settings, &candidate, family).await?;
        match response.outcome() {
            Outcome::Found | Outcome::NoResponse => return Ok(response),
            Outcome::NoAddress => best = Outcome::NoAddress,
            Outcome::ServerFailed if best == Outcome::NoName => best = Outcome::ServerFailed,
            _ => {}
        }
    }
    Ok(without_addresses(best))
}

/// Queries one absolute name, both families concurrently.
async fn resolve(
    connection: &Connection,
    settings: &ResolvConf,
    name: &str,
    family: Family,
) -> Result<LookupResponse> {
    let Ok(name) = Name::from_ascii(name) else {
        // Too long, or with empty labels: such a name cannot exist.
        return Ok(without_addresses(Outcome::NoName));
    };
    let query = |kind: RecordType, enabled: bool| {
        let name = name.clone();
        async move {
            match enabled {
                true => Some(query_type(connection, settings, name, kind).await),
                false => None,
            }
        }
    };
    let (ipv4, ipv6) = tokio::join!(
        query(RecordType::A, family != Family::Ipv6),
        query(RecordType::AAAA, family != Family::Ipv4),
    );
    let mut responses = Vec::new();
    for response in [ipv4, ipv6].into_iter().flatten() {
        responses.push(response?);
    }
    Ok(merge(responses))
}

async fn query_type(
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
    let response: Result<(Bytes, SocketAddr)> = exchange(&connection.agent, settings, &query).await;
    match response {
        Ok((response, _)) => Ok(parse_response(&response, kind)),
        // No server responded. Other errors are failures of the agent or the target.
        Err(Error::Operation { .. }) => Ok(without_addresses(Outcome::NoResponse)),
        Err(error) => Err(error),
    }
}

fn parse_response(response: &[u8], kind: RecordType) -> LookupResponse {
    let Ok(message) = Message::from_vec(response) else {
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
        // The owner of the record is the end of the chain of aliases.
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

/// Merges the responses of both families. Found addresses take precedence, then that the name exists.
fn merge(responses: Vec<LookupResponse>) -> LookupResponse {
    const BEST_FIRST: [Outcome; 5] = [
        Outcome::Found,
        Outcome::NoAddress,
        Outcome::NoResponse,
        Outcome::ServerFailed,
        Outcome::NoName,
    ];
    let outcome = BEST_FIRST
        .into_iter()
        .find(|outcome| {
            responses
                .iter()
                .any(|response| response.outcome() == *outcome)
        })
        .unwrap_or(Outcome::NoName);
    let mut merged = without_addresses(outcome);
    for response in responses {
        if merged.canonical_name.is_empty() {
            merged.canonical_name = response.canonical_name;
        }
        merged.addresses.extend(response.addresses);
    }
    merged
}

fn found_in_hosts(name: &str, addresses: &[IpAddr]) -> LookupResponse {
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

fn address_message(address: IpAddr, ttl_seconds: u32) -> Address {
    let address = match address {
        IpAddr::V4(address) => Bytes::copy_from_slice(&address.octets()),
        IpAddr::V6(address) => Bytes::copy_from_slice(&address.octets()),
    };
    Address {
        address,
        ttl_seconds,
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
    fn responses_of_both_families_are_merged() {
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
        check(Outcome::NoResponse, Outcome::Found, Outcome::Found);
        check(
            Outcome::NoResponse,
            Outcome::NoResponse,
            Outcome::NoResponse,
        );
    }

    #[test]
    fn a_malformed_response_is_a_server_failure() {
        let response = parse_response(b"garbage", RecordType::A);
        assert_eq!(response.outcome(), Outcome::ServerFailed);
    }
}
