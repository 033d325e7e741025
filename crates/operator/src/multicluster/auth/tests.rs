//! Tokens and certificates at given times, and tokens for EKS beside those of AWS's own programs.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use secrecy::ExposeSecret as _;
use serde::Deserialize;

use super::bearer::{self, Token, choose};
use super::claims::Claims;
use super::presign::{self, AwsCredentials};
use super::*;
use crate::multicluster::clusters::Method;
use crate::multicluster::stub;

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
    stub::member(Method::BearerToken)
}

fn given(token: &str) -> Secret {
    secret("mirrord-cluster-east", &[("bearerToken", token)])
}

#[test]
fn a_token_says_how_long_it_lives_and_whose_it_is() {
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
fn the_token_that_lives_longer_counts() {
    let (short, long) = (jwt("envoy", 0, 3600), jwt("envoy", 2000, 5600));
    let other = jwt("other", 2000, 9000);
    let tokens = |token: &str| secret(bearer::TOKENS, &[("east", token)]);
    // What is given, what is kept, and what counts.
    let cases = [
        (&short, None, &short),
        (&short, Some(&long), &long),
        (&long, Some(&short), &long),
        // The administrator has given a token of another account.
        (&short, Some(&other), &short),
    ];
    for (given_token, kept, expected) in cases {
        let kept = kept.map(|token| tokens(token));
        let chosen = choose(
            &member(),
            Some(&given(given_token)),
            kept.as_ref(),
            None,
            at(10),
        );
        assert_eq!(chosen.unwrap().text.expose_secret(), expected);
    }
    let refused = SecretString::from(long.clone());
    // What the member refuses, when, and what counts.
    let cases = [
        // The administrator's counts again.
        (Some(&refused), 10, &short),
        // The chart brings the first token back, long after it has expired.
        (None, 5000, &long),
        // Nothing else is left, and a refusal may pass.
        (Some(&refused), 5000, &long),
    ];
    for (refused, now, expected) in cases {
        let (first, kept) = (given(&short), tokens(&long));
        let chosen = choose(&member(), Some(&first), Some(&kept), refused, at(now));
        assert_eq!(chosen.ok().unwrap().text.expose_secret(), expected, "{now}");
    }
    let (first, kept) = (given(&short), tokens(&long));
    let trouble = choose(
        &member(),
        Some(&first),
        Some(&kept),
        Some(&refused),
        at(7000),
    );
    let expected = NoCredential::Expired(at(5600).to_string());
    assert_eq!(trouble.err(), Some(expected), "the one that ended last");
}

#[test]
fn what_is_no_credential_says_what_to_do() {
    let mut unlabelled = given("a.b.c");
    unlabelled.metadata.labels = None;
    let expired = given(&jwt("envoy", 0, 3600));
    let empty = secret("mirrord-cluster-east", &[]);
    let spaced = given("two words");
    let cases = [
        (None, "the Secret mirrord-cluster-east is not there"),
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
            Some(&expired),
            "the token has expired at 2027-01-15T09:00:00Z",
        ),
    ];
    for (secret, expected) in cases {
        let trouble = choose(&member(), secret, None, None, at(5000))
            .err()
            .unwrap();
        assert!(trouble.to_string().starts_with(expected), "{trouble}");
    }
    // Five minutes are a difference of clocks; the member decides.
    assert!(choose(&member(), Some(&expired), None, None, at(3900)).is_ok());
}

#[test]
fn a_token_is_renewed_well_before_two_thirds_of_its_life() {
    let token = |secret: &Secret| {
        choose(&member(), Some(secret), None, None, at(0))
            .ok()
            .unwrap()
    };
    let day = token(&given(&jwt("envoy", 0, 86_400)));
    assert_eq!(day.renewal(), Some(at(51_840)));
    assert!(day.renewal().unwrap() < at(57_600));
    assert_eq!(day.asked_life(), Duration::from_secs(86_400));
    let short = token(&given(&jwt("envoy", 0, 60)));
    assert_eq!(
        short.asked_life(),
        Duration::from_secs(600),
        "no shorter one is given"
    );
    assert_eq!(bearer::warning(&day, None, at(51_900)), None);
    let warning = bearer::warning(&day, None, at(52_000)).unwrap();
    assert!(
        warning.contains("ends at 2027-01-16T08:00:00Z"),
        "{warning}"
    );
    let warning = bearer::warning(&day, Some("forbidden"), at(51_850)).unwrap();
    assert!(warning.ends_with("is not renewed: forbidden"), "{warning}");
    let before = bearer::warning(&day, Some("forbidden"), at(51_839));
    assert_eq!(before, None, "that was about the token before");
    let opaque = token(&given("opaque"));
    assert_eq!(opaque.renewal(), None);
    assert!(
        bearer::warning(&opaque, None, at(0))
            .unwrap()
            .contains("never renewed")
    );
}

