//! The operator's identity in AWS: the token of its service account, which Kubernetes refreshes in a file, is exchanged for
//! credentials.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use secrecy::SecretString;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::presign::{AwsCredentials, sts_host};
use super::public_roots;
use crate::multicluster::environment;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// The limit of a response, which has about two kilobytes.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;
const SESSION_NAME: &str = "standin-operator";

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The source of credentials. Kubernetes configures it in the pod's environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebIdentity {
    pub(crate) role: String,
    pub(crate) token_file: PathBuf,
    pub(crate) session_name: String,
    /// `None`: the region of the member.
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
}

impl WebIdentity {
    /// Returns `None` if the operator's service account has no role in AWS.
    pub(crate) fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        Some(Self {
            role: variable(environment::ROLE_ARN)?,
            token_file: variable(environment::WEB_IDENTITY_TOKEN_FILE)?.into(),
            session_name: variable(environment::ROLE_SESSION_NAME)
                .unwrap_or_else(|| SESSION_NAME.to_owned()),
            region: variable(environment::REGION),
            endpoint: variable(environment::STS_ENDPOINT),
        })
    }

    /// Credentials, and when they expire.
    pub(crate) async fn credentials(
        &self,
        region: &str,
    ) -> Result<(AwsCredentials, Timestamp), BoxError> {
        let path = &self.token_file;
        // A small file in memory, so blocking is acceptable.
        let token = std::fs::read_to_string(path)
            .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
        let region = self.region.as_deref().unwrap_or(region);
        let endpoint = match &self.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => format!("https://{}", sts_host(region)),
        };
        let endpoint: Uri = endpoint.parse()?;
        let body = self.request_body(token.trim());
        let response = timeout(REQUEST_TIMEOUT, send_request(&endpoint, body)).await??;
        parse_credentials(&response)
    }

    fn request_body(&self, token: &str) -> String {
        let encoded = |value: &str| utf8_percent_encode(value, NON_ALPHANUMERIC).to_string();
        format!(
            "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn={}&RoleSessionName={}&WebIdentityToken={}",
            encoded(&self.role),
            encoded(&self.session_name),
            encoded(token)
        )
    }
}

async fn send_request(endpoint: &Uri, body: String) -> Result<String, BoxError> {
    let host = endpoint.host().ok_or("the endpoint of AWS has no host")?;
    let is_https = endpoint.scheme_str() != Some("http");
    let port = endpoint
        .port_u16()
        .unwrap_or(if is_https { 443 } else { 80 });
    let connection = TcpStream::connect((host, port)).await?;
    if is_https {
        let name = ServerName::try_from(host.to_owned())?;
        let stream = connector()?.connect(name, connection).await?;
        exchange(stream, endpoint, body).await
    } else {
        exchange(connection, endpoint, body).await
    }
}

fn connector() -> Result<TlsConnector, BoxError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(public_roots())
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

async fn exchange<S>(stream: S, endpoint: &Uri, body: String) -> Result<String, BoxError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::post("/")
        .header(
            header::HOST,
            endpoint.authority().map_or("", |host| host.as_str()),
        )
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(Full::new(Bytes::from(body)))?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES);
        let body = body.collect().await?.to_bytes();
        let body = String::from_utf8_lossy(&body).into_owned();
        if !status.is_success() {
            let message = element(&body, "Message").unwrap_or_default();
            return Err(format!("AWS responded with {status}: {message}").into());
        }
        Ok(body)
    };
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        response = &mut exchange => response,
        // The connection may end with the last byte of the response.
        ended = connection => {
            ended?;
            exchange.await
        }
    }
}

fn parse_credentials(response: &str) -> Result<(AwsCredentials, Timestamp), BoxError> {
    let part = element(response, "Credentials").ok_or("the response of AWS has no credentials")?;
    let value =
        |name| element(part, name).ok_or_else(|| format!("the response of AWS has no {name}"));
    let expires = value("Expiration")?.parse()?;
    let credentials = AwsCredentials {
        access_key_id: value("AccessKeyId")?.to_owned(),
        secret_access_key: SecretString::from(value("SecretAccessKey")?),
        session_token: Some(SecretString::from(value("SessionToken")?)),
    };
    Ok((credentials, expires))
}

/// The text of an XML element. The elements that are read here have no attributes, occur once, and need no unescaping.
fn element<'text>(text: &'text str, name: &str) -> Option<&'text str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>"))
        .map(|(value, _)| value.trim())
}

#[cfg(test)]
mod tests;
