//! Connections that come through an HTTP proxy which passes on what it does not understand, as Kubernetes' API server does for the
//! ports of pods: one request asks to change to a link, and after the answer the connection is a pipe like any other.

use std::io;

use httparse::{EMPTY_HEADER, Request, Status};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What the request asks to change to, and what both ends of a session's WebSocket through an operator must agree on: others
/// use the same addresses for another protocol.
pub const PROTOCOL: &str = "standin.link.v1";

/// A longer request is none of ours: proxies add a few lines to it.
const LONGEST_HEAD: usize = 8 * 1024;
const MOST_HEADERS: usize = 100;

/// Answers a connection that comes through a proxy. One that does not begin with such a request is left as it is: links and TLS
/// begin with another byte.
pub async fn accept_upgrade(connection: &mut TcpStream) -> io::Result<()> {
    let mut first = [0];
    if connection.peek(&mut first).await? == 0 || first != *b"G" {
        return Ok(());
    }
    let asks = read_request(connection).await?;
    let (status, more) = match asks {
        true => ("101 Switching Protocols", ""),
        false => ("426 Upgrade Required", "Content-Length: 0\r\n"),
    };
    let answer =
        format!("HTTP/1.1 {status}\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n{more}\r\n");
    connection.write_all(answer.as_bytes()).await?;
    match asks {
        true => Ok(()),
        false => Err(invalid("a request for something else than a link")),
    }
}

/// Whether it asks for a link. Who does waits for the answer, so nothing comes behind it.
async fn read_request(connection: &mut TcpStream) -> io::Result<bool> {
    let mut head = Vec::with_capacity(1024);
    while head.len() < LONGEST_HEAD {
        if connection.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut headers = [EMPTY_HEADER; MOST_HEADERS];
        let mut request = Request::new(&mut headers);
        match request.parse(&head).map_err(invalid)? {
            Status::Complete(length) if length == head.len() => {
                return Ok(request.headers.iter().any(|header| {
                    header.name.eq_ignore_ascii_case("upgrade")
                        && header.value.eq_ignore_ascii_case(PROTOCOL.as_bytes())
                }));
            }
            Status::Complete(_) => return Err(invalid("more than a request")),
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

    /// What comes of a connection on which this is said: what it is told, and what is left to read, or why not.
    async fn say(text: &[u8]) -> (String, Result<Vec<u8>, String>) {
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
        let mut told = String::new();
        let _ = client.read_to_string(&mut told).await;
        let answer = told.lines().next().unwrap_or_default().to_owned();
        (
            answer,
            accepted.map(|()| left).map_err(|error| error.to_string()),
        )
    }

    #[tokio::test]
    async fn who_asks_for_a_link_gets_one() {
        let request = b"GET /x HTTP/1.1\r\nHost: pod\r\nConnection: Upgrade\r\nupgrade: standin.link.v1\r\n\r\n";
        let (told, left) = say(request).await;
        assert_eq!(told, "HTTP/1.1 101 Switching Protocols");
        assert_eq!(left.unwrap(), b" and more");
    }

    #[tokio::test]
    async fn who_asks_for_something_else_is_told_so() {
        let (told, left) = say(b"GET / HTTP/1.1\r\nHost: pod\r\n\r\n").await;
        assert_eq!(told, "HTTP/1.1 426 Upgrade Required");
        assert_eq!(
            left.unwrap_err(),
            "a request for something else than a link"
        );
        let long = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &[b'x'; LONGEST_HEAD]].concat();
        assert_eq!(say(&long).await.1.unwrap_err(), "the request is too long");
        let behind = b"GET / HTTP/1.1\r\nUpgrade: standin.link.v1\r\n\r\nx";
        assert_eq!(say(behind).await.1.unwrap_err(), "more than a request");
        assert!(say(b"GET\x00 / HTTP/1.1\r\n\r\n").await.1.is_err());
    }

    #[tokio::test]
    async fn who_comes_without_a_proxy_is_left_alone() {
        let (told, left) = say(b"\x16\x03\x01").await;
        assert_eq!(told, "");
        assert_eq!(left.unwrap(), b"\x16\x03\x01 and more");
    }
}
