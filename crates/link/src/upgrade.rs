//! Connections through an HTTP proxy that forwards unknown protocols, as the Kubernetes API server does for the ports of
//! pods: one request upgrades the connection to a link, and after the response it is a pipe like any other.

use std::io;

use httparse::{EMPTY_HEADER, Request, Status};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The protocol name of the upgrade, and the subprotocol of a session's WebSocket through an operator. Other clients use the
/// same URLs for another protocol.
pub const PROTOCOL: &str = "standin.link.v1";

/// Maximum size of the request: proxies only add a few headers to it.
const MAX_HEAD: usize = 8 * 1024;
const MAX_HEADERS: usize = 100;

/// Responds to the upgrade request of a connection through a proxy. A connection that does not start with such a request is
/// left unchanged: links and TLS start with another byte.
pub async fn accept_upgrade(connection: &mut TcpStream) -> io::Result<()> {
    let mut first = [0];
    if connection.peek(&mut first).await? == 0 || first != *b"G" {
        return Ok(());
    }
    let is_upgrade = read_request(connection).await?;
    let (status, more) = match is_upgrade {
        true => ("101 Switching Protocols", ""),
        false => ("426 Upgrade Required", "Content-Length: 0\r\n"),
    };
    let response =
        format!("HTTP/1.1 {status}\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n{more}\r\n");
    connection.write_all(response.as_bytes()).await?;
    match is_upgrade {
        true => Ok(()),
        false => Err(invalid("the request does not ask for a link")),
    }
}

/// Whether the request asks for a link. Such a client waits for the response, so no bytes may follow the request.
async fn read_request(connection: &mut TcpStream) -> io::Result<bool> {
    let mut head = Vec::with_capacity(1024);
    while head.len() < MAX_HEAD {
        if connection.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let mut request = Request::new(&mut headers);
        match request.parse(&head).map_err(invalid)? {
            Status::Complete(length) if length == head.len() => {
                return Ok(request.headers.iter().any(|header| {
                    header.name.eq_ignore_ascii_case("upgrade")
                        && header.value.eq_ignore_ascii_case(PROTOCOL.as_bytes())
                }));
            }
            Status::Complete(_) => return Err(invalid("bytes follow the request")),
            Status::Partial => {}
        }
    }
    Err(invalid("the request is too long"))
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Sends a text, and returns the status line of the response and the bytes that are left to read, or the error.
    async fn send(text: &[u8]) -> (String, Result<Vec<u8>, String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        client.write_all(text).await.unwrap();
        let accepted = accept_upgrade(&mut server).await;
        client.write_all(b" and more").await.unwrap();
        client.shutdown().await.unwrap();
        let mut left = Vec::new();
        server.read_to_end(&mut left).await.unwrap();
        drop(server);
        let mut response = String::new();
        let _ = client.read_to_string(&mut response).await;
        let status = response.lines().next().unwrap_or_default().to_owned();
        (
            status,
            accepted.map(|()| left).map_err(|error| error.to_string()),
        )
    }

    #[tokio::test]
    async fn an_upgrade_request_is_accepted() {
        let request = b"GET /x HTTP/1.1\r\nHost: pod\r\nConnection: Upgrade\r\nupgrade: standin.link.v1\r\n\r\n";
        let (status, left) = send(request).await;
        assert_eq!(status, "HTTP/1.1 101 Switching Protocols");
        assert_eq!(left.unwrap(), b" and more");
    }

    #[tokio::test]
    async fn other_requests_are_rejected() {
        let (status, left) = send(b"GET / HTTP/1.1\r\nHost: pod\r\n\r\n").await;
        assert_eq!(status, "HTTP/1.1 426 Upgrade Required");
        assert_eq!(left.unwrap_err(), "the request does not ask for a link");
        let long = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &[b'x'; MAX_HEAD]].concat();
        assert_eq!(send(&long).await.1.unwrap_err(), "the request is too long");
        let behind = b"GET / HTTP/1.1\r\nUpgrade: standin.link.v1\r\n\r\nx";
        assert_eq!(
            send(behind).await.1.unwrap_err(),
            "bytes follow the request"
        );
        assert!(send(b"GET\x00 / HTTP/1.1\r\n\r\n").await.1.is_err());
    }

    #[tokio::test]
    async fn a_direct_connection_is_left_unchanged() {
        let (status, left) = send(b"\x16\x03\x01").await;
        assert_eq!(status, "");
        assert_eq!(left.unwrap(), b"\x16\x03\x01 and more");
    }
}
