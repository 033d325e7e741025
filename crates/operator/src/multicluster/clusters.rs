//! The configured clusters: `clusters-config.yaml` of the ConfigMap, validated whenever it changes. The chart validates its
//! values in the same way; this is for administrators who write the file themselves. Each message names the value of the chart.

use std::collections::BTreeMap;
use std::fmt;

use api::multicluster::OnUnreachable;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use serde::Deserialize;
use x509_parser::pem::Pem;

/// The longest name of a cluster. Names of objects have 253 characters at most, and contain more than the cluster's name.
const MAX_NAME_LENGTH: usize = 220;

/// The clusters of an operator that is a Primary. The values are validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MultiCluster {
    /// The name of this cluster.
    pub(crate) name: String,
    /// The cluster that serves stateful operations.
    pub(crate) default: String,
    /// Whether this cluster only coordinates, and has no targets.
    pub(crate) is_management_only: bool,
    /// What happens to sessions when one of their clusters is unreachable.
    pub(crate) on_unreachable: OnUnreachable,
    pub(crate) members: Vec<Member>,
}

/// A member cluster, which has its own operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// The address of its API server.
    pub(crate) server: Uri,
    /// The certificate authorities of its API server, in DER. `None`: the public ones.
    pub(crate) authorities: Option<Vec<Vec<u8>>>,
    pub(crate) method: AuthMethod,
    /// The namespace of its operator, in which tokens are requested.
    pub(crate) namespace: Option<String>,
}

/// How the operator authenticates to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AuthMethod {
    /// A token of a service account there, from a Secret. It is renewed before it expires.
    BearerToken,
    /// A token that AWS verifies, created with the operator's own role.
    Eks { region: String },
    /// A client certificate, from a Secret.
    Mtls,
    /// The member dials out to a hub, which authenticates the operator and speaks to the member's API server for it.
    Tunnel,
}

impl Member {
    /// The name of this member's Secret, which the chart or an administrator creates.
    pub(crate) fn secret(&self) -> String {
        format!("mirrord-cluster-{}", self.name)
    }
}

impl MultiCluster {
    /// The clusters that have targets. This cluster is the first, if it has targets.
    pub(crate) fn workload_clusters(&self) -> Vec<&str> {
        let here = (!self.is_management_only).then_some(self.name.as_str());
        let members = self.members.iter().map(|member| member.name.as_str());
        here.into_iter().chain(members).collect()
    }

    /// Parses and validates `clusters-config.yaml`. The environment can make the Primary management-only as well.
    pub(crate) fn read(text: &str, is_management_only: bool) -> Result<Self, InvalidClusters> {
        let mut file: File = serde_saphyr::from_str(text).map_err(|error| {
            let error = error.to_string();
            invalid("", format!("cannot be read: {}", error.trim()))
        })?;
        file.management_only |= is_management_only;
        let name = file.cluster_name.unwrap_or_default();
        if name.is_empty() {
            return Err(invalid(
                "clusterName",
                "is missing: this cluster needs a name",
            ));
        }
        check_object_name(&name).map_err(|why| invalid("clusterName", why))?;
        if file.clusters.is_empty() {
            return Err(invalid(
                "clusters",
                "names no cluster: add a member, or leave `operator.multiCluster.enabled` off",
            ));
        }
        let default = default_of(
            &name,
            file.default_cluster.as_deref(),
            file.management_only,
            &file.clusters,
        )?;
        let mut names = BTreeMap::from([(object_part(&name), name.clone())]);
        let mut members = Vec::new();
        for entry in file.clusters {
            let member = entry.validate()?;
            if let Some(other) = names.insert(object_part(&member.name), member.name.clone()) {
                let why =
                    format!("has the same name as `{other}`, apart from capital letters and signs");
                return Err(invalid(&format!("clusters.{}", member.name), why));
            }
            members.push(member);
        }
        Ok(Self {
            name,
            default,
            is_management_only: file.management_only,
            on_unreachable: on_unreachable(file.on_unreachable.as_deref())?,
            members,
        })
    }
}

/// A cluster's name as a part of an object's name. EKS allows characters that Kubernetes does not.
pub(crate) fn object_part(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

/// What is wrong, and where in the chart's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidClusters {
    key: String,
    why: String,
}

