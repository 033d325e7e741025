//! Upgraded connections through a tunnel.

use std::net::SocketAddr;

use http::Request;
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::hub::Tunnel;
use super::network::read_head;
use super::service::{service_of, text};
use crate::upgrade::{self, Outcome, Upgraded};
use crate::{Body, Error, Session};

/// A server that changes to a protocol that echoes, and says goodbye when the client has ended. It refuses `/refused`.
pub(super) async fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        let head = read_head(&mut stream).await?;
        assert!(head.contains("upgrade: echo\r\n"), "{head}");
        if head.starts_with("GET /refused") {
            let response = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno!";
            return stream.write_all(response).await;
        }
        let response = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\nX-Server: yes\r\n\r\n";
        stream.write_all(response).await?;
        let (mut read, mut write) = stream.split();
        tokio::io::copy(&mut read, &mut write).await?;
        write.write_all(b" bye").await
    });
    address
}

pub(super) async fn open(session: &Session, path: &str) -> Outcome {
    let request = Request::get(path)
        .header("connection", "Upgrade")
        .header("upgrade", "echo");
    let request = request.body(()).unwrap();
    session.upgrade(request).await.unwrap()
}

pub(super) async fn open_echo(session: &Session) -> Upgraded {
    match open(session, "/exec").await {
        Outcome::Upgraded(upgraded) => upgraded,
        Outcome::Refused(response) => panic!("{response:?}"),
    }
}

/// Reads this many bytes.
pub(super) async fn read_exactly(reader: &mut Body, length: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let frame = reader.frame().await.expect("the stream continues")?;
        bytes.extend_from_slice(&frame.into_data().unwrap());
    }
    assert_eq!(bytes.len(), length);
    Ok(bytes)
}

#[tokio::test]
async fn each_direction_of_an_upgraded_stream_ends_on_its_own() {
    let (_tunnel, session) = Tunnel::open().await;
    let mut upgraded = open_echo(&session).await;
    assert_eq!(upgraded.headers["upgrade"], "echo");
    assert_eq!(upgraded.headers["x-server"], "yes");
    upgraded.writer.send_data("ping".into()).await.unwrap();
    assert_eq!(
        read_exactly(&mut upgraded.reader, 4).await.unwrap(),
        b"ping"
    );
    drop(upgraded.writer);
    let rest = upgraded.reader.collect().await.unwrap().to_bytes();
    assert_eq!(rest, " bye");
}

#[tokio::test]
async fn the_response_of_a_server_that_refuses_is_passed_on() {
    let (_tunnel, session) = Tunnel::open().await;
    let Outcome::Refused(response) = open(&session, "/refused").await else {
        panic!("it is refused");
    };
    assert_eq!(response.status(), 403);
    assert_eq!(text(response).await.unwrap(), "no!");
}

/// A client of the hub upgrades its own connection.
#[tokio::test]
async fn the_connection_of_a_client_is_upgraded() {
    let (_tunnel, session) = Tunnel::open().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (connection, _) = listener.accept().await.unwrap();
    tokio::spawn(async move {
        let service = service_of(move |request| {
            let session = session.clone();
            async move {
                let forwarded = upgrade::forward(&session, request).await?;
                if let Some(copying) = forwarded.copying {
                    tokio::spawn(copying.run());
                }
                Ok::<_, Error>(forwarded.response)
            }
        });
        hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(connection), TowerToHyperService::new(service))
            .with_upgrades()
            .await
    });
    let request = b"GET /exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
    client.write_all(request).await.unwrap();
    let head = read_head(&mut client).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    assert!(head.contains("x-server: yes"), "{head}");
    client.write_all(b"over").await.unwrap();
    client.shutdown().await.unwrap();
    let mut received = String::new();
    client.read_to_string(&mut received).await.unwrap();
    assert_eq!(received, "over bye");
}
