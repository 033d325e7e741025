//! Tokens of an OIDC provider. The provider's keys are fetched when they are needed, kept, and fetched again for a token that
//! is signed by an unknown one: so providers can rotate them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use error_chain::error_chain;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::Rejected;
pub(crate) use super::jwt::Algorithm;
use super::jwt::{self, Claims, Expected, JwtError, KeySet};
use crate::user::{User, is_system};

const DISCOVERY: &str = "/.well-known/openid-configuration";
/// How long keys are used, even if no token needs others: a provider may withdraw one.
const KEYS_TTL: Duration = Duration::from_secs(3600);
/// The smallest time between two fetches, so that invalid tokens are no load on the provider.
const FETCH_INTERVAL: Duration = Duration::from_secs(10);
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_DOCUMENT: usize = 1024 * 1024;

/// A provider whose tokens are accepted. The names are those of an API server's settings.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct OidcSettings {
    /// The address of the provider, exactly as its tokens name it.
    pub(crate) issuer: String,
    /// A token has to be for one of them. A client ID, as a rule.
    pub(crate) audiences: Vec<String>,
    #[serde(default = "default_username_claim")]
    pub(crate) username_claim: String,
    /// Without it, the prefix is the issuer and `#`, unless the claim is `email`. `-` is for none.
    #[serde(default)]
    pub(crate) username_prefix: Option<String>,
    #[serde(default)]
    pub(crate) groups_claim: Option<String>,
    #[serde(default)]
    pub(crate) groups_prefix: String,
    #[serde(default = "default_algorithms")]
    pub(crate) algorithms: Vec<Algorithm>,
    /// The authorities of the provider, in PEM, if they are not public ones.
    #[serde(default)]
    pub(crate) ca_file: Option<PathBuf>,
}

fn default_username_claim() -> String {
    "sub".to_owned()
}

fn default_algorithms() -> Vec<Algorithm> {
    vec![Algorithm::RS256, Algorithm::ES256]
}

/// Why a provider cannot be used.
#[derive(Debug, Error)]
pub(crate) enum OidcError {
    #[error("the OIDC issuer {0:?} is no https address")]
    Issuer(String),
    #[error("the OIDC issuer {0} has no audience; set the client IDs whose tokens are accepted")]
    NoAudience(String),
    #[error("cannot read the authorities of the OIDC provider from {path}")]
    Authorities {
        path: PathBuf,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("cannot set up TLS for the OIDC provider")]
    Tls(#[from] rustls::Error),
}

/// Why the keys of a provider could not be fetched.
#[derive(Debug, Error)]
enum FetchError {
    #[error("{url} does not respond")]
    TimedOut { url: String },
    #[error("cannot reach {url}")]
    Request {
        url: String,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{url} responds with status {status}")]
    Status { url: String, status: StatusCode },
    #[error("{url} responds with something else than expected")]
    Document {
        url: String,
        source: serde_json::Error,
    },
    #[error("the provider calls itself {found}, not {expected}")]
    Issuer { found: String, expected: String },
    #[error("the provider's keys are not at an https address: {0}")]
    Insecure(String),
}

type HttpsClient = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// A provider and its keys.
#[derive(Debug)]
pub(crate) struct Oidc {
    settings: OidcSettings,
    client: HttpsClient,
    keys: Mutex<Keys>,
}

#[derive(Debug, Default)]
struct Keys {
    set: Arc<KeySet>,
    /// When they were fetched, and when that was tried last.
    fetched: Option<Instant>,
    tried: Option<Instant>,
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

impl Oidc {
    pub(crate) fn new(settings: OidcSettings) -> Result<Self, OidcError> {
        let issuer = settings.issuer.parse::<Uri>().ok();
        let is_https = issuer.is_some_and(|uri| uri.scheme_str() == Some("https"));
        if !is_https || settings.issuer.contains(['?', '#']) {
            return Err(OidcError::Issuer(settings.issuer));
        }
        if settings.audiences.is_empty() {
            return Err(OidcError::NoAudience(settings.issuer));
        }
        let client = client(settings.ca_file.as_ref())?;
        Ok(Self {
            settings,
            client,
            keys: Mutex::default(),
        })
    }

    pub(super) fn issuer(&self) -> &str {
        &self.settings.issuer
    }

    pub(super) async fn authenticate(&self, token: &str, now: Timestamp) -> Result<User, Rejected> {
        let keys = self.keys(false).await?;
        let claims = match self.verify(token, &keys, now) {
            Err(JwtError::UnknownKey | JwtError::Signature) => {
                let keys = self.keys(true).await?;
                self.verify(token, &keys, now)
            }
            verified => verified,
        };
        let claims = claims.map_err(|error| Rejected::Invalid(error.to_string()))?;
        user(&self.settings, &claims).map_err(Rejected::Invalid)
    }

    fn verify(&self, token: &str, keys: &KeySet, now: Timestamp) -> Result<Claims, JwtError> {
        let expected = Expected {
            issuer: &self.settings.issuer,
            audiences: &self.settings.audiences,
            algorithms: &self.settings.algorithms,
        };
        jwt::verify(token, keys, &expected, now)
    }

