//! Tokens and certificates at configured times, and a comparison of EKS tokens with those of AWS's own programs.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use secrecy::ExposeSecret as _;
use serde::Deserialize;

use super::bearer::{self, Token, choose};
use super::claims::Claims;
use super::presign::{self, AwsCredentials};
use super::*;
use crate::multicluster::clusters::AuthMethod;
use crate::multicluster::stub;

/// The Secret for the renewed token of the member `east`.
const RENEWED: &str = "mirrord-operator-cluster-token-east";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn jwt(account: &str, issued: i64, expires: i64) -> String {
    let payload = format!(
        r#"{{"sub":"system:serviceaccount:tools:{account}","iat":{},"exp":{}.5}}"#,
        at(issued).as_second(),
        at(expires).as_second()
    );
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload))
}

fn secret(name: &str, data: &[(&str, &str)]) -> Secret {
    let data: BTreeMap<String, ByteString> = data
        .iter()
        .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())))
        .collect();
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([(LABEL.to_owned(), "true".to_owned())])),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..Secret::default()
    }
}

fn member() -> Member {
    stub::member(AuthMethod::BearerToken)
}

fn configured(token: &str) -> Secret {
    stub::token_secret(token)
}

#[test]
fn claims_are_parsed() {
    let claims = Claims::read(&jwt("envoy", 0, 3600)).unwrap();
    assert_eq!(claims.issued, Some(at(0)));
    assert_eq!(claims.expires, Some(at(3600)));
    let account = ("tools".to_owned(), "envoy".to_owned());
    assert_eq!(claims.account, Some(account));
    for opaque in ["", "abc", "a.b", "a.b.c", "a.e30.c.d"] {
        assert_eq!(Claims::read(opaque), None, "{opaque}");
    }
}

#[test]
fn the_token_that_expires_later_is_used() {
    let (short, long) = (jwt("envoy", 0, 3600), jwt("envoy", 2000, 5600));
    let other = jwt("other", 2000, 9000);
    let tokens = |token: &str| secret(RENEWED, &[("east", token)]);
    // The configured token, the renewed token, and the one that is used.
    let cases = [
        (&short, None, &short),
        (&short, Some(&long), &long),
        (&long, Some(&short), &long),
        // The administrator has configured a token of another account.
        (&short, Some(&other), &short),
    ];
    for (configured_token, renewed, expected) in cases {
        let renewed = renewed.map(|token| tokens(token));
        let chosen = choose(
            &member(),
            Some(&configured(configured_token)),
            renewed.as_ref(),
            None,
            at(10),
        );
        assert_eq!(chosen.unwrap().text.expose_secret(), expected);
    }
    let rejected = SecretString::from(long.clone());
    // The rejected token, the time, and the token that is used.
    let cases = [
        // The administrator's token is used again.
        (Some(&rejected), 10, &short),
        // The chart restores the first token, long after it has expired.
        (None, 5000, &long),
        // The other token has expired, and the rejection may be temporary.
        (Some(&rejected), 5000, &long),
    ];
    for (rejected, now, expected) in cases {
        let (first, renewed) = (configured(&short), tokens(&long));
        let chosen = choose(&member(), Some(&first), Some(&renewed), rejected, at(now));
        assert_eq!(chosen.ok().unwrap().text.expose_secret(), expected, "{now}");
    }
    let (first, renewed) = (configured(&short), tokens(&long));
    let error = choose(
        &member(),
        Some(&first),
        Some(&renewed),
        Some(&rejected),
        at(7000),
    );
    let expected = NoCredential::Expired(at(5600).to_string());
    assert_eq!(error.err(), Some(expected), "the one that expired last");
}

