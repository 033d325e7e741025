use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;

use super::*;
use crate::dns::response::tests::{ResponseContent, a, encode_response, query_message};

const HOSTS: &str = "192.0.2.7 printer.lan Printer\n192.0.2.8 printer.lan\nfd00::7 six.lan\n";

#[test]
fn the_hosts_file_has_precedence() {
    for (name, kind, expected) in [
        (
            "printer.lan.",
            RecordType::A,
            Some(vec!["192.0.2.7", "192.0.2.8"]),
        ),
        ("PRINTER.", RecordType::A, Some(vec!["192.0.2.7"])),
        ("six.lan.", RecordType::AAAA, Some(vec!["fd00::7"])),
        // The name exists, so no nameserver is queried, but has no address of this family.
        ("six.lan.", RecordType::A, Some(vec![])),
        ("printer.lan.", RecordType::TXT, None),
        ("elsewhere.", RecordType::A, None),
    ] {
        let query = Query::new(&query_message(name, kind, None), 7).unwrap();
        let response = from_hosts(HOSTS.as_bytes(), &query);
        let found = response.map(|bytes| {
            let message = Message::from_vec(&bytes).unwrap();
            assert_eq!(message.metadata.id, 0x1234);
            assert_eq!(message.metadata.response_code, ResponseCode::NoError);
            let data = message.answers.iter().map(|record| record.data.to_string());
            data.collect::<Vec<_>>()
        });
        let expected = expected
            .map(|expected: Vec<&str>| expected.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(found, expected, "{name} {kind}");
    }
}

#[tokio::test]
async fn truncated_responses_are_retried_over_tcp() {
    let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let udp = UdpSocket::bind(address).await.unwrap();
    let server = async {
        let mut buffer = [0; 512];
        let (length, from) = udp.recv_from(&mut buffer).await.unwrap();
        let mut truncated = encode_response(&buffer[..length], ResponseContent::default()).to_vec();
        truncated[2] |= 0x02;
        udp.send_to(&truncated, from).await.unwrap();
        let (mut stream, _) = tcp.accept().await.unwrap();
        let length = stream.read_u16().await.unwrap();
        let mut message = vec![0; length.into()];
        stream.read_exact(&mut message).await.unwrap();
        let content = ResponseContent {
            answers: vec![a("db.", 1, "192.0.2.1")],
            ..ResponseContent::default()
        };
        let response = encode_response(&message, content);
        let length = u16::try_from(response.len()).unwrap();
        stream.write_u16(length).await.unwrap();
        stream.write_all(&response).await.unwrap();
    };
    let query = Query::new(&query_message("db.", RecordType::A, None), 7).unwrap();
    let (response, ()) = tokio::join!(query_server(&query, address, false), server);
    let message = Message::from_vec(&response.unwrap()).unwrap();
    assert_eq!(message.answers.len(), 1);
}