/// The member's clock is five minutes ahead of ours, or behind. What we received is measured by our own.
#[test]
fn other_clocks_do_not_matter_once_a_token_is_ours() {
    for skew in [-300, 300] {
        let text = jwt("envoy", skew, skew + 600);
        let received = at(0).to_string();
        let data = [("east", text.as_str()), ("east.received", &received)];
        let kept = secret(bearer::TOKENS, &data);
        let first = given(&jwt("envoy", skew - 600, skew - 1));
        let token: Token = choose(&member(), Some(&first), Some(&kept), None, at(0))
            .ok()
            .unwrap();
        assert_eq!(token.renewal(), Some(at(360)), "{skew}");
        assert_eq!(token.ends(), Some(at(600)), "{skew}");
    }
}

/// A token that is of the future when it is given would have to be renewed after its end, by our clock.
#[test]
fn a_given_token_of_the_future_begins_now() {
    // How far the member's clock is ahead, and when the token is renewed and ends.
    for (skew, renewal, ends) in [
        (0, 360, 600),
        (-60, 300, 540),
        (60, 360, 600),
        (300, 360, 600),
    ] {
        let given = given(&jwt("envoy", skew, skew + 600));
        let token = choose(&member(), Some(&given), None, None, at(0));
        let token = token.ok().unwrap();
        assert_eq!(token.renewal(), Some(at(renewal)), "{skew}");
        assert_eq!(token.ends(), Some(at(ends)), "{skew}");
    }
}

#[test]
fn what_is_kept_is_found_again_and_others_are_left_alone() {
    let before = secret(bearer::TOKENS, &[("west", "w")]);
    let mut token = choose(
        &member(),
        Some(&given(&jwt("envoy", 0, 600))),
        None,
        None,
        at(0),
    )
    .ok()
    .unwrap();
    token.received = Some(at(7));
    let kept = bearer::keep(before, "east", &token);
    let data = kept.data.clone().unwrap();
    assert_eq!(data["west"].0, b"w");
    assert_eq!(data["east.received"].0, at(7).to_string().into_bytes());
    let old = given(&jwt("envoy", -600, -1));
    let found = choose(&member(), Some(&old), Some(&kept), None, at(10))
        .ok()
        .unwrap();
    assert_eq!(found.text.expose_secret(), token.text.expose_secret());
    assert_eq!(found.received, Some(at(7)));
}

/// What a member grants may be less than what it writes into the token. Of the two, the sooner end holds, also after a
/// restart.
#[tokio::test]
async fn a_member_may_give_less_than_the_token_says() {
    // When the token says that it ends, when the member does, and when it is over.
    for (own, said, ends) in [(3600, 600, 600), (3600, 7200, 3600)] {
        let text = jwt("envoy", 0, own);
        let member_says = stub::client(move |_| {
            let answer = serde_json::json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {},
                "spec": {"audiences": []},
                "status": {"token": text, "expirationTimestamp": at(said).to_string()},
            });
            stub::said(http::StatusCode::CREATED, &answer)
        });
        let old = given(&jwt("envoy", -600, -1));
        let first = choose(&member(), Some(&old), None, None, at(0));
        let next = bearer::renew(&member_says, &first.ok().unwrap(), "tools", at(0)).await;
        let next = next.unwrap();
        assert_eq!(next.ends(), Some(at(ends)), "{said}");
        let kept = bearer::keep(secret(bearer::TOKENS, &[]), "east", &next);
        let found = choose(&member(), Some(&old), Some(&kept), None, at(0));
        assert_eq!(found.ok().unwrap().ends(), Some(at(ends)), "{said}");
    }
}

#[test]
fn times_of_the_token_before_are_not_those_of_the_next() {
    let before = secret(
        bearer::TOKENS,
        &[
            ("east.received", "2026-01-27T09:22:55Z"),
            ("east.expires", "2026-01-27T09:22:55Z"),
        ],
    );
    let opaque = choose(&member(), Some(&given("opaque")), None, None, at(0));
    let kept = bearer::keep(before, "east", &opaque.ok().unwrap());
    let keys: Vec<String> = kept.data.unwrap().into_keys().collect();
    assert_eq!(keys, ["east"]);
}

