//! Sends requests to a hub.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use api::hub::{Cluster, ClusterList, ErrorBody, HubDescription, path};
use axum::body::Bytes;
use axum::http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::address::HubAddress;
use super::connection;
use super::error::{self, HubError, Operation};
use super::store::{Credential, Login};
use super::token::Token;
use super::trust::Verifier;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// A list of a thousand clusters has less than 1 MiB.
const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;

/// One hub, and a user's token for it.
#[derive(Debug)]
pub(super) struct HubClient {
    address: HubAddress,
    verifier: Arc<Verifier>,
    connector: TlsConnectorOf,
    token: Option<Token>,
}

/// Without what would be in debug output.
struct TlsConnectorOf(TlsConnector);

impl std::fmt::Debug for TlsConnectorOf {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("TlsConnector")
    }
}

impl HubClient {
    pub(super) fn new(
        address: HubAddress,
        verifier: Arc<Verifier>,
        token: Option<Token>,
    ) -> Result<Self> {
        let config = verifier.client_config()?;
        Ok(Self {
            address,
            verifier,
            connector: TlsConnectorOf(TlsConnector::from(Arc::new(config))),
            token,
        })
    }

    /// A client that trusts what the login trusts, and sends its token.
    pub(super) async fn with_login(login: &Login) -> Result<Self> {
        let verifier = Verifier::new(login.authorities.as_deref(), login.pin)
            .with_context(|| format!("the login to {} is damaged; log in again", login.address))?;
        let token = current_token(login).await?;
        Self::new(login.address.clone(), verifier, Some(token))
    }

    /// Only the TLS handshake: whether the hub's certificate is trusted. Sends no token.
    pub(super) async fn check_trust(&self) -> Result<(), HubError> {
        self.connect().await.map(drop)
    }

    pub(super) async fn describe(&self) -> Result<HubDescription, HubError> {
        self.get(path::HUB, &error::DESCRIBE).await
    }

    pub(super) async fn list(&self) -> Result<Vec<Cluster>, HubError> {
        let list: ClusterList = self.get(path::CLUSTERS, &error::LIST).await?;
        Ok(list.clusters)
    }

    /// A cluster. The error for an unknown one names similar ones.
    pub(super) async fn cluster(&self, name: &str) -> Result<Cluster> {
        match self.get(&cluster_path(name), &error::GET).await {
            Err(error) => Err(self.explain_unknown(name, error).await),
            Ok(cluster) => Ok(cluster),
        }
    }

