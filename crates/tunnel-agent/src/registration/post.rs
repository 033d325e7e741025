//! One request to the hub, before the agent has a certificate.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::hub::{Registered, Registration, path};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tunnel::{Proxy, ProxyRules};

use super::outcome::{RegistrationError, Response, outcome};
use crate::endpoint::Endpoint;

/// How long a registration may take. The hub signs at once.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The largest response. Certificates and a few authorities have some KiB.
const MAX_RESPONSE: usize = 256 * 1024;

/// How the request is sent.
pub(super) struct Post<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(super) tls: Arc<ClientConfig>,
    pub(super) has_pin: bool,
    pub(super) proxy: &'a ProxyRules,
}

impl Post<'_> {
    pub(super) async fn send(
        &self,
        registration: &Registration,
    ) -> Result<Registered, RegistrationError> {
        let exchange = self.exchange(registration);
        timeout(TIMEOUT, exchange).await.unwrap_or_else(|_| {
            Err(RegistrationError::Timeout {
                endpoint: self.endpoint.to_string(),
            })
        })
    }

    async fn exchange(&self, registration: &Registration) -> Result<Registered, RegistrationError> {
        if !self.endpoint.scheme().is_encrypted() {
            return Err(RegistrationError::NotEncrypted {
                endpoint: self.endpoint.to_string(),
            });
        }
        let stream = self.connect().await?;
        let name = self.endpoint.server_name();
        let name = name.map_err(|error| self.unreachable(io::Error::other(error)))?;
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        match connector.connect(name, stream).await {
            Ok(stream) => self.request(stream, registration).await,
            Err(error) => Err(self.tls_error(error, &registration.cluster)),
        }
    }

    /// Connects directly, or through the proxy.
    async fn connect(&self) -> Result<TcpStream, RegistrationError> {
        let (host, port) = (self.endpoint.host(), self.endpoint.port());
        let proxy = self.proxy.proxy_for(host, port);
        let address = proxy.map_or((host, port), Proxy::address);
        let connected = TcpStream::connect(address).await;
        let mut stream = connected.map_err(|source| self.unreachable(source))?;
        if let Some(proxy) = proxy {
            let connected = proxy.connect(&mut stream, &self.endpoint.authority()).await;
            connected.map_err(|error| self.unreachable(io::Error::other(error)))?;
        }
        Ok(stream)
    }

    async fn request<S>(
        &self,
        stream: S,
        registration: &Registration,
    ) -> Result<Registered, RegistrationError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let read_error = |source| RegistrationError::Read {
            endpoint: self.endpoint.to_string(),
            source,
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(read_error)?;
        tokio::spawn(async move { drop(connection.await) });
        let content = serde_json::to_vec(registration).unwrap_or_default();
        let request = Request::post(path::REGISTER)
            .header(header::HOST, self.endpoint.authority())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(Full::new(Bytes::from(content)))
            .map_err(|error| self.unreachable(io::Error::other(error)))?;
        let (parts, body) = sender
            .send_request(request)
            .await
            .map_err(read_error)?
            .into_parts();
        let body = Limited::new(body, MAX_RESPONSE).collect().await;
        let body = body.map_err(|error| self.unreachable(io::Error::other(error)))?;
        let location = parts.headers.get(header::LOCATION);
        let response = Response {
            status: parts.status,
            location: location.and_then(|value| value.to_str().ok()),
            body: &body.to_bytes(),
        };
        outcome(&response, self.endpoint, &registration.cluster)
    }

    fn unreachable(&self, source: io::Error) -> RegistrationError {
        RegistrationError::Connect {
            endpoint: self.endpoint.to_string(),
            source,
        }
    }

    /// Tells a certificate that is not trusted from other failures: only an administrator can do something about it.
    fn tls_error(&self, error: io::Error, cluster: &str) -> RegistrationError {
        let endpoint = self.endpoint.to_string();
        let cluster = cluster.to_owned();
        let tls = error
            .get_ref()
            .and_then(|error| error.downcast_ref::<rustls::Error>());
        match tls {
            Some(rustls::Error::InvalidCertificate(_)) if self.has_pin => {
                RegistrationError::WrongPin { endpoint, cluster }
            }
            Some(rustls::Error::InvalidCertificate(reason)) => RegistrationError::Untrusted {
                endpoint,
                cluster,
                reason: reason.to_string(),
            },
            Some(error) => RegistrationError::Tls {
                endpoint,
                reason: error.to_string(),
            },
            None => self.unreachable(error),
        }
    }
}