impl fmt::Display for InvalidClusters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.key.is_empty() { "" } else { "." };
        write!(
            formatter,
            "`operator.multiCluster{separator}{}` {}",
            self.key, self.why
        )
    }
}

impl std::error::Error for InvalidClusters {}

fn invalid(key: &str, why: impl Into<String>) -> InvalidClusters {
    InvalidClusters {
        key: key.to_owned(),
        why: why.into(),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct File {
    cluster_name: Option<String>,
    default_cluster: Option<String>,
    management_only: bool,
    on_unreachable: Option<String>,
    clusters: Vec<Entry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Entry {
    name: String,
    server: Option<String>,
    ca_data: Option<String>,
    auth_type: Option<String>,
    region: Option<String>,
    is_default: bool,
    namespace: Option<String>,
}

impl Entry {
    fn validate(self) -> Result<Member, InvalidClusters> {
        let at = |key: &str| format!("clusters.{}.{key}", self.name);
        let region = self.region.filter(|region| !region.is_empty());
        let method = match (self.auth_type.as_deref(), region) {
            (Some("bearerToken"), None) => AuthMethod::BearerToken,
            (Some("mtls"), None) => AuthMethod::Mtls,
            (Some("tunnel"), None) => AuthMethod::Tunnel,
            (Some("eks"), Some(region)) => AuthMethod::Eks { region },
            (Some("eks"), None) => {
                return Err(invalid(
                    &at("region"),
                    "is missing: `authType: eks` needs it",
                ));
            }
            (Some("bearerToken" | "mtls" | "tunnel"), Some(_)) => {
                return Err(invalid(&at("region"), "is only for `authType: eks`"));
            }
            (None | Some(""), _) => {
                return Err(invalid(
                    &at("authType"),
                    "is missing; it can be bearerToken, eks, mtls or tunnel",
                ));
            }
            (Some(other), _) => {
                let why = format!("is `{other}`; it can be bearerToken, eks, mtls or tunnel");
                return Err(invalid(&at("authType"), why));
            }
        };
        let name_check = match &method {
            AuthMethod::Eks { .. } => check_eks_name(&self.name),
            // The name is also part of the name of a Secret.
            AuthMethod::BearerToken | AuthMethod::Mtls | AuthMethod::Tunnel => {
                check_object_name(&self.name)
            }
        };
        name_check.map_err(|why| invalid(&format!("clusters.{}", self.name), why))?;
        let server = server(self.server.as_deref()).map_err(|why| invalid(&at("server"), why))?;
        let server = match method {
            AuthMethod::Tunnel => behind_hub(&server, &self.name),
            _ => Some(server),
        };
        let server = server.ok_or_else(|| {
            let why =
                "has a path: for `authType: tunnel` it is the hub's address, https://HOST:PORT";
            invalid(&at("server"), why)
        })?;
        let ca_data = self.ca_data.as_deref().filter(|data| !data.is_empty());
        let authorities = ca_data
            .map(authorities)
            .transpose()
            .map_err(|why| invalid(&at("caData"), why))?;
        if authorities.is_none() && matches!(method, AuthMethod::Eks { .. }) {
            return Err(invalid(
                &at("caData"),
                "is missing: `authType: eks` needs it, because no public authority signs the certificates of EKS",
            ));
        }
        Ok(Member {
            server,
            authorities,
            method,
            namespace: self.namespace.filter(|namespace| !namespace.is_empty()),
            name: self.name,
        })
    }
}

fn on_unreachable(value: Option<&str>) -> Result<OnUnreachable, InvalidClusters> {
    match value {
        None | Some("" | "fail") => Ok(OnUnreachable::Fail),
        Some("continue") => Ok(OnUnreachable::Continue),
        Some(other) => {
            let why = format!("is `{other}`; it can be fail or continue");
            Err(invalid("onUnreachable", why))
        }
    }
}

fn default_of(
    name: &str,
    configured: Option<&str>,
    is_management_only: bool,
    clusters: &[Entry],
) -> Result<String, InvalidClusters> {
    let configured = configured.filter(|name| !name.is_empty());
    let mut marked = clusters.iter().filter(|entry| entry.is_default);
    let first = marked.next().map(|entry| entry.name.as_str());
    if let (Some(first), Some(second)) = (first, marked.next()) {
        let why = format!("is set, and so is that of {first}; one cluster is the default");
        return Err(invalid(&format!("clusters.{}.isDefault", second.name), why));
    }
    let default = match (configured, first) {
        (Some(configured), Some(first)) if configured != first => {
            let why =
                format!("is {configured}, and clusters.{first}.isDefault is set; set one of them");
            return Err(invalid("defaultCluster", why));
        }
        (Some(default), _) | (None, Some(default)) => default,
        (None, None) => {
            return Err(invalid(
                "defaultCluster",
                "is missing: environment, files and outgoing connections come from one cluster",
            ));
        }
    };
    if default == name && is_management_only {
        let why = format!(
            "is {default}, which has no targets because managementOnly is set; name a member"
        );
        return Err(invalid("defaultCluster", why));
    }
    let exists = default == name || clusters.iter().any(|entry| entry.name == default);
    if !exists {
        let why = format!("is {default}, which is neither clusterName nor one of clusters");
        return Err(invalid("defaultCluster", why));
    }
    Ok(default.to_owned())
}

/// Whether Kubernetes allows the name as a part of the name of a Secret.
fn check_object_name(name: &str) -> Result<(), &'static str> {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let (first, last) = (label.bytes().next(), label.bytes().last());
        first.is_some_and(is_letter)
            && last.is_some_and(is_letter)
            && label.bytes().all(|byte| is_letter(byte) || byte == b'-')
    };
    if name.len() <= MAX_NAME_LENGTH && name.split('.').all(is_label) {
        Ok(())
    } else {
        Err(
            "must be a name of small letters, digits, `-` and `.`, of 220 at most, with a letter or digit at both ends of each part: objects are named after it",
        )
    }
}

fn check_eks_name(name: &str) -> Result<(), &'static str> {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let (first, last) = (name.bytes().next(), name.bytes().last());
    if name.len() <= 100 && is_end(first) && is_end(last) && name.bytes().all(is_inner) {
        Ok(())
    } else {
        Err("must be the name of an EKS cluster: letters, digits, `-` and `_`, of 100 at most")
    }
}