#[test]
fn tokens_of_members_that_are_gone_are_forgotten() {
    let keys = [
        "east",
        "east.expires",
        "east.received",
        "east-2",
        "east-2.received",
        "west.received",
    ];
    let kept = || secret(bearer::TOKENS, &keys.map(|key| (key, "a")));
    let cases: [(&[&str], Option<&[&str]>); 4] = [
        (&["east", "east-2", "west", "new"], None),
        (
            &["east", "west"],
            Some(&["east", "east.expires", "east.received", "west.received"]),
        ),
        (
            &["east-2", "west"],
            Some(&["east-2", "east-2.received", "west.received"]),
        ),
        (&[], Some(&[])),
    ];
    for (members, expected) in cases {
        let left = bearer::forget(kept(), members);
        let left = left.map(|left| left.data.unwrap().into_keys().collect::<Vec<_>>());
        let expected = expected.map(|keys| keys.iter().map(ToString::to_string).collect());
        assert_eq!(left, expected, "{members:?}");
    }
}

#[test]
fn certificates_are_taken_as_pem_and_as_base64_of_it() {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["envoy".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    let (chain, key) = (certificate.pem(), key.serialize_pem());
    let twice = (STANDARD.encode(&chain), STANDARD.encode(&key));
    for (chain, key) in [(&chain, &key), (&twice.0, &twice.1)] {
        let secret = secret("s", &[("tls.crt", chain), ("tls.key", key)]);
        let (credential, ends) = mtls::choose(&secret).ok().unwrap();
        assert!(ends > at(0));
        let member = Member {
            method: Method::Mtls,
            ..member()
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        client(&member, &credential).expect("a client can be made of it");
    }
    let swapped = secret("s", &[("tls.crt", &key), ("tls.key", &chain)]);
    let trouble = mtls::choose(&swapped).err().unwrap();
    assert_eq!(
        trouble.to_string(),
        "`tls.crt` of the Secret s is no certificate in PEM"
    );
    let keyless = secret("s", &[("tls.crt", &chain), ("tls.key", &chain)]);
    let trouble = mtls::choose(&keyless).err().unwrap();
    assert_eq!(
        trouble.to_string(),
        "`tls.key` of the Secret s is no key in PEM"
    );
    let month = at(0) + SignedDuration::from_hours(30 * 24);
    assert_eq!(mtls::warning(month, at(0)), None);
    assert!(
        mtls::warning(month, month - SignedDuration::from_hours(24))
            .unwrap()
            .contains("ends at")
    );
    assert!(mtls::warning(month, month).unwrap().contains("has ended"));
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
fn tokens_for_eks_are_those_of_botocore() {
    let golden = std::fs::read_to_string(golden("tokens.txt")).unwrap();
    let golden: Vec<&str> = golden.lines().collect();
    assert_eq!(tokens(), golden);
}

/// The golden tokens are made anew. `cargo xtask test` installs botocore, and says where it is.
#[test]
fn botocore_still_makes_the_same_tokens() {
    let Some(tools) = env::var_os("STANDIN_AWS_TOOLS") else {
        return;
    };
    let output = Command::new("python3")
        .arg(golden("presign_with_botocore.py"))
        .env("PYTHONPATH", tools)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let made = String::from_utf8(output.stdout).unwrap();
    assert_eq!(tokens(), made.lines().collect::<Vec<_>>());
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

/// The token with something else in its address.
fn tampered(old: &str, new: &str) -> String {
    let token = shifted(0);
    let address = URL_SAFE_NO_PAD.decode(token.strip_prefix("k8s-aws-v1.").unwrap());
    let address = String::from_utf8(address.unwrap()).unwrap();
    assert!(address.contains(old), "{address}");
    let address = address.replacen(old, new, 1);
    format!("k8s-aws-v1.{}", URL_SAFE_NO_PAD.encode(address))
}

/// What an EKS cluster does with a token, by its own program and a service that checks signatures.
#[test]
fn the_verifier_of_eks_takes_good_tokens_alone() {
    // Compiled before there are tokens, which are good for minutes.
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
        // Ten minutes are between two tokens, and clocks may differ.
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
