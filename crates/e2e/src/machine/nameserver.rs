//! A nameserver with a few DNS names.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result};
use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{RData, Record, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::network::{DOMAIN, NAMESERVER, SERVER, SERVER_NAME, SERVER6};

/// The largest DNS message over UDP without EDNS.
const MAX_DATAGRAM: usize = 512;

pub(super) async fn start() -> Result<()> {
    let udp = UdpSocket::bind((NAMESERVER, 53)).await?;
    let tcp = TcpListener::bind((NAMESERVER, 53)).await?;
    tokio::spawn(async move {
        let mut request = vec![0; 4096];
        while let Ok((length, from)) = udp.recv_from(&mut request).await {
            if let Ok(response) = datagram_response(&request[..length]) {
                let _ = udp.send_to(&response, from).await;
            }
        }
    });
    tokio::spawn(async move {
        while let Ok((stream, _)) = tcp.accept().await {
            tokio::spawn(serve_stream(stream));
        }
    });
    Ok(())
}

fn datagram_response(request: &[u8]) -> Result<Vec<u8>> {
    let whole = respond(request)?;
    let bytes = whole.to_vec()?;
    if bytes.len() <= MAX_DATAGRAM {
        return Ok(bytes);
    }
    Ok(whole.truncate().to_vec()?)
}

/// Serves a client that may send several queries.
async fn serve_stream(mut stream: TcpStream) -> Result<()> {
    loop {
        let length = stream.read_u16().await?;
        let mut request = vec![0; length.into()];
        stream.read_exact(&mut request).await?;
        let bytes = respond(&request)?.to_vec()?;
        stream.write_u16(bytes.len().try_into()?).await?;
        stream.write_all(&bytes).await?;
    }
}

/// The server's DNS name has both addresses; `many` has more addresses than fit into a datagram.
fn respond(request: &[u8]) -> Result<Message> {
    let request = Message::from_vec(request)?;
    let query = request.queries.first().context("no question")?.clone();
    let mut response = Message::new(request.metadata.id, MessageType::Response, OpCode::Query);
    response.metadata.recursion_desired = request.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    let name = query.name().clone();
    let kind = query.query_type();
    response.add_query(query);
    let text = name.to_ascii().to_lowercase();
    let host = text
        .strip_suffix(&format!(".{DOMAIN}."))
        .unwrap_or_default();
    let addresses: Vec<RData> = match (host, kind) {
        (SERVER_NAME, RecordType::A) => vec![RData::A(A(SERVER.parse()?))],
        (SERVER_NAME, RecordType::AAAA) => vec![RData::AAAA(AAAA(SERVER6.parse()?))],
        ("many", RecordType::A) => (1..=100)
            .map(|last| RData::A(A(Ipv4Addr::new(10, 78, 0, last))))
            .collect(),
        ("six", RecordType::AAAA) => vec![RData::AAAA(AAAA(Ipv6Addr::LOCALHOST))],
        (SERVER_NAME | "many" | "six", _) => Vec::new(),
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