#[test]
fn errors_explain_what_to_do() {
    let mut unlabelled = configured("a.b.c");
    unlabelled.metadata.labels = None;
    let expired = configured(&jwt("envoy", 0, 3600));
    let empty = secret("mirrord-cluster-east", &[]);
    let spaced = configured("two words");
    let huge = configured(&"a".repeat(900_000));
    let cases = [
        (None, "the Secret mirrord-cluster-east does not exist"),
        (
            Some(&unlabelled),
            "the Secret mirrord-cluster-east has no label operator.metalbear.co/remote-cluster-credentials=true",
        ),
        (
            Some(&empty),
            "the Secret mirrord-cluster-east has no `bearerToken`",
        ),
        (
            Some(&spaced),
            "`bearerToken` of the Secret mirrord-cluster-east is no token",
        ),
        (
            Some(&huge),
            "`bearerToken` of the Secret mirrord-cluster-east is no token of at most 16 KiB",
        ),
        (
            Some(&expired),
            "the token has expired at 2027-01-15T09:00:00Z",
        ),
    ];
    for (secret, expected) in cases {
        let error = choose(&member(), secret, None, None, at(5000))
            .err()
            .unwrap();
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    // Five minutes may be clock skew; the member decides.
    assert!(choose(&member(), Some(&expired), None, None, at(3900)).is_ok());
}

#[test]
fn a_token_is_renewed_well_before_two_thirds_of_its_lifetime() {
    let token = |secret: &Secret| {
        choose(&member(), Some(secret), None, None, at(0))
            .ok()
            .unwrap()
    };
    let day = token(&configured(&jwt("envoy", 0, 86_400)));
    assert_eq!(day.renewal(), Some(at(51_840)));
    assert!(day.renewal().unwrap() < at(57_600));
    assert_eq!(day.requested_lifetime(), Duration::from_secs(86_400));
    let short = token(&configured(&jwt("envoy", 0, 60)));
    assert_eq!(
        short.requested_lifetime(),
        Duration::from_secs(600),
        "the minimum lifetime"
    );
    assert_eq!(bearer::warning(&day, None, at(51_900)), None);
    let warning = bearer::warning(&day, None, at(52_000)).unwrap();
    assert!(
        warning.contains("expires at 2027-01-16T08:00:00Z"),
        "{warning}"
    );
    let warning = bearer::warning(&day, Some("forbidden"), at(51_850)).unwrap();
    assert!(warning.ends_with("is not renewed: forbidden"), "{warning}");
    let before = bearer::warning(&day, Some("forbidden"), at(51_839));
    assert_eq!(before, None, "the failure is about the previous token");
    let opaque = token(&configured("opaque"));
    assert_eq!(opaque.renewal(), None);
    assert!(
        bearer::warning(&opaque, None, at(0))
            .unwrap()
            .contains("never renewed")
    );
}

/// The member's clock is five minutes ahead or behind. The lifetime of a received token is measured by the operator's clock.
#[test]
fn clock_skew_does_not_affect_received_tokens() {
    for skew in [-300, 300] {
        let text = jwt("envoy", skew, skew + 600);
        let received = at(0).to_string();
        let data = [("east", text.as_str()), ("east.received", &received)];
        let renewed = secret(RENEWED, &data);
        let first = configured(&jwt("envoy", skew - 600, skew - 1));
        let token: Token = choose(&member(), Some(&first), Some(&renewed), None, at(0))
            .ok()
            .unwrap();
        assert_eq!(token.renewal(), Some(at(360)), "{skew}");
        assert_eq!(token.expires(), Some(at(600)), "{skew}");
    }
}

/// By the member's clock, a token that was issued in the future would be renewed after its expiry.
#[test]
fn a_configured_token_from_the_future_starts_now() {
    // How far the member's clock is ahead, and when the token is renewed and expires.
    for (skew, renewal, expires) in [
        (0, 360, 600),
        (-60, 300, 540),
        (60, 360, 600),
        (300, 360, 600),
    ] {
        let configured = configured(&jwt("envoy", skew, skew + 600));
        let token = choose(&member(), Some(&configured), None, None, at(0));
        let token = token.ok().unwrap();
        assert_eq!(token.renewal(), Some(at(renewal)), "{skew}");
        assert_eq!(token.expires(), Some(at(expires)), "{skew}");
    }
}

#[test]
fn inserted_tokens_are_found_and_others_are_kept() {
    let before = secret(RENEWED, &[("west", "w")]);
    let mut token = choose(
        &member(),
        Some(&configured(&jwt("envoy", 0, 600))),
        None,
        None,
        at(0),
    )
    .ok()
    .unwrap();
    token.received = Some(at(7));
    let renewed = bearer::insert(before, "east", &token);
    let data = renewed.data.clone().unwrap();
    assert_eq!(data["west"].0, b"w");
    assert_eq!(data["east.received"].0, at(7).to_string().into_bytes());
    let old = configured(&jwt("envoy", -600, -1));
    let found = choose(&member(), Some(&old), Some(&renewed), None, at(10))
        .ok()
        .unwrap();
    assert_eq!(found.text.expose_secret(), token.text.expose_secret());
    assert_eq!(found.received, Some(at(7)));
}

/// The expiry in a member's response may be sooner than that in the token. The sooner one is used, also after a restart.
#[tokio::test]
async fn the_sooner_expiry_of_token_and_response_is_used() {
    // The expiry in the token, the expiry in the response, and the effective one.
    for (own, granted, expires) in [(3600, 600, 600), (3600, 7200, 3600)] {
        let text = jwt("envoy", 0, own);
        let member_client = stub::client(move |_| {
            let response = serde_json::json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {},
                "spec": {"audiences": []},
                "status": {"token": text, "expirationTimestamp": at(granted).to_string()},
            });
            stub::json_response(http::StatusCode::CREATED, &response)
        });
        let old = configured(&jwt("envoy", -600, -1));
        let first = choose(&member(), Some(&old), None, None, at(0));
        let next = bearer::renew(&member_client, &first.ok().unwrap(), "tools", at(0)).await;
        let next = next.unwrap();
        assert_eq!(next.expires(), Some(at(expires)), "{granted}");
        let renewed = bearer::insert(secret(RENEWED, &[]), "east", &next);
        let found = choose(&member(), Some(&old), Some(&renewed), None, at(0));
        assert_eq!(
            found.ok().unwrap().expires(),
            Some(at(expires)),
            "{granted}"
        );
    }
}

