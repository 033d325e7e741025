//! The client for the cluster's own API server.
//!
//! It is small on purpose: an agent that only forwards requests does not need a Kubernetes library, whose caches and
//! types would be most of its memory. The same connections carry the requests of users and the agent's own few.
//!
//! | module | what it does |
//! |---|---|
//! | [`connection`] | one connection, over HTTP/2 or HTTP/1.1 |
//! | [`pool`] | chooses a connection for a request, and opens new ones |
//! | [`secret`] | reads and updates the agent's Secret |
//! | [`token`] | the agent's credential, which the kubelet replaces |

mod connection;
mod pool;
pub(crate) mod secret;
mod token;

use std::fs;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::body::{self, Body};
use crate::error::{Error, Result};
use crate::settings::ApiServerSettings;

use self::connection::Dialer;
use self::pool::Pool;
use self::token::TokenFile;

/// The largest response to a request of the agent itself.
const MAX_OWN_RESPONSE: usize = 2 * 1024 * 1024;

pub(crate) struct ApiServer {
    authority: Authority,
    namespace: String,
    token: TokenFile,
    dialer: Arc<Dialer>,
    pool: Pool,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ApiServer")
            .field("authority", &self.authority)
            .finish_non_exhaustive()
    }
}

impl ApiServer {
    pub(crate) fn new(settings: &ApiServerSettings) -> Result<Self> {
        let authority = settings.server.authority();
        let authority = authority
            .parse()
            .map_err(|_| Error::ApiServerAddress(settings.server.to_string()))?;
        let name = settings
            .server
            .server_name()
            .map_err(|_| Error::ApiServerAddress(settings.server.to_string()))?;
        let dialer = Arc::new(Dialer::new(
            &settings.server,
            name,
            &tls(&settings.ca_file)?,
        ));
        Ok(Self {
            authority,
            namespace: settings.namespace.clone(),
            token: TokenFile::open(&settings.token_file)?,
            pool: Pool::new(Arc::clone(&dialer)),
            dialer,
        })
    }

    /// Sends a request with the agent's credential. The path and everything else is the caller's.
    pub(crate) async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>> {
        self.address(&mut request)?;
        let response = self.pool.send(request).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            self.token.expire();
        }
        Ok(response)
    }

    /// Opens a connection that is used by one request only, over HTTP/1.1, and prepares the request for it. A connection
    /// that changes its protocol cannot be shared.
    pub(crate) async fn connect_for_upgrade<B>(
        &self,
        request: &mut Request<B>,
    ) -> Result<TlsStream<TcpStream>> {
        self.address(request)?;
        let host = HeaderValue::from_str(self.authority.as_str());
        let host = host.map_err(|_| Error::ApiServerAddress(self.authority.to_string()))?;
        request.headers_mut().insert(header::HOST, host);
        let path = path_of(request.uri());
        *request.uri_mut() = Uri::from(path);
        let dialed = self.dialer.dial_http1().await;
        dialed.map_err(|error| Error::ConnectApiServer(Arc::new(error)))
    }

    /// The version of the API server, such as `v1.34.1`.
    pub(crate) async fn version(&self) -> Result<String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            git_version: String,
        }
        let (status, body) = self
            .own_request(Request::get("/version"), Bytes::new())
            .await?;
        let version: Option<Version> = serde_json::from_slice(&body).ok();
        match version {
            Some(version) if status == StatusCode::OK => Ok(version.git_version),
            _ => Err(Error::UnexpectedResponse {
                action: "read the version of the API server",
                status,
            }),
        }
    }

    /// A request of the agent itself.
    async fn own_request(
        &self,
        request: http::request::Builder,
        content: Bytes,
    ) -> Result<(StatusCode, Bytes)> {
        let request = request
            .header(header::ACCEPT, "application/json")
            .body(body::of(Full::new(content)))
            .map_err(|_| Error::ApiServerAddress(self.authority.to_string()))?;
        let response = self.send(request).await?;
        let status = response.status();
        let mut body = response.into_body();
        let mut content = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(Error::ReadResponse)?;
            if let Ok(data) = frame.into_data() {
                content.extend_from_slice(&data);
            }
            if content.len() > MAX_OWN_RESPONSE {
                return Err(Error::LargeResponse);
            }
        }
        Ok((status, content.freeze()))
    }

    fn address<B>(&self, request: &mut Request<B>) -> Result<()> {
        let path = path_of(request.uri());
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTPS);
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(path);
        *request.uri_mut() = Uri::from_parts(parts)
            .map_err(|_| Error::ApiServerAddress(self.authority.to_string()))?;
        *request.version_mut() = http::Version::default();
        crate::headers::set_token(request.headers_mut(), &self.token.current()?);
        Ok(())
    }
}

fn path_of(uri: &Uri) -> PathAndQuery {
    let root = PathAndQuery::from_static("/");
    uri.path_and_query().cloned().unwrap_or(root)
}

fn tls(ca_file: &std::path::Path) -> Result<ClientConfig> {
    let unreadable = |reason: String| Error::ApiServerAuthorities {
        path: ca_file.to_owned(),
        reason,
    };
    let pem = fs::read(ca_file).map_err(|error| unreadable(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| unreadable(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unreadable("it has no certificate".to_owned()));
    }
    Ok(crate::trust::client_builder()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// The server name of TLS, for tests and errors.
pub(crate) type Name = ServerName<'static>;

#[cfg(test)]
mod tests;
