//! Names, as the target resolves them.

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
use crate::nameserver;
use crate::world::target;

async fn lookup(client: &Client, name: &str, family: Family) -> LookupResponse {
    let request = LookupRequest {
        name: name.to_owned(),
        family: family.into(),
    };
    client.dns().lookup(request).await.unwrap().into_inner()
}

fn addresses(answer: &LookupResponse) -> Vec<String> {
    let address = |bytes: &[u8]| match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap()).to_string(),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()).to_string(),
    };
    answer
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
    let answer = client.dns().exchange(ExchangeRequest { query }).await;
    answer.map(tonic::Response::into_inner)
}

fn parsed(answer: &ExchangeResponse) -> Message {
    let message = Message::from_vec(&answer.answer).unwrap();
    assert_eq!(message.metadata.id, 4711);
    message
}

#[tokio::test]
async fn names_resolve_with_hosts_and_search_list() {
    let Some(target) = target() else { return };
    nameserver::start(&target, "127.0.0.1");
    let client = target.client().await;
    let check =
        async |name: &str, family: Family, outcome: Outcome, expected: &[&str], canonical: &str| {
            let answer = lookup(&client, name, family).await;
            assert_eq!(answer.outcome(), outcome, "{name}");
            assert_eq!(addresses(&answer), expected, "{name}");
            assert_eq!(answer.canonical_name, canonical, "{name}");
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
    check("nobody", any, Outcome::NoName, &[], "").await;
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
    assert_eq!(large.addresses[0].seconds_to_live, 60);
}

#[tokio::test]
async fn messages_are_answered_as_the_nameserver_does() {
    let Some(target) = target() else { return };
    nameserver::start(&target, "127.0.0.1");
    let client = target.client().await;
    let answer = exchange(&client, "api.shop.internal.", RecordType::A)
        .await
        .unwrap();
    assert_eq!(answer.nameserver, "127.0.0.1:53");
    assert_eq!(parsed(&answer).answers.len(), 1);
    // Nothing leads to this address.
    let reach = &answer.reach[0];
    assert_eq!(reach.address[..], [10, 0, 0, 7]);
    let failure = reach.failure.as_ref().unwrap();
    assert_eq!(
        (failure.number(), reach.from.len()),
        (Some(libc::ENETUNREACH), 0)
    );
    let answer = exchange(&client, "nobody.", RecordType::A).await.unwrap();
    assert_eq!(
        parsed(&answer).metadata.response_code,
        ResponseCode::NXDomain
    );
    // Too large for a datagram: it comes whole, and says nothing of having been cut.
    let answer = exchange(&client, "large.shop.internal.", RecordType::A)
        .await
        .unwrap();
    assert_eq!(parsed(&answer).answers.len(), 256);
    assert!(!parsed(&answer).metadata.truncation);
    // The refusal of the only server is an answer, too.
    let answer = exchange(&client, "failing.shop.internal.", RecordType::A)
        .await
        .unwrap();
    assert_eq!(
        parsed(&answer).metadata.response_code,
        ResponseCode::ServFail
    );
}

#[tokio::test]
async fn a_nameserver_that_is_down_or_silent_is_passed_over() {
    let Some(target) = target() else { return };
    nameserver::start(&target, "127.0.0.1");
    // It takes questions and never answers.
    let _silent = target.udp("127.0.0.3:53");
    let settings = "nameserver 127.0.0.2\nnameserver 127.0.0.3\nnameserver 127.0.0.1\n";
    fs::write(target.path("/etc/resolv.conf"), settings).unwrap();
    let client = target.client().await;
    for _ in 0..3 {
        let answer = exchange(&client, "api.shop.internal.", RecordType::A)
            .await
            .unwrap();
        assert_eq!(answer.nameserver, "127.0.0.1:53");
    }
}

#[tokio::test]
async fn no_nameserver_at_all_is_told_with_its_errno() {
    let Some(target) = target() else { return };
    let client = target.client().await;
    let answer = exchange(&client, "api.", RecordType::A).await;
    assert_eq!(errno(answer), libc::ECONNREFUSED);
    let answer = lookup(&client, "api", Family::Any).await;
    assert_eq!(answer.outcome(), Outcome::NoAnswer);
    // Nothing leads there.
    fs::write(target.path("/etc/resolv.conf"), "nameserver 192.0.2.1\n").unwrap();
    let answer = exchange(&client, "api.", RecordType::A).await;
    assert_eq!(errno(answer), libc::ENETUNREACH);
}

#[tokio::test]
async fn settings_are_read_when_they_are_needed() {
    let Some(target) = target() else { return };
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
    // The domain of the target's hostname.
    assert_eq!(second.search, ["shop.internal"]);
}