/// A member cannot make the Primary store more than a token has.
#[tokio::test]
async fn a_huge_token_of_a_member_is_refused() {
    for (bytes, is_accepted) in [(16 * 1024, true), (16 * 1024 + 1, false), (900_000, false)] {
        let member_client = stub::client(move |_| {
            let response = serde_json::json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {},
                "spec": {"audiences": []},
                "status": {"token": "a".repeat(bytes), "expirationTimestamp": at(600).to_string()},
            });
            stub::json_response(http::StatusCode::CREATED, &response)
        });
        let first = choose(&member(), Some(&configured("opaque")), None, None, at(0));
        let next = bearer::renew(&member_client, &first.ok().unwrap(), "tools", at(0)).await;
        match next {
            Ok(_) => assert!(is_accepted, "{bytes}"),
            Err(error) => {
                assert!(!is_accepted, "{bytes}: {error}");
                let error = error.to_string();
                assert!(
                    error.ends_with("returned no token of at most 16 KiB"),
                    "{error}"
                );
            }
        }
    }
}

/// A member may grant less than the original lifetime, and more again later.
#[tokio::test]
async fn each_request_is_for_the_original_lifetime() {
    let mut stored = secret(RENEWED, &[]);
    let first = configured(&jwt("envoy", -600, 86_400 - 600));
    for granted in [1000, 2000] {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, text) = (Arc::clone(&requests), jwt("envoy", 0, 90_000 + granted));
        let member_client = stub::storing(move |request| {
            seen.lock()
                .push(request.unwrap()["spec"]["expirationSeconds"].clone());
            let response = serde_json::json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {},
                "spec": {"audiences": []},
                "status": {"token": text, "expirationTimestamp": at(86_400 + granted).to_string()},
            });
            stub::json_response(http::StatusCode::CREATED, &response)
        });
        let current = choose(&member(), Some(&first), Some(&stored), None, at(0));
        let mut next = bearer::renew(&member_client, &current.ok().unwrap(), "tools", at(0))
            .await
            .unwrap();
        next.claims.issued = Some(at(86_400));
        stored = bearer::insert(stored, "east", &next);
        assert_eq!(*requests.lock(), [86_400], "{granted}");
    }
}

/// The administrator's Secret is needed only for the first token.
#[test]
fn a_renewed_token_needs_no_first_secret() {
    let long = jwt("envoy", 2000, 5600);
    let renewed = secret(RENEWED, &[("east", &long)]);
    let chosen = |rejected, now| choose(&member(), None, Some(&renewed), rejected, at(now));
    let rejected = SecretString::from(long.clone());
    // A rejection may be temporary, and there is no other token.
    for rejected in [None, Some(&rejected)] {
        let token = chosen(rejected, 3000).ok().unwrap();
        assert_eq!(token.text.expose_secret(), &long);
    }
    let expected = NoCredential::Expired(at(5600).to_string());
    assert_eq!(chosen(None, 7000).err(), Some(expected));
    // The token of another member.
    let other = secret(RENEWED, &[("west", &long)]);
    let missing = choose(&member(), None, Some(&other), None, at(3000)).err();
    let expected = NoCredential::NoSecret("mirrord-cluster-east".to_owned());
    assert_eq!(missing, Some(expected));
    // A Secret that is not meant for the operator is an error, also beside a renewed token.
    let mut unlabelled = configured(&long);
    unlabelled.metadata.labels = None;
    let error = choose(&member(), Some(&unlabelled), Some(&renewed), None, at(3000)).err();
    assert!(matches!(error, Some(NoCredential::NoLabel(_))), "{error:?}");
}

