//! A nameserver that knows a few names.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result};
use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{RData, Record, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::network::{DOMAIN, NAME, NAMESERVER, SERVER, SERVER6};

/// As much fits into a datagram for everyone.
const LARGEST_DATAGRAM: usize = 512;

pub(super) async fn start() -> Result<()> {
    let udp = UdpSocket::bind((NAMESERVER, 53)).await?;
    let tcp = TcpListener::bind((NAMESERVER, 53)).await?;
    tokio::spawn(async move {
        let mut question = vec![0; 4096];
        while let Ok((length, from)) = udp.recv_from(&mut question).await {
            if let Ok(answer) = answer_in_datagram(&question[..length]) {
                let _ = udp.send_to(&answer, from).await;
            }
        }
    });
    tokio::spawn(async move {
        while let Ok((stream, _)) = tcp.accept().await {
            tokio::spawn(answer_stream(stream));
        }
    });
    Ok(())
}

fn answer_in_datagram(question: &[u8]) -> Result<Vec<u8>> {
    let whole = answer(question)?;
    let bytes = whole.to_vec()?;
    if bytes.len() <= LARGEST_DATAGRAM {
        return Ok(bytes);
    }
    Ok(whole.truncate().to_vec()?)
}

/// A client may ask more than once.
async fn answer_stream(mut stream: TcpStream) -> Result<()> {
    loop {
        let length = stream.read_u16().await?;
        let mut question = vec![0; length.into()];
        stream.read_exact(&mut question).await?;
        let bytes = answer(&question)?.to_vec()?;
        stream.write_u16(bytes.len().try_into()?).await?;
        stream.write_all(&bytes).await?;
    }
}

/// The server's name has both addresses; `many` has more of them than fit into a datagram.
fn answer(question: &[u8]) -> Result<Message> {
    let asked = Message::from_vec(question)?;
    let query = asked.queries.first().context("no question")?.clone();
    let mut response = Message::new(asked.metadata.id, MessageType::Response, OpCode::Query);
    response.metadata.recursion_desired = asked.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    let name = query.name().clone();
    let kind = query.query_type();
    response.add_query(query);
    let text = name.to_ascii().to_lowercase();
    let known = text
        .strip_suffix(&format!(".{DOMAIN}."))
        .unwrap_or_default();
    let addresses: Vec<RData> = match (known, kind) {
        (NAME, RecordType::A) => vec![RData::A(A(SERVER.parse()?))],
        (NAME, RecordType::AAAA) => vec![RData::AAAA(AAAA(SERVER6.parse()?))],
        ("many", RecordType::A) => (1..=100)
            .map(|last| RData::A(A(Ipv4Addr::new(10, 78, 0, last))))
            .collect(),
        ("six", RecordType::AAAA) => vec![RData::AAAA(AAAA(Ipv6Addr::LOCALHOST))],
        (NAME | "many" | "six", _) => Vec::new(),
        _ => {
            response.metadata.response_code = ResponseCode::NXDomain;
            Vec::new()
        }
    };
    for address in addresses {
        response.add_answer(Record::from_rdata(name.clone(), 60, address));
    }
    Ok(response)
}
