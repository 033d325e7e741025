//! A connection to a hub: direct, or through the proxy of the environment, as kubectl connects.

use std::env;
use std::io;
use std::pin::Pin;

use axum::body::Bytes;
use axum::http::{Method, Request, Uri, header};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::address::HubAddress;
use crate::environment::{HTTPS_PROXY, NO_PROXY};

const DEFAULT_PROXY_PORT: u16 = 80;

pub(super) trait Stream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

/// The bytes to and from a hub, before TLS.
pub(super) type Connection = Pin<Box<dyn Stream>>;

/// Connects to a hub.
pub(super) async fn connect(hub: &HubAddress) -> io::Result<Connection> {
    let matcher = proxy_settings(|name| env::var(name).ok());
    match proxy_of(&matcher, hub) {
        None => {
            let stream = TcpStream::connect((hub.host.as_str(), hub.port)).await?;
            stream.set_nodelay(true)?;
            Ok(Box::pin(stream))
        }
        Some(proxy) => {
            let name = proxy.uri().host().unwrap_or_default().to_owned();
            let connected = through(&proxy, hub).await;
            connected.map_err(|error| {
                io::Error::new(error.kind(), format!("through the proxy {name}: {error}"))
            })
        }
    }
}

/// Both spellings are common; the one in capitals counts, as for kubectl.
fn proxy_settings(variable: impl Fn(&str) -> Option<String>) -> Matcher {
    let value = |name: &str| {
        let value = variable(name).or_else(|| variable(&name.to_lowercase()));
        value.unwrap_or_default()
    };
    let builder = Matcher::builder().https(value(HTTPS_PROXY));
    builder.no(value(NO_PROXY)).build()
}

/// The proxy for this hub. There is none for this machine.
fn proxy_of(matcher: &Matcher, hub: &HubAddress) -> Option<Intercept> {
    let is_loopback = hub.host.parse::<std::net::IpAddr>();
    let is_loopback = is_loopback.is_ok_and(|address| address.is_loopback());
    if is_loopback || hub.host == "localhost" {
        return None;
    }
    let url: Uri = hub.url().parse().ok()?;
    matcher.intercept(&url)
}

async fn through(proxy: &Intercept, hub: &HubAddress) -> io::Result<Connection> {
    let uri = proxy.uri();
    if uri.scheme_str() != Some("http") {
        return Err(io::Error::other(
            "only proxies with an http:// address are supported",
        ));
    }
    let host = uri.host().unwrap_or_default().trim_start_matches('[');
    let host = host.trim_end_matches(']');
    let port = uri.port_u16().unwrap_or(DEFAULT_PROXY_PORT);
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(io::Error::other)?;
    tokio::spawn(connection.with_upgrades());
    let mut request = Request::builder()
        .method(Method::CONNECT)
        .uri(hub.authority())
        .header(header::HOST, hub.authority());
    if let Some(credential) = proxy.basic_auth() {
        request = request.header(header::PROXY_AUTHORIZATION, credential);
    }
    let request = request.body(Empty::<Bytes>::new());
    let request = request.map_err(io::Error::other)?;
    let response = sender.send_request(request).await;
    let response = response.map_err(io::Error::other)?;
    if !response.status().is_success() {
        let status = response.status();
        return Err(io::Error::other(format!("it responded {status}")));
    }
    let upgraded = hyper::upgrade::on(response).await;
    Ok(Box::pin(TokioIo::new(upgraded.map_err(io::Error::other)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Variables = &'static [(&'static str, &'static str)];

    #[test]
    fn the_proxy_is_that_of_the_environment() {
        #[rustfmt::skip] // A table is read by its columns.
        let table: &[(Variables, &str, Option<&str>)] = &[
            (&[],                                                                     "hub.example.com", None),
            (&[("HTTPS_PROXY", "http://proxy:3128")],                                 "hub.example.com", Some("proxy")),
            (&[("https_proxy", "http://proxy:3128")],                                 "hub.example.com", Some("proxy")),
            (&[("HTTPS_PROXY", "http://one:1"), ("https_proxy", "http://two:2")],     "hub.example.com", Some("one")),
            (&[("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", ".example.com")],   "hub.example.com", None),
            (&[("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", ".example.org")],   "hub.example.com", Some("proxy")),
            (&[("HTTPS_PROXY", "http://proxy:3128")],                                 "localhost",       None),
            (&[("HTTPS_PROXY", "http://proxy:3128")],                                 "127.0.0.1",       None),
        ];
        for (variables, hub, expected) in table {
            let variable = |name: &str| {
                let found = variables.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let proxy = proxy_of(&proxy_settings(variable), &hub.parse().unwrap());
            let host = proxy.as_ref().and_then(|proxy| proxy.uri().host());
            assert_eq!(host, *expected, "{variables:?} {hub}");
        }
    }

    /// A proxy that accepts one request, and then echoes.
    async fn proxy(response: &'static str) -> (u16, tokio::task::JoinHandle<String>) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(response.as_bytes()).await.unwrap();
            let (mut reader, mut writer) = stream.split();
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
            String::from_utf8(head).unwrap()
        });
        (port, served)
    }

    #[tokio::test]
    async fn a_proxy_is_asked_for_a_connection_with_its_credential() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let hub: HubAddress = "hub.example.com".parse().unwrap();
        let (port, served) = proxy("HTTP/1.1 200 OK\r\n\r\n").await;
        let url = format!("http://anna:hunter2@127.0.0.1:{port}");
        let matcher = proxy_settings(|name| (name == HTTPS_PROXY).then(|| url.clone()));
        let mut connection = through(&proxy_of(&matcher, &hub).unwrap(), &hub)
            .await
            .unwrap();
        connection.write_all(b"hello").await.unwrap();
        let mut echo = [0; 5];
        connection.read_exact(&mut echo).await.unwrap();
        assert_eq!(&echo, b"hello");
        drop(connection);
        let head = served.await.unwrap();
        assert!(
            head.starts_with("CONNECT hub.example.com:6443 HTTP/1.1\r\n"),
            "{head}"
        );
        assert!(
            head.contains("proxy-authorization: Basic YW5uYTpodW50ZXIy"),
            "{head}"
        );

        let (port, _served) = proxy("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await;
        let url = format!("http://127.0.0.1:{port}");
        let matcher = proxy_settings(|name| (name == HTTPS_PROXY).then(|| url.clone()));
        let refused = through(&proxy_of(&matcher, &hub).unwrap(), &hub).await;
        let error = refused.err().unwrap().to_string();
        assert!(error.contains("407"), "{error}");
    }
}