fn server(server: Option<&str>) -> Result<Uri, &'static str> {
    let server = server.unwrap_or_default();
    if server.is_empty() {
        return Err("is missing: it is the address of the member's API server");
    }
    // A credential is sent there, so the connection must be encrypted.
    if !server.starts_with("https://") {
        return Err("must begin with https://");
    }
    let uri: Option<Uri> = server.parse().ok();
    uri.filter(has_host)
        .ok_or("names no host: it is https://HOST or https://HOST:PORT")
}

/// The address of a member's API server at a hub. It may be given with or without the path.
fn behind_hub(hub: &Uri, member: &str) -> Option<Uri> {
    let path = format!("{}{member}", api::hub::path::PROXY);
    let given = hub.path().trim_end_matches('/');
    if !given.is_empty() && given != path {
        return None;
    }
    let mut parts = hub.clone().into_parts();
    parts.path_and_query = path.parse().ok();
    Uri::from_parts(parts).ok()
}

/// Whether a URL has a host and, apart from it, only a port and a path.
fn has_host(uri: &Uri) -> bool {
    let Some(authority) = uri.authority() else {
        return false;
    };
    let host = authority.host();
    let port = authority.port_u16();
    let expected = port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    !host.is_empty() && authority.as_str() == expected && uri.query().is_none()
}

fn authorities(data: &str) -> Result<Vec<Vec<u8>>, &'static str> {
    let pem = STANDARD
        .decode(data.split_whitespace().collect::<String>())
        .map_err(|_| "is not base64")?;
    let certificates: Result<Vec<Pem>, _> = Pem::iter_from_buffer(&pem).collect();
    let certificates = certificates.map_err(|_| "is not base64 of certificates in PEM")?;
    let certificates: Vec<_> = certificates
        .into_iter()
        .filter(|pem| pem.label == "CERTIFICATE" && pem.parse_x509().is_ok())
        .map(|pem| pem.contents)
        .collect();
    if certificates.is_empty() {
        return Err("is not base64 of certificates in PEM");
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests;
