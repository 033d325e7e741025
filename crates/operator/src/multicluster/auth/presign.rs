//! The token for EKS: a presigned `GetCallerIdentity` request to AWS STS, which the cluster sends to verify the token.
//!
//! The signature is implemented here because it is the only such request, and the token has to be the same, byte for byte, as
//! that of AWS's own programs: the tests compare it with theirs, and with the verifier that EKS uses. Signature Version 4 is
//! documented at <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html>.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ring::hmac;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};

const PREFIX: &str = "k8s-aws-v1.";
/// The header with the cluster's name. It is signed, so a token for one cluster is invalid for another.
const CLUSTER_HEADER: &str = "x-k8s-aws-id";
/// The value that AWS's own programs use. The token is valid for 15 minutes from its date, independent of it.
const EXPIRES: u32 = 60;
/// The characters that are encoded in a query.
const QUERY_ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Temporary credentials of AWS.
#[derive(Clone, Debug)]
pub(crate) struct AwsCredentials {
    pub(crate) access_key_id: String,
    pub(crate) secret_access_key: SecretString,
    pub(crate) session_token: Option<SecretString>,
}

/// The host of the Security Token Service of a region.
pub(crate) fn sts_host(region: &str) -> String {
    let ending = if region.starts_with("cn-") { ".cn" } else { "" };
    format!("sts.{region}.amazonaws.com{ending}")
}

/// The token for a cluster.
pub(crate) fn token(
    credentials: &AwsCredentials,
    region: &str,
    cluster: &str,
    now: Timestamp,
) -> SecretString {
    let now = now.to_zoned(TimeZone::UTC);
    let (date, day) = (
        now.strftime("%Y%m%dT%H%M%SZ").to_string(),
        now.strftime("%Y%m%d").to_string(),
    );
    let host = sts_host(region);
    let scope = format!("{day}/{region}/sts/aws4_request");
    let credential = format!("{}/{scope}", credentials.access_key_id);
    let expires = EXPIRES.to_string();
    let signed_headers = format!("host;{CLUSTER_HEADER}");
    let session = credentials.session_token.as_ref();
    let mut pairs = vec![
        ("Action", "GetCallerIdentity"),
        ("Version", "2011-06-15"),
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
        ("X-Amz-Credential", &credential),
        ("X-Amz-Date", &date),
        ("X-Amz-Expires", &expires),
        ("X-Amz-SignedHeaders", &signed_headers),
    ];
    if let Some(session) = session {
        pairs.push(("X-Amz-Security-Token", session.expose_secret()));
    }
    let sent = query(&pairs);
    // The signed query is sorted; the sent query has the order of AWS's own programs.
    pairs.sort_unstable();
    let canonical = format!(
        "GET\n/\n{}\nhost:{host}\n{CLUSTER_HEADER}:{cluster}\n\n{signed_headers}\n{}",
        query(&pairs),
        hexadecimal(&Sha256::digest(b""))
    );
    let to_sign = format!(
        "AWS4-HMAC-SHA256\n{date}\n{scope}\n{}",
        hexadecimal(&Sha256::digest(canonical))
    );
    let key = signing_key(credentials, &day, region);
    let signature = hexadecimal(hmac::sign(&key, to_sign.as_bytes()).as_ref());
    let url = format!("https://{host}/?{sent}&X-Amz-Signature={signature}");
    SecretString::from(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(url)))
}

fn query(pairs: &[(&str, &str)]) -> String {
    let pairs = pairs.iter().map(|(name, value)| {
        let value = utf8_percent_encode(value, QUERY_ENCODED);
        format!("{name}={value}")
    });
    pairs.collect::<Vec<_>>().join("&")
}

/// The signing key for one day, one region and one service.
fn signing_key(credentials: &AwsCredentials, day: &str, region: &str) -> hmac::Key {
    let secret = format!("AWS4{}", credentials.secret_access_key.expose_secret());
    let first = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    [day, region, "sts", "aws4_request"]
        .iter()
        .fold(first, |key, part| {
            let next = hmac::sign(&key, part.as_bytes());
            hmac::Key::new(hmac::HMAC_SHA256, next.as_ref())
        })
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
