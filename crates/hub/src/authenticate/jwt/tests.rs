use std::sync::LazyLock;

use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use serde_json::json;

use super::*;

pub(in crate::authenticate) const NOW: i64 = 1_800_000_000;

/// A key of an issuer.
pub(in crate::authenticate) struct Signer {
    kid: &'static str,
    pair: EcdsaKeyPair,
}

impl Signer {
    pub(in crate::authenticate) fn new(kid: &'static str) -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap();
        Self { kid, pair }
    }

    pub(in crate::authenticate) fn jwk(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        json!({
            "kty": "EC", "crv": "P-256", "kid": self.kid, "use": "sig", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(&point[1..33]), "y": URL_SAFE_NO_PAD.encode(&point[33..]),
        })
    }

    pub(in crate::authenticate) fn sign(&self, claims: &Value) -> String {
        self.sign_with(&json!({"alg": "ES256", "kid": self.kid}), claims)
    }

    fn sign_with(&self, header: &Value, claims: &Value) -> String {
        let signed = signed_part(header, claims);
        let signature = self
            .pair
            .sign(&SystemRandom::new(), signed.as_bytes())
            .unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

fn signed_part(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}

static SIGNER: LazyLock<Signer> = LazyLock::new(|| Signer::new("1"));

fn keys(list: &[Value]) -> KeySet {
    serde_json::from_value(json!({ "keys": list })).unwrap()
}

fn claims() -> Value {
    json!({"iss": "https://issuer", "aud": "hub", "sub": "anna", "exp": NOW + 60, "iat": NOW})
}

/// The claims with one of them changed, or removed if it is null.
fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    if value.is_null() {
        claims.as_object_mut().unwrap().remove(name);
    } else {
        claims[name] = value;
    }
    claims
}

fn verify_now(token: &str, keys: &KeySet, algorithms: &[Algorithm]) -> Result<Claims, JwtError> {
    let audiences = ["hub".to_owned()];
    let expected = Expected {
        issuer: "https://issuer",
        audiences: &audiences,
        algorithms,
    };
    verify(token, keys, &expected, Timestamp::from_second(NOW).unwrap())
}

#[test]
fn claims_are_checked() {
    let keys = keys(&[SIGNER.jwk()]);
    let check = |claims: &Value, expected: Result<(), JwtError>| {
        let found = verify_now(&SIGNER.sign(claims), &keys, &[Algorithm::ES256]);
        assert_eq!(found.map(|_| ()), expected, "{claims}");
    };
    check(&claims(), Ok(()));
    check(&with("aud", json!(["other", "hub"])), Ok(()));
    check(&with("aud", json!(["other"])), Err(JwtError::Audience));
    check(&with("aud", json!("hub2")), Err(JwtError::Audience));
    check(&with("aud", json!([])), Err(JwtError::Audience));
    check(&with("aud", Value::Null), Err(JwtError::Audience));
    check(
        &with("iss", json!("https://issuer/")),
        Err(JwtError::Issuer),
    );
    check(&with("iss", Value::Null), Err(JwtError::Issuer));
    check(
        &with("exp", Value::Null),
        Err(JwtError::Missing("exp".to_owned())),
    );
    check(&with("exp", json!("never")), Err(JwtError::Malformed));
    check(&with("exp", json!(NOW - LEEWAY_SECONDS + 1)), Ok(()));
    check(
        &with("exp", json!(NOW - LEEWAY_SECONDS)),
        Err(JwtError::Expired),
    );
    check(&with("exp", json!(-1e300)), Err(JwtError::Expired));
    check(&with("exp", json!(1e300)), Ok(()));
    check(&with("nbf", json!(NOW + LEEWAY_SECONDS)), Ok(()));
    check(
        &with("nbf", json!(NOW + LEEWAY_SECONDS + 1)),
        Err(JwtError::NotYetValid),
    );
    check(&with("nbf", json!([])), Err(JwtError::Malformed));
}

#[test]
fn only_allowed_algorithms_and_published_keys_sign() {
    let (signer, other) = (&*SIGNER, Signer::new("1"));
    let mut of_encryption = signer.jwk();
    of_encryption["use"] = json!("enc");
    let mut of_other_algorithm = signer.jwk();
    of_other_algorithm["alg"] = json!("ES384");
    let unknown_kind = json!({"kty": "new", "kid": "1"});
    let token = signer.sign(&claims());
    let header = |alg: &str| json!({"alg": alg, "kid": "1"});
    let unsigned = format!("{}.", signed_part(&header("none"), &claims()));
    let without_kid = signer.sign_with(&json!({"alg": "ES256"}), &claims());
    let wrong_kid = signer.sign_with(&json!({"alg": "ES256", "kid": "2"}), &claims());
    let critical = json!({"alg": "ES256", "kid": "1", "crit": ["exp"]});
    let mut forged = signed_part(&header("ES256"), &with("sub", json!("root")));
    forged.push_str(&token[token.rfind('.').unwrap()..]);
    let all = &[Algorithm::ES256, Algorithm::RS256, Algorithm::EdDsa][..];
    let own = &[signer.jwk()][..];
    let algorithm = |name: &str| Err(JwtError::Algorithm(name.to_owned()));
    let cases = [
        (token.clone(), own, all, Ok(())),
        (without_kid, own, all, Ok(())),
        (
            token.clone(),
            &[unknown_kind, other.jwk(), signer.jwk()],
            all,
            Ok(()),
        ),
        (token.clone(), &[other.jwk()], all, Err(JwtError::Signature)),
        (token.clone(), &[], all, Err(JwtError::UnknownKey)),
        (
            token.clone(),
            &[of_encryption],
            all,
            Err(JwtError::UnknownKey),
        ),
        (
            token.clone(),
            &[of_other_algorithm],
            all,
            Err(JwtError::UnknownKey),
        ),
        (wrong_kid, own, all, Err(JwtError::UnknownKey)),
        (token.clone(), own, &[Algorithm::RS256], algorithm("ES256")),
        (unsigned, own, all, algorithm("none")),
        (
            signer.sign_with(&header("HS256"), &claims()),
            own,
            all,
            algorithm("HS256"),
        ),
        // A key of another kind
        (
            signer.sign_with(&header("RS256"), &claims()),
            own,
            all,
            Err(JwtError::UnknownKey),
        ),
        (
            signer.sign_with(&critical, &claims()),
            own,
            all,
            Err(JwtError::Malformed),
        ),
        (forged, own, all, Err(JwtError::Signature)),
        (format!("{token}x"), own, all, Err(JwtError::Malformed)),
        (format!("{token}.x"), own, all, Err(JwtError::Malformed)),
        ("a.b".to_owned(), own, all, Err(JwtError::Malformed)),
    ];
    for (token, list, algorithms, expected) in cases {
        let found = verify_now(&token, &keys(list), algorithms);
        assert_eq!(found.map(|_| ()), expected, "{token}");
    }
}

#[test]
fn ed25519_keys_sign() {
    let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
    let x = URL_SAFE_NO_PAD.encode(pair.public_key());
    let key = json!({"kty": "OKP", "crv": "Ed25519", "x": x});
    let signed = signed_part(&json!({"alg": "EdDSA"}), &claims());
    let signature = URL_SAFE_NO_PAD.encode(pair.sign(signed.as_bytes()));
    let token = format!("{signed}.{signature}");
    assert!(verify_now(&token, &keys(&[key]), &[Algorithm::EdDsa]).is_ok());
}

#[test]
fn rsa_keys_sign() {
    let key: Key = serde_json::from_value(json!({
        "kty": "RSA", "e": "AQAB",
        "n": "rDPUeEjziiTv1qtxRvI5NWjyg4c3PfdIK7a8P-G-9dEhj9kGSUTxeBz7YQehrDGSUCBPJ2vwlRFfZvmO9LV_0hOF8fT4hbdMirUPCtVoA-tf3fgf6MRD4RRgzFbddGmDZ_JuxPVoE4c7yD95mC19zyIqi6PjaIgSxSMK-gxOgKYHjImtVWIuYVwxK1Yqh-gpHDVXp8otXFEjBsSxC6kUcdt26JeWOltBgad7OTt9eJ9ofrFjlRhgB5Hx-YbD9NhvxpC9b8RbhUJC8ATxA-0taGMvIy6dUZIeg7ipDgcaCt6G9RLAugxtVPamanjkBQXNlC9tNen2jBQyywGin4jfow",
    }))
    .unwrap();
    // Made with `openssl dgst -sha256 -sign`, the second one with `-sigopt rsa_padding_mode:pss`.
    let signatures = [
        (
            Algorithm::RS256,
            "Z40S6IovZpVvHXhlBpVJWkvuVSHXXjGPzlfb4o0uG14p2W1e8o3wGKgkjKfNO7zJb5Y9ZnzV6SF1o6yxGOZ9gthBLZmUe3lEAKUuYlgkgpfWG9h1JexjF1lkn49jalyTGNGL8Ixrqpz6cWSP7UkJpNF07aGhpcq-AOEw3FyimXU-4Qi1d1GW0wGfAPuMS8W0yr6zgV8eam9zR9nljBiKctScQBoG406RsX4ZjXOfmd2NgtGHIqB0Q2Sfz_2Ojo9q77UVpkYW4zR99ktS4ichvTDzv0vVZpDSa-zL_LbHntN3LHt9SuSOLEwUySfMtZl5YpNBc9KlQ8njMDhCqw0aag",
        ),
        (
            Algorithm::PS256,
            "A_4sGfHX1vTskbHaQZmtIyQgO5wlII7iuOVByX04PfPQ9FppRXcwTpM1Lv7ezZjjfARKoS-K4jmf5tI6YxfXAfnVvqNPPQz90V4VfMN1Hnh84ZBG15jBh9dLX4etC4_gA9us8IbLY0LzBoI4b1dyrEPluOmNS77WDwKhe7RB6NpDu79TVZhd59BEqSBGQBjjfXqqEPex38Nxj3uzglVyYqAHU0ZC4YZNHh9wFfBWsLmi5Xd2TIav2__4MKFGCU0A-r1HoeQKVkPdVetaKqcTGkrwFbESVyG_F1pirKNuj5Y4-fh5dPigrpcKeZkNN5h-sH0yqJpWMJIzH8rzy_2D-Q",
        ),
    ];
    for (algorithm, signature) in signatures {
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        assert!(key.has_signed(algorithm, b"header.claims", &signature));
        assert!(!key.has_signed(algorithm, b"header.other", &signature));
        assert!(!key.has_signed(Algorithm::RS512, b"header.claims", &signature));
    }
}

#[test]
fn the_audience_of_a_token_is_read_without_its_keys() {
    let token = |claims: &str| format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
    let check = |claims: &str, expected: bool| {
        assert_eq!(names_audience(&token(claims), "hub"), expected, "{claims}");
    };
    check(r#"{"aud": "hub"}"#, true);
    check(r#"{"aud": ["a", "hub"]}"#, true);
    check(r#"{"aud": ["a"]}"#, false);
    check(r#"{"aud": "hub2"}"#, false);
    check("{}", false);
    check("[]", false);
    assert!(!names_audience("opaque", "hub"));
}