    /// For the error of a request about this cluster.
    pub(super) async fn explain_unknown(&self, name: &str, error: HubError) -> anyhow::Error {
        if error.status() != Some(StatusCode::NOT_FOUND) {
            return error.into();
        }
        let clusters = self.list().await.unwrap_or_default();
        let names: Vec<&str> = clusters
            .iter()
            .map(|cluster| cluster.name.as_str())
            .collect();
        let next = match config::closest(name, names.iter().copied()) {
            Some(similar) => format!("did you mean {similar}? `standin cluster list` lists all"),
            None => {
                format!(
                    "`standin cluster list` lists all, and `standin cluster add {name}` adds it"
                )
            }
        };
        anyhow::anyhow!("the hub {} has no cluster {name}; {next}", self.address)
    }

    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        operation: &'static Operation,
    ) -> Result<T, HubError> {
        let body = self
            .send(Method::GET, path, Bytes::new(), operation)
            .await?;
        self.parse(&body)
    }

    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        operation: &'static Operation,
    ) -> Result<T, HubError> {
        let body = serde_json::to_vec(body);
        let body =
            body.map_err(|error| HubError::Connection(self.address.clone(), error.into()))?;
        let body = self
            .send(Method::POST, path, body.into(), operation)
            .await?;
        self.parse(&body)
    }

    pub(super) async fn delete(
        &self,
        path: &str,
        operation: &'static Operation,
    ) -> Result<(), HubError> {
        let body = self.send(Method::DELETE, path, Bytes::new(), operation);
        body.await.map(drop)
    }

    fn parse<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, HubError> {
        let parsed = serde_json::from_slice(body);
        parsed.map_err(|error| HubError::NotAHub(self.address.clone(), error.to_string()))
    }

    /// Sends a request on a connection of its own, and returns the body of a successful response.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        operation: &'static Operation,
    ) -> Result<Bytes, HubError> {
        let failed = |error| HubError::Connection(self.address.clone(), error);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.address.authority())
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            let value = format!("Bearer {}", token.expose());
            request = request.header(header::AUTHORIZATION, value);
        }
        let request = request.body(Full::new(body));
        let request = request.map_err(|error| failed(error.into()))?;
        let mut sender = self.connect().await?;
        let response = async {
            let response = sender.send_request(request).await;
            let response = response.map_err(|error| failed(error.into()))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
            Ok((head.status, body.map_err(failed)?.to_bytes()))
        };
        let response = timeout(REQUEST_TIMEOUT, response).await;
        let no_response = |_| Err(HubError::NoResponse(self.address.clone()));
        let (status, body) = response.unwrap_or_else(no_response)?;
        match status.is_success() {
            true => Ok(body),
            false => Err(self.refused(status, &body, operation)),
        }
    }

    fn refused(&self, status: StatusCode, body: &[u8], operation: &'static Operation) -> HubError {
        let hub = self.address.clone();
        let error: Option<ErrorBody> = serde_json::from_slice(body).ok();
        let message = error.map(|body| match body.hint {
            Some(hint) => format!("{}; {hint}", body.error),
            None => body.error,
        });
        match (status, message) {
            (StatusCode::UNAUTHORIZED, message) => {
                HubError::Unauthorized(hub, message.unwrap_or_default())
            }
            (StatusCode::FORBIDDEN, message) => {
                HubError::Forbidden(hub, operation, message.unwrap_or_default())
            }
            // A gateway's own page, while no hub is behind it.
            (status, None) if status.is_server_error() => {
                HubError::Refused(hub, status, String::new())
            }
            (status, None) => HubError::NotAHub(hub, status.to_string()),
            (status, Some(message)) => HubError::Refused(hub, status, message),
        }
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, HubError> {
        let address = &self.address;
        let connected = timeout(CONNECT_TIMEOUT, async {
            let stream = connection::connect(address).await;
            let stream = stream.map_err(|error| HubError::Unreachable(address.clone(), error))?;
            let name = ServerName::try_from(address.host.clone())
                .map_err(|error| HubError::Connection(address.clone(), error.into()))?;
            let stream = self.connector.0.connect(name, stream).await;
            stream.map_err(|error| {
                let (expected, shown) = (self.verifier.pin(), self.verifier.shown());
                HubError::of_handshake(address, error, expected, shown)
            })
        });
        let no_response = |_| Err(HubError::NoResponse(address.clone()));
        let stream = connected.await.unwrap_or_else(no_response)?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) =
            handshake.map_err(|error| HubError::Connection(address.clone(), error.into()))?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

pub(super) fn cluster_path(name: &str) -> String {
    format!("{}/{name}", path::CLUSTERS)
}

/// The token of a login. One from a context is read again each time, because it may have a short life.
pub(super) async fn current_token(login: &Login) -> Result<Token> {
    let url = login.address.url();
    let (token, again) = match &login.credential {
        Credential::Token { token } => {
            let again = format!("log in again: `standin cluster login {url} --token-file FILE`");
            (token.clone(), again)
        }
        Credential::KubeContext {
            context,
            kubeconfig,
        } => {
            let access = ::cluster::Access {
                kubeconfig: kubeconfig.clone(),
                context: Some(context.clone()),
                ..::cluster::Access::default()
            };
            let token = ::cluster::bearer_token(&access).await?;
            let token = Token::parse(&token).map_err(anyhow::Error::msg);
            let token = token.with_context(|| format!("the token of the context {context}"))?;
            (token, format!("get a new token for the context {context}"))
        }
    };
    match token.expires_at() {
        Some(expires_at) if token.is_expired(Timestamp::now()) => bail!(
            "your token for the hub {} expired at {expires_at}; {again}",
            login.address
        ),
        _ => Ok(token),
    }
}
