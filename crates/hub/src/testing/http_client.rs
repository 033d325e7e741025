//! A client that sends one request per connection.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::HANG;

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    /// Null if it is no JSON.
    pub(crate) body: Value,
}

#[derive(Clone)]
pub(crate) struct TestClient {
    address: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
    /// The name that the server's certificate must have.
    name: String,
    headers: Vec<(String, String)>,
}

/// The TLS configuration of a client, which trusts these authorities.
pub(crate) fn client_config(authorities: &str, identity: Option<&Identity>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    let builder = ClientConfig::builder_with_provider(crate::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match identity {
        Some(identity) => {
            let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes());
            let chain = chain.map(Result::unwrap).collect();
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
        None => builder.with_no_client_auth(),
    })
}

impl TestClient {
    pub(crate) fn plain(address: SocketAddr) -> Self {
        Self {
            address,
            tls: None,
            // One of the names that the hub's own certificate always has.
            name: "standin-hub".to_owned(),
            headers: Vec::new(),
        }
    }

    pub(crate) fn tls(address: SocketAddr, authorities: &str) -> Self {
        Self {
            tls: Some(client_config(authorities, None)),
            ..Self::plain(address)
        }
    }

    pub(crate) fn identified(address: SocketAddr, authorities: &str, identity: &Identity) -> Self {
        Self {
            tls: Some(client_config(authorities, Some(identity))),
            ..Self::plain(address)
        }
    }

    pub(crate) fn named(self, name: &str) -> Self {
        let name = name.to_owned();
        Self { name, ..self }
    }

    pub(crate) fn token(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The headers with which an agent opens a tunnel.
    pub(crate) fn opening_tunnel(self, cluster: &str) -> Self {
        self.header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-protocol", "standin.tunnel.v1")
            .header(tunnel::VERSION_HEADER, &tunnel::VERSION.to_string())
            .header(tunnel::CLUSTER_HEADER, cluster)
    }

    pub(crate) async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let connection = TcpStream::connect(self.address).await?;
        let connector = TlsConnector::from(self.tls.clone().unwrap());
        let name = ServerName::try_from(self.name.clone()).unwrap();
        connector.connect(name, connection).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: Option<Value>) -> Reply {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        self.send_text(method, path, body).await
    }

    pub(crate) async fn send_text(&self, method: &str, path: &str, body: String) -> Reply {
        let sending = async {
            if self.tls.is_some() {
                let stream = self.connect().await.unwrap();
                self.send_over(stream, method, path, body).await
            } else {
                let stream = TcpStream::connect(self.address).await.unwrap();
                self.send_over(stream, method, path, body).await
            }
        };
        timeout(HANG, sending).await.unwrap()
    }

    async fn send_over(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        method: &str,
        path: &str,
        body: String,
    ) -> Reply {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "hub");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let response = sender.send_request(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let is_upgrade = parts.status.as_u16() == 101;
        let bytes = match is_upgrade {
            true => Bytes::new(),
            false => body.collect().await.unwrap().to_bytes(),
        };
        Reply {
            code: parts.status.as_u16(),
            headers: parts.headers,
            text: String::from_utf8_lossy(&bytes).into_owned(),
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        }
    }
}