#[test]
fn wrapped_tokens_are_joined() {
    let text = jwt("envoy", 0, 3600);
    let (start, end) = text.split_at(20);
    let wrapped = configured(&format!("{start}\r\n{end}\n"));
    let token = choose(&member(), Some(&wrapped), None, None, at(0));
    assert_eq!(token.ok().unwrap().text.expose_secret(), &text);
}

/// Without authorities, the member's server is verified with the public ones. The image has none of its own.
#[tokio::test]
async fn a_client_needs_no_authorities() {
    assert!(public_roots().roots.len() > 50);
    let token = Credential::Token(SecretString::from("token"));
    assert!(client(&member(), &token).is_ok());
}

#[test]
fn times_of_the_previous_token_are_removed() {
    let before = secret(
        RENEWED,
        &[
            ("east.received", "2026-01-27T09:22:55Z"),
            ("east.expires", "2026-01-27T09:22:55Z"),
            ("east.lifetime", "600"),
        ],
    );
    let opaque = choose(&member(), Some(&configured("opaque")), None, None, at(0));
    let renewed = bearer::insert(before, "east", &opaque.ok().unwrap());
    let keys: Vec<String> = renewed.data.unwrap().into_keys().collect();
    assert_eq!(keys, ["east"]);
}

#[test]
fn certificates_are_accepted_as_pem_and_as_base64() {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["envoy".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    let (chain, key) = (certificate.pem(), key.serialize_pem());
    let twice = (STANDARD.encode(&chain), STANDARD.encode(&key));
    for (chain, key) in [(&chain, &key), (&twice.0, &twice.1)] {
        let secret = secret("s", &[("tls.crt", chain), ("tls.key", key)]);
        let (credential, expires) = mtls::choose(&secret).ok().unwrap();
        assert!(expires > at(0));
        let member = Member {
            method: AuthMethod::Mtls,
            ..member()
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        client(&member, &credential).expect("a client can be created with it");
    }
    let swapped = secret("s", &[("tls.crt", &key), ("tls.key", &chain)]);
    let error = mtls::choose(&swapped).err().unwrap();
    assert_eq!(
        error.to_string(),
        "`tls.crt` of the Secret s is no certificate in PEM"
    );
    let keyless = secret("s", &[("tls.crt", &chain), ("tls.key", &chain)]);
    let error = mtls::choose(&keyless).err().unwrap();
    assert_eq!(
        error.to_string(),
        "`tls.key` of the Secret s is no key in PEM"
    );
    let month = at(0) + SignedDuration::from_hours(30 * 24);
    assert_eq!(mtls::warning(month, at(0)), None);
    assert!(
        mtls::warning(month, month - SignedDuration::from_hours(24))
            .unwrap()
            .contains("expires at")
    );
    assert!(mtls::warning(month, month).unwrap().contains("has expired"));
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Case {
    now: String,
    region: String,
    cluster: String,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden/eks")
        .join(name)
}

fn tokens() -> Vec<String> {
    let cases = std::fs::read_to_string(golden("cases.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_str(&cases).unwrap();
    let token = |case: Case| {
        let credentials = AwsCredentials {
            access_key_id: case.access_key_id,
            secret_access_key: SecretString::from(case.secret_access_key),
            session_token: case.session_token.map(SecretString::from),
        };
        let now = format!("{}Z", case.now).parse().unwrap();
        let token = presign::token(&credentials, &case.region, &case.cluster, now);
        token.expose_secret().to_owned()
    };
    cases.into_iter().map(token).collect()
}

#[test]
fn eks_tokens_match_those_of_botocore() {
    let golden = std::fs::read_to_string(golden("tokens.txt")).unwrap();
    let golden: Vec<&str> = golden.lines().collect();
    assert_eq!(tokens(), golden);
}

/// Creates the golden tokens again. `cargo xtask test` installs botocore and sets the variable to its location.
#[test]
#[ignore = "needs botocore"]
fn botocore_creates_the_golden_tokens() {
    let tools = env::var_os("STANDIN_AWS_TOOLS").expect("needs botocore");
    let output = Command::new("python3")
        .arg(golden("presign_with_botocore.py"))
        .env("PYTHONPATH", tools)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let created = String::from_utf8(output.stdout).unwrap();
    assert_eq!(tokens(), created.lines().collect::<Vec<_>>());
}

fn shifted(seconds: i64) -> String {
    let credentials = AwsCredentials {
        access_key_id: "ASIAEXAMPLEEXAMPLE00".to_owned(),
        secret_access_key: SecretString::from("not/a/secret+but=asLongAsOneIs0123456789"),
        session_token: Some(SecretString::from("session/token+with=signs")),
    };
    let now = Timestamp::now() + SignedDuration::from_secs(seconds);
    let token = presign::token(&credentials, "eu-north-1", "Team_Blue-1", now);
    token.expose_secret().to_owned()
}

/// The token with a part of its URL replaced.
fn tampered(old: &str, new: &str) -> String {
    let token = shifted(0);
    let address = URL_SAFE_NO_PAD.decode(token.strip_prefix("k8s-aws-v1.").unwrap());
    let address = String::from_utf8(address.unwrap()).unwrap();
    assert!(address.contains(old), "{address}");
    let address = address.replacen(old, new, 1);
    format!("k8s-aws-v1.{}", URL_SAFE_NO_PAD.encode(address))
}

/// Verifies tokens as an EKS cluster does: with its own verifier, and a service that checks signatures.
#[test]
fn the_eks_verifier_accepts_only_valid_tokens() {
    // Compiled before the tokens are created, which are valid for minutes.
    let folder = tempfile::tempdir().unwrap();
    let verifier = folder.path().join("verify");
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&verifier)
        .arg(".")
        .current_dir(golden("verify"))
        .status()
        .unwrap_or_else(|error| panic!("go is needed: {error}"));
    assert!(built.success());
    const EAST: &str = "Team_Blue-1";
    let refused = "refused sts getCallerIdentity failed: error from AWS (expected 200, got 403)";
    let cases = [
        (
            shifted(0),
            EAST,
            "accepted arn:aws:iam::123456789012:role/standin",
        ),
        // A token is used for ten minutes, and clocks may differ.
        (shifted(-600), EAST, "accepted "),
        (
            shifted(-960),
            EAST,
            "refused input token was not properly formatted: X-Amz-Date parameter is expired",
        ),
        (shifted(0), "other", refused),
        (tampered("Expires=60", "Expires=900"), EAST, refused),
        (tampered("EXAMPLE00", "EXAMPLE01"), EAST, refused),
        (
            tampered("host%3Bx-k8s-aws-id", "host"),
            EAST,
            "refused input token was not properly formatted: client did not sign",
        ),
        (
            tampered("sts.eu-north-1.amazonaws.com", "sts.example.com"),
            EAST,
            "refused input token was not properly formatted: unexpected hostname",
        ),
        (
            shifted(0).replace("k8s-aws-v1", "k8s-aws-v2"),
            EAST,
            "refused input token was not properly formatted: token is missing",
        ),
    ];
    let input: String = cases
        .iter()
        .map(|(token, cluster, _)| {
            format!(
                "{}\n",
                serde_json::json!({"token": token, "cluster": cluster})
            )
        })
        .collect();
    let file = folder.path().join("tokens");
    std::fs::write(&file, input).unwrap();
    let output = Command::new(&verifier)
        .stdin(std::fs::File::open(&file).unwrap())
        .output()
        .unwrap();
    let (found, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(found.lines().count(), cases.len(), "{found}{errors}");
    for (line, (_, _, expected)) in found.lines().zip(&cases) {
        assert!(line.starts_with(expected), "{line}\n{expected}");
    }
}

#[test]
fn hubs_get_what_the_secret_has_or_the_operators_own_token() {
    let name = "mirrord-cluster-east";
    let token = secret(name, &[("bearerToken", " abc\ndef\n")]);
    match tunnel::choose("east", Some(&token)) {
        Ok((Credential::Token(token), None)) => assert_eq!(token.expose_secret(), "abcdef"),
        _ => panic!("it is not the token"),
    }
    let neither = secret(name, &[("password", "x")]);
    let error = tunnel::choose("east", Some(&neither)).err().unwrap();
    assert_eq!(
        error.to_string(),
        "the Secret mirrord-cluster-east has no `bearerToken`"
    );
    // Outside of a pod there is no token of its own.
    let error = tunnel::choose("east", None).err().unwrap().to_string();
    assert!(error.contains("create the Secret with"), "{error}");
}
