//! Authentication of requests: the API server, and the user for whom it forwards a request.
//!
//! The API server presents a certificate of the cluster's front-proxy authority and names the user in headers. The headers
//! of other clients cannot be trusted, so a request without that certificate is refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderMap;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use percent_encoding::percent_decode_str;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_parser::prelude::FromDer as _;

use crate::error::{Error, KubeResultExt as _, Result};
use crate::response::Refusal;

const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// How the cluster's front proxy is authenticated, and which headers it sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrontProxy {
    authority: String,
    /// The common names of certificates. Empty for any.
    allowed_names: Vec<String>,
    username_headers: Vec<String>,
    group_headers: Vec<String>,
    extra_prefixes: Vec<String>,
}

/// The user for whom the API server forwards a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
    pub(crate) extra: BTreeMap<String, Vec<String>>,
}

impl FrontProxy {
    pub(crate) async fn read(client: &Client) -> Result<Self> {
        let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let config_map = config_maps
            .get(CONFIG_MAP)
            .await
            .action(format!("read the ConfigMap {NAMESPACE}/{CONFIG_MAP}"))?;
        Self::from_config_map(&config_map)
    }

    pub(crate) fn from_config_map(config_map: &ConfigMap) -> Result<Self> {
        let value = |key: &'static str| {
            let data = config_map.data.as_ref()?;
            data.get(key).filter(|value| !value.is_empty())
        };
        let list = |key: &'static str| -> Result<Vec<String>> {
            let Some(value) = value(key) else {
                return Ok(Vec::new());
            };
            serde_json::from_str(value).map_err(|error| Error::FrontProxy {
                key,
                source: Box::new(error),
            })
        };
        let authority_key = "requestheader-client-ca-file";
        Ok(Self {
            authority: value(authority_key)
                .ok_or(Error::NoFrontProxy { key: authority_key })?
                .clone(),
            allowed_names: list("requestheader-allowed-names")?,
            username_headers: list("requestheader-username-headers")?,
            group_headers: list("requestheader-group-headers")?,
            extra_prefixes: list("requestheader-extra-headers-prefix")?,
        })
    }

    /// A verifier that accepts certificates of the front proxy's authority, and connections without a certificate, which get
    /// a readable refusal.
    pub(crate) fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>> {
        let key = "requestheader-client-ca-file";
        let wrong = |source| Error::FrontProxy { key, source };
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(self.authority.as_bytes()) {
            let authority = authority.map_err(|error| wrong(Box::new(error)))?;
            roots.add(authority)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .allow_unauthenticated()
            .build()
            .map_err(|error| wrong(Box::new(error)))
    }

    /// Whether a connection comes from the front proxy. The verifier has already checked the authority of the certificate.
    pub(crate) fn recognise(&self, certificate: Option<&CertificateDer<'_>>) -> bool {
        let Some(certificate) = certificate else {
            return false;
        };
        if self.allowed_names.is_empty() {
            return true;
        }
        common_name(certificate).is_some_and(|name| self.allowed_names.contains(&name))
    }

    /// The user that the front proxy names.
    pub(crate) fn user(&self, headers: &HeaderMap) -> Result<User, Refusal> {
        let name = first(headers, &self.username_headers)
            .ok_or_else(|| Refusal::unauthorized("the request names no user"))?;
        Ok(User {
            name,
            groups: all(headers, &self.group_headers),
            extra: self.extra(headers),
        })
    }

    fn extra(&self, headers: &HeaderMap) -> BTreeMap<String, Vec<String>> {
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in headers {
            for prefix in &self.extra_prefixes {
                let prefix = prefix.to_ascii_lowercase();
                if let Some(key) = name.as_str().strip_prefix(&prefix)
                    && let Ok(value) = value.to_str()
                {
                    // Kubernetes writes keys in lower case, and percent-encodes what a header's name cannot have.
                    let key = percent_decode_str(key).decode_utf8_lossy();
                    let values = extra.entry(key.into_owned()).or_default();
                    values.push(value.to_owned());
                }
            }
        }
        extra
    }
}

fn first(headers: &HeaderMap, names: &[String]) -> Option<String> {
    all(headers, names).into_iter().next()
}

fn all(headers: &HeaderMap, names: &[String]) -> Vec<String> {
    names
        .iter()
        .flat_map(|name| headers.get_all(name.as_str()))
        .filter_map(|value| value.to_str().ok())
        .filter(|value| !value.is_empty())
        .map(str::to_owned)
        .collect()
}

fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(certificate).ok()?;
    let name = certificate.subject().iter_common_name().next()?;
    name.as_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn config_map(data: &[(&str, &str)]) -> ConfigMap {
        let data: BTreeMap<String, String> = data
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        ConfigMap {
            data: Some(data),
            ..ConfigMap::default()
        }
    }

    fn front_proxy() -> FrontProxy {
        FrontProxy::from_config_map(&config_map(&[
            ("requestheader-client-ca-file", "a certificate"),
            ("requestheader-allowed-names", r#"["front-proxy"]"#),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
            ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
            (
                "requestheader-extra-headers-prefix",
                r#"["X-Remote-Extra-"]"#,
            ),
        ]))
        .unwrap()
    }

    fn certificate(name: &str) -> CertificateDer<'static> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        parameters.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn only_the_front_proxy_is_recognised() {
        let ours = front_proxy();
        assert!(ours.recognise(Some(&certificate("front-proxy"))));
        assert!(!ours.recognise(Some(&certificate("someone"))));
        assert!(!ours.recognise(None));
        let any = FrontProxy {
            allowed_names: Vec::new(),
            ..ours
        };
        assert!(any.recognise(Some(&certificate("someone"))));
        assert!(!any.recognise(None));
    }

    #[test]
    fn the_user_is_who_the_headers_name() {
        let mut headers = HeaderMap::new();
        assert!(front_proxy().user(&headers).is_err());
        headers.append("x-remote-user", "anna".parse().unwrap());
        headers.append("x-remote-group", "developers".parse().unwrap());
        headers.append("x-remote-group", "system:authenticated".parse().unwrap());
        for team in ["shop", "web"] {
            headers.append("x-remote-extra-example.org%2fteam", team.parse().unwrap());
        }
        headers.append("x-remote-users", "eve".parse().unwrap());
        let user = front_proxy().user(&headers).unwrap();
        assert_eq!(
            user,
            User {
                name: "anna".to_owned(),
                groups: vec!["developers".to_owned(), "system:authenticated".to_owned()],
                extra: [(
                    "example.org/team".to_owned(),
                    vec!["shop".to_owned(), "web".to_owned()]
                )]
                .into(),
            }
        );
    }

    #[test]
    fn the_error_without_an_aggregation_layer_explains_what_to_do() {
        let error = FrontProxy::from_config_map(&config_map(&[])).unwrap_err();
        assert!(
            error.to_string().contains("--requestheader-client-ca-file"),
            "{error}"
        );
    }
}
