//! DNS lookups as the target does them.

use std::fs;
use std::net::IpAddr;

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use protocol::rpc::{
    DnsSettingsRequest, ExchangeRequest, ExchangeResponse, Family, LookupRequest, LookupResponse,
    Outcome,
};
use tonic::Status;

use crate::client::{Client, errno};
use crate::environment::target;
use crate::nameserver;

async fn lookup(client: &Client, name: &str, family: Family) -> LookupResponse {
    let request = LookupRequest {
        name: name.to_owned(),
        family: family.into(),
    };
    client.dns().lookup(request).await.unwrap().into_inner()
}

fn addresses(response: &LookupResponse) -> Vec<String> {
    let address = |bytes: &[u8]| match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap()).to_string(),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()).to_string(),
    };
    response
        .addresses
        .iter()
        .map(|found| address(&found.address))
        .collect()
}

async fn exchange(
    client: &Client,
    name: &str,
    kind: RecordType,
) -> Result<ExchangeResponse, Status> {
    let mut query = Message::query();
    query.metadata.recursion_desired = true;
    query.metadata.id = 4711;
    query.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    let query = query.to_vec().unwrap().into();
    let response = client.dns().exchange(ExchangeRequest { query }).await;
    response.map(tonic::Response::into_inner)
}

fn parsed(response: &ExchangeResponse) -> Message {
    let message = Message::from_vec(&response.response).unwrap();
    assert_eq!(message.metadata.id, 4711);
    message
}

#[tokio::test]
#[ignore = "needs root"]
async fn names_resolve_with_hosts_and_search_list() {
    let target = target();
    nameserver::start(&target, "127.0.0.1");
    let client = target.client().await;
    let check =
        async |name: &str, family: Family, outcome: Outcome, expected: &[&str], canonical: &str| {
            let response = lookup(&client, name, family).await;
            assert_eq!(response.outcome(), outcome, "{name}");
            assert_eq!(addresses(&response), expected, "{name}");
            assert_eq!(response.canonical_name, canonical, "{name}");
        };
    let (any, found) = (Family::Any, Outcome::Found);
    check(
        "api",
        any,
        found,
        &["10.0.0.7", "fd00:9::7"],
        "api.shop.internal",
    )
    .await;
    check(
        "api.shop.internal",
        Family::Ipv4,
        found,
        &["10.0.0.7"],
        "api.shop.internal",
    )
    .await;
    check(
        "api.shop.internal.",
        Family::Ipv6,
        found,
        &["fd00:9::7"],
        "api.shop.internal",
    )
    .await;
    check("second", any, found, &["10.0.0.9"], "second.other.internal").await;
    check(
        "alias",
        Family::Ipv4,
        found,
        &["10.0.0.8"],
        "real.other.internal",
    )
    .await;
    check("four", any, found, &["10.0.0.4"], "four.shop.internal").await;
    check("four", Family::Ipv6, Outcome::NoAddress, &[], "").await;
    check("api.", any, Outcome::NoName, &[], "").await;
    check("missing", any, Outcome::NoName, &[], "").await;
    check("failing", any, Outcome::ServerFailed, &[], "").await;
    check("db", any, found, &["10.0.0.99"], "db.internal").await;
    check(
        "localhost",
        Family::Ipv4,
        found,
        &["127.0.0.1"],
        "localhost",
    )
    .await;
    check("10.1.2.3", any, found, &["10.1.2.3"], "10.1.2.3").await;
    check(&"x".repeat(70), any, Outcome::NoName, &[], "").await;
    check(&"long.".repeat(100), any, Outcome::NoName, &[], "").await;
    check("", any, Outcome::NoName, &[], "").await;
    let large = lookup(&client, "large", Family::Ipv4).await;
    assert_eq!(large.addresses.len(), 256);
    assert_eq!(large.addresses[0].ttl_seconds, 60);
}

#[tokio::test]
#[ignore = "needs root"]
async fn exchange_returns_the_response_of_the_nameserver() {
    let target = target();
    nameserver::start(&target, "127.0.0.1");
    let client = target.client().await;
    let response = exchange(&client, "api.shop.internal.", RecordType::A)
        .await
        .unwrap();
    assert_eq!(response.nameserver, "127.0.0.1:53");
    assert_eq!(parsed(&response).answers.len(), 1);
    // There is no route to this address.
    let hint = &response.route_hints[0];
    assert_eq!(hint.address[..], [10, 0, 0, 7]);
    let failure = hint.failure.as_ref().unwrap();
    assert_eq!(
        (failure.number(), hint.from.len()),
        (Some(libc::ENETUNREACH), 0)
    );
    let response = exchange(&client, "missing.", RecordType::A).await.unwrap();
    assert_eq!(
        parsed(&response).metadata.response_code,
        ResponseCode::NXDomain
    );
    // Too large for a datagram: the response is complete and not marked as truncated.
    let response = exchange(&client, "large.shop.internal.", RecordType::A)
        .await
        .unwrap();
    assert_eq!(parsed(&response).answers.len(), 256);
    assert!(!parsed(&response).metadata.truncation);
    // If the only server fails, its response is returned.
    let response = exchange(&client, "failing.shop.internal.", RecordType::A)
        .await
        .unwrap();
    assert_eq!(
        parsed(&response).metadata.response_code,
        ResponseCode::ServFail
    );
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_silent_nameserver_is_skipped() {
    let target = target();
    nameserver::start(&target, "127.0.0.1");
    // It receives queries and never responds.
    let _silent = target.udp("127.0.0.3:53");
    let settings = "nameserver 127.0.0.2\nnameserver 127.0.0.3\nnameserver 127.0.0.1\n";
    fs::write(target.path("/etc/resolv.conf"), settings).unwrap();
    let client = target.client().await;
    for _ in 0..3 {
        let response = exchange(&client, "api.shop.internal.", RecordType::A)
            .await
            .unwrap();
        assert_eq!(response.nameserver, "127.0.0.1:53");
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_missing_nameserver_fails_with_its_errno() {
    let target = target();
    let client = target.client().await;
    let response = exchange(&client, "api.", RecordType::A).await;
    assert_eq!(errno(response), libc::ECONNREFUSED);
    let response = lookup(&client, "api", Family::Any).await;
    assert_eq!(response.outcome(), Outcome::NoResponse);
    // There is no route to it.
    fs::write(target.path("/etc/resolv.conf"), "nameserver 192.0.2.1\n").unwrap();
    let response = exchange(&client, "api.", RecordType::A).await;
    assert_eq!(errno(response), libc::ENETUNREACH);
}

#[tokio::test]
#[ignore = "needs root"]
async fn settings_are_read_for_every_call() {
    let target = target();
    let client = target.client().await;
    let settings = async || {
        let settings = client.dns().settings(DnsSettingsRequest {}).await;
        settings.unwrap().into_inner()
    };
    let first = settings().await;
    assert_eq!(first.nameservers, ["127.0.0.1:53"]);
    assert_eq!(first.search, ["shop.internal", "other.internal"]);
    assert_eq!(first.dots, 2);
    fs::remove_file(target.path("/etc/resolv.conf")).unwrap();
    let second = settings().await;
    assert_eq!(second.nameservers, ["127.0.0.1:53"]);
    // The domain of the target's host name.
    assert_eq!(second.search, ["shop.internal"]);
}