    /// The provider's keys. With `renew`, they are fetched now, unless that was just tried.
    async fn keys(&self, renew: bool) -> Result<Arc<KeySet>, Rejected> {
        // Other callers wait here, and then find the keys.
        let mut keys = self.keys.lock().await;
        let is_fresh =
            |since: Option<Instant>, ttl| since.is_some_and(|since| since.elapsed() < ttl);
        let is_due = renew || !is_fresh(keys.fetched, KEYS_TTL);
        if !is_due || (keys.fetched.is_some() && is_fresh(keys.tried, FETCH_INTERVAL)) {
            return Ok(Arc::clone(&keys.set));
        }
        keys.tried = Some(Instant::now());
        match self.fetch().await {
            Ok(set) => {
                keys.set = Arc::new(set);
                keys.fetched = keys.tried;
            }
            Err(error) => {
                let (issuer, error) = (&self.settings.issuer, error_chain(&error));
                tracing::warn!(issuer, error, "fetch of OIDC keys failed");
                // Keys that were valid until now are better than none.
                if keys.fetched.is_none() {
                    let text = format!("the OIDC provider {issuer} is unavailable");
                    return Err(Rejected::Unavailable(text));
                }
            }
        }
        Ok(Arc::clone(&keys.set))
    }

    async fn fetch(&self) -> Result<KeySet, FetchError> {
        let issuer = &self.settings.issuer;
        let url = format!("{}{DISCOVERY}", issuer.trim_end_matches('/'));
        let discovery: Discovery = self.get(&url).await?;
        if discovery.issuer != *issuer {
            return Err(FetchError::Issuer {
                found: discovery.issuer,
                expected: issuer.clone(),
            });
        }
        if !discovery.jwks_uri.starts_with("https://") {
            return Err(FetchError::Insecure(discovery.jwks_uri));
        }
        self.get(&discovery.jwks_uri).await
    }

    async fn get<T: DeserializeOwned>(&self, url: &str) -> Result<T, FetchError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| FetchError::Request {
            url: url.to_owned(),
            source,
        };
        let request = Request::get(url).body(Empty::new());
        let request = request.map_err(|error| failed(Box::new(error)))?;
        let fetching = async {
            let response = self.client.request(request).await;
            let response = response.map_err(|error| failed(Box::new(error)))?;
            let status = response.status();
            if status != StatusCode::OK {
                let url = url.to_owned();
                return Err(FetchError::Status { url, status });
            }
            let body = Limited::new(response.into_body(), MAX_DOCUMENT);
            Ok(body.collect().await.map_err(failed)?.to_bytes())
        };
        let timed_out = |_| FetchError::TimedOut {
            url: url.to_owned(),
        };
        let body = timeout(FETCH_TIMEOUT, fetching)
            .await
            .map_err(timed_out)??;
        serde_json::from_slice(&body).map_err(|source| FetchError::Document {
            url: url.to_owned(),
            source,
        })
    }
}

fn client(ca_file: Option<&PathBuf>) -> Result<HttpsClient, OidcError> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = ca_file {
        let wrong = |source| OidcError::Authorities {
            path: path.clone(),
            source,
        };
        let pem = std::fs::read(path).map_err(|error| wrong(Box::new(error)))?;
        for authority in CertificateDer::pem_slice_iter(&pem) {
            let authority = authority.map_err(|error| wrong(Box::new(error)))?;
            roots.add(authority)?;
        }
    } else {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_only()
        .enable_http1()
        .build();
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

/// The user that the claims describe, as an API server with the same settings would name it.
fn user(settings: &OidcSettings, claims: &Claims) -> Result<User, String> {
    let claim = settings.username_claim.as_str();
    let name = claims.get(claim).and_then(Value::as_str);
    let name = name
        .filter(|name| !name.is_empty())
        .ok_or_else(|| format!("the token has no claim {claim:?}"))?;
    let is_email = claim == "email";
    let is_unverified = claims
        .get("email_verified")
        .is_some_and(|verified| *verified != Value::Bool(true));
    if is_email && is_unverified {
        return Err("the e-mail address of the token is not verified".to_owned());
    }
    let prefix = match settings.username_prefix.as_deref() {
        Some("-") => String::new(),
        Some(prefix) => prefix.to_owned(),
        None if is_email => String::new(),
        None => format!("{}#", settings.issuer),
    };
    let name = format!("{prefix}{name}");
    if is_system(&name) {
        return Err("a provider cannot name users of the system".to_owned());
    }
    Ok(User {
        name,
        groups: groups(settings, claims)?,
        ..User::default()
    })
}

fn groups(settings: &OidcSettings, claims: &Claims) -> Result<Vec<String>, String> {
    let Some(claim) = &settings.groups_claim else {
        return Ok(Vec::new());
    };
    let wrong = || format!("the claim {claim:?} of the token is no list of groups");
    let groups = match claims.get(claim) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(group)) => vec![group.as_str()],
        Some(Value::Array(groups)) => groups
            .iter()
            .map(|group| group.as_str().ok_or_else(wrong))
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(wrong()),
    };
    let groups = groups
        .into_iter()
        .map(|group| format!("{}{group}", settings.groups_prefix))
        // A provider must not give the rights of the system's groups.
        .filter(|group| !group.is_empty() && !is_system(group))
        .collect();
    Ok(groups)
}

#[cfg(test)]
mod tests;
