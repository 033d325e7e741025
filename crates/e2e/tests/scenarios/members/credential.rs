//! Credentials that a scenario creates with the keys of the lab: a token that expires soon, and client certificates.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use e2e::{OwnClusters, TestNamespace};
use kube::config::KubeConfigOptions;
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, SigningKey as _,
    date_time_ymd,
};
use serde_json::{Value, json};

const ACCOUNT: &str = "mirrord-operator-envoy";
/// The remaining and the total lifetime of the first token, in seconds.
const REMAINING_LIFETIME: u64 = 45;
const TOTAL_LIFETIME: u64 = 600;

/// A token of the hub's account in a member that expires soon. It is signed with the API server's own key.
pub(super) fn old_token(clusters: &OwnClusters, namespace: &TestNamespace) -> Result<String> {
    let uid = namespace.kubectl(&[
        "get",
        "serviceaccount",
        ACCOUNT,
        "--output=jsonpath={.metadata.uid}",
    ])?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let expires = now + REMAINING_LIFETIME;
    let issuer = "https://kubernetes.default.svc.cluster.local";
    let claims = json!({
        "iss": issuer, "aud": [issuer],
        "iat": expires - TOTAL_LIFETIME, "nbf": expires - TOTAL_LIFETIME, "exp": expires,
        "sub": format!("system:serviceaccount:{}:{ACCOUNT}", namespace.name),
        "kubernetes.io": {
            "namespace": namespace.name,
            "serviceaccount": {"name": ACCOUNT, "uid": uid},
        },
    });
    let lab = clusters.lab().cluster(&namespace.cluster.name)?;
    let key = KeyPair::from_pem(&fs::read_to_string(
        lab.kubeconfig().with_file_name("sa.key"),
    )?)?;
    ensure!(
        key.is_compatible(&rcgen::PKCS_ECDSA_P256_SHA256),
        "the key has another type"
    );
    let part = |value: &Value| url_safe(value.to_string().as_bytes());
    let signed = format!(
        "{}.{}",
        part(&json!({"alg": "ES256", "typ": "JWT"})),
        part(&claims)
    );
    let signature =
        raw_signature(&key.sign(signed.as_bytes())?).context("the signature has another format")?;
    Ok(format!("{signed}.{}", url_safe(&signature)))
}

/// Converts a signature from DER to the form of JSON Web Tokens: two numbers of 32 bytes.
fn raw_signature(der: &[u8]) -> Option<Vec<u8>> {
    let mut rest = der.strip_prefix(&[0x30])?.get(1..)?;
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let length = usize::from(*rest.strip_prefix(&[0x02])?.first()?);
        let number = rest.get(2..2 + length)?;
        rest = &rest[2 + length..];
        let number = &number[number.iter().take_while(|byte| **byte == 0).count()..];
        numbers.extend(vec![0; 32_usize.checked_sub(number.len())?]);
        numbers.extend_from_slice(number);
    }
    Some(numbers)
}

/// A client certificate and its key, in PEM, signed by the authority of a cluster.
pub(super) fn certificate(
    clusters: &OwnClusters,
    cluster: &str,
    user: &str,
) -> Result<(String, String)> {
    certificate_with(clusters, cluster, user, |_| {})
}

/// A client certificate that has expired.
pub(super) fn expired_certificate(
    clusters: &OwnClusters,
    cluster: &str,
    user: &str,
) -> Result<(String, String)> {
    certificate_with(clusters, cluster, user, |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    })
}

/// A client of a cluster's API server that authenticates as this user.
pub(super) async fn user(
    clusters: &OwnClusters,
    cluster: &str,
    name: &str,
) -> Result<kube::Client> {
    let (chain, key) = certificate(clusters, cluster, name)?;
    let cluster = clusters.lab().cluster(cluster)?;
    let (authority, _) = cluster.authority()?;
    let kubeconfig = json!({
        "clusters": [{"name": "lab", "cluster": {
            "server": cluster.api_server(),
            "certificate-authority-data": base64(authority.as_bytes()),
        }}],
        "users": [{"name": name, "user": {
            "client-certificate-data": base64(chain.as_bytes()),
            "client-key-data": base64(key.as_bytes()),
        }}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": name}}],
        "current-context": "lab",
    });
    let kubeconfig = serde_json::from_value(kubeconfig)?;
    let mut config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // The lab's addresses exist only on this machine, where no proxy can reach them.
    config.proxy_url = None;
    Ok(kube::Client::try_from(config)?)
}

fn certificate_with(
    clusters: &OwnClusters,
    cluster: &str,
    user: &str,
    change: impl FnOnce(&mut CertificateParams),
) -> Result<(String, String)> {
    let (authority, authority_key) = clusters.lab().cluster(cluster)?.authority()?;
    let issuer = Issuer::from_ca_cert_pem(&authority, KeyPair::from_pem(&authority_key)?)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, user);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    change(&mut params);
    let certificate = params.signed_by(&key, &issuer)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// Whether an API server rejects this token.
pub(super) async fn is_refused(clusters: &OwnClusters, cluster: &str, token: &str) -> Result<bool> {
    let mut config = kube::Config::new(clusters.lab().cluster(cluster)?.api_server().parse()?);
    config.accept_invalid_certs = true;
    config.auth_info = serde_json::from_value(json!({"token": token}))?;
    let response = kube::Client::try_from(config)?
        .list_core_api_versions()
        .await;
    Ok(matches!(response, Err(kube::Error::Api(status)) if status.code == 401))
}

pub(super) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn url_safe(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
