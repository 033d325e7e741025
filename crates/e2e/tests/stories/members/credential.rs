//! Credentials that a story makes with the keys of the lab: a token that is nearly over, and a client's certificate.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use e2e::{OwnClusters, Stage};
use kube::config::KubeConfigOptions;
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, SigningKey as _,
    date_time_ymd,
};
use serde_json::{Value, json};

const ACCOUNT: &str = "mirrord-operator-envoy";
/// How long the first token is still good for, and how long it was meant for.
const LEFT: u64 = 45;
const LIFE: u64 = 600;

/// A token of the envoy's account, of whose life most is over. The API server signs such tokens with this key.
pub(super) fn old_token(clusters: &OwnClusters, stage: &Stage) -> Result<String> {
    let uid = stage.kubectl(&[
        "get",
        "serviceaccount",
        ACCOUNT,
        "--output=jsonpath={.metadata.uid}",
    ])?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let expires = now + LEFT;
    let issuer = "https://kubernetes.default.svc.cluster.local";
    let claims = json!({
        "iss": issuer, "aud": [issuer],
        "iat": expires - LIFE, "nbf": expires - LIFE, "exp": expires,
        "sub": format!("system:serviceaccount:{}:{ACCOUNT}", stage.namespace),
        "kubernetes.io": {
            "namespace": stage.namespace,
            "serviceaccount": {"name": ACCOUNT, "uid": uid},
        },
    });
    let lab = clusters.lab().cluster(&stage.cluster.name)?;
    let key = KeyPair::from_pem(&fs::read_to_string(
        lab.kubeconfig().with_file_name("sa.key"),
    )?)?;
    ensure!(
        key.is_compatible(&rcgen::PKCS_ECDSA_P256_SHA256),
        "the key is of another kind"
    );
    let part = |value: &Value| url_safe(value.to_string().as_bytes());
    let signed = format!(
        "{}.{}",
        part(&json!({"alg": "ES256", "typ": "JWT"})),
        part(&claims)
    );
    let signature =
        two_numbers(&key.sign(signed.as_bytes())?).context("the signature is of another kind")?;
    Ok(format!("{signed}.{}", url_safe(&signature)))
}

/// A signature as JSON Web Tokens have it: two numbers of 32 bytes, which are in DER.
fn two_numbers(der: &[u8]) -> Option<Vec<u8>> {
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

/// A client's certificate and its key, in PEM, by the authority of a cluster.
pub(super) fn certificate(
    clusters: &OwnClusters,
    cluster: &str,
    user: &str,
) -> Result<(String, String)> {
    certificate_with(clusters, cluster, user, |_| {})
}

/// One whose time is over.
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

/// Somebody whom a cluster knows, as a client for it.
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
    // The lab's addresses are on this machine, where no proxy can reach them.
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

/// Whether an API server does not know this token any more.
pub(super) async fn is_refused(clusters: &OwnClusters, cluster: &str, token: &str) -> Result<bool> {
    let mut config = kube::Config::new(clusters.lab().cluster(cluster)?.api_server().parse()?);
    config.accept_invalid_certs = true;
    config.auth_info = serde_json::from_value(json!({"token": token}))?;
    let asked = kube::Client::try_from(config)?
        .list_core_api_versions()
        .await;
    Ok(matches!(asked, Err(kube::Error::Api(status)) if status.code == 401))
}

pub(super) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn url_safe(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
