//! A nameserver in the target's network, with fixed records.

use std::net::{Ipv4Addr, Ipv6Addr};

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::environment::Target;

/// Serves UDP and TCP until the test ends.
pub(crate) fn start(target: &Target, address: &str) {
    let udp = target.udp(&format!("{address}:53"));
    let tcp = target.listen(&format!("{address}:53"));
    tokio::spawn(async move {
        let mut query = vec![0; 4096];
        while let Ok((length, from)) = udp.recv_from(&mut query).await {
            let mut response = respond(&query[..length]);
            let bytes = response.to_vec().unwrap();
            if bytes.len() > 512 {
                response = response.truncate();
            }
            let _ = udp.send_to(&response.to_vec().unwrap(), from).await;
        }
    });
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = tcp.accept().await {
            let length = stream.read_u16().await.unwrap();
            let mut query = vec![0; length.into()];
            stream.read_exact(&mut query).await.unwrap();
            let bytes = respond(&query).to_vec().unwrap();
            stream
                .write_u16(bytes.len().try_into().unwrap())
                .await
                .unwrap();
            stream.write_all(&bytes).await.unwrap();
        }
    });
}

fn respond(query: &[u8]) -> Message {
    let query = Message::from_vec(query).unwrap();
    let mut response = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
    let question = query.queries[0].clone();
    let name = question.name().clone();
    let kind = question.query_type();
    response.add_query(question);
    response.metadata.recursion_desired = true;
    response.metadata.recursion_available = true;
    let ipv4 = |last: u8| RData::A(A(Ipv4Addr::new(10, 0, 0, last)));
    let mut add = |name: Name, data: RData| {
        response.add_answer(Record::from_rdata(name, 60, data));
    };
    match (name.to_ascii().to_lowercase().as_str(), kind) {
        ("api.shop.internal.", RecordType::A) => add(name, ipv4(7)),
        ("api.shop.internal.", RecordType::AAAA) => {
            add(
                name,
                RData::AAAA(AAAA(Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 7))),
            );
        }
        ("four.shop.internal.", RecordType::A) => add(name, ipv4(4)),
        ("alias.shop.internal.", RecordType::A) => {
            let real = Name::from_ascii("real.other.internal.").unwrap();
            add(name, RData::CNAME(CNAME(real.clone())));
            add(real, ipv4(8));
        }
        ("second.other.internal.", RecordType::A) => add(name, ipv4(9)),
        ("large.shop.internal.", RecordType::A) => {
            (0..=255).for_each(|last| add(name.clone(), ipv4(last)));
        }
        ("four.shop.internal." | "alias.shop.internal." | "large.shop.internal.", _) => {}
        ("failing.shop.internal.", _) => {
            response.metadata.response_code = ResponseCode::ServFail;
        }
        _ => response.metadata.response_code = ResponseCode::NXDomain,
    }
    response
}
