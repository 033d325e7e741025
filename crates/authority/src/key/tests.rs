use super::*;
use crate::Facts;
use crate::fixtures::{days, start};

/// The public key of the files p256.*, by `openssl ec -pubout -outform DER | sha256sum`.
const P256: &str = "sha256:9842cfb2484acbd3d01631cce1f9e9c61ec17b9f87a47a9e73d1c9922d31f8e1";
const P384: &str = "sha256:f91ddda8b37b1db42e5ec2399c2c122e57f3273f57343d5f08eba85130e6b7ed";

#[test]
fn keys_of_other_programs_are_read() {
    let sec1 = include_str!("../../testdata/p256.sec1.pem");
    let pkcs8 = include_str!("../../testdata/p256.pkcs8.pem");
    let p384 = include_str!("../../testdata/p384.sec1.pem");
    let without_parameters = &sec1[sec1.find("-----BEGIN EC PRIVATE").unwrap()..];
    let encrypted = pkcs8.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let rsa = pkcs8.replace("PRIVATE KEY", "RSA PRIVATE KEY");
    let cut = format!("{}\n-----END PRIVATE KEY-----\n", &pkcs8[..92]);
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(&str, &str, Option<&str>)] = &[
        ("PKCS #8",                     pkcs8,              Some(P256)),
        ("SEC 1 after its parameters",  sec1,               Some(P256)),
        ("SEC 1",                       without_parameters, Some(P256)),
        ("SEC 1 for P-384",             p384,               Some(P384)),
        ("an encrypted key",            &encrypted,         None),
        ("another format",              &rsa,               None),
        ("a part of a key",             &cut,               None),
        ("nothing",                     "",                 None),
    ];
    for (what, text, expected) in cases {
        let key = PrivateKey::from_pem(text);
        let hash = key.as_ref().ok().map(|key| key.key().to_string());
        assert_eq!(hash.as_deref(), *expected, "{what}");
    }
}

#[test]
fn a_key_is_the_same_after_it_was_stored() {
    let key = PrivateKey::generate().unwrap();
    let stored = PrivateKey::from_pem(key.to_pem()).unwrap();
    assert_eq!(stored.key(), key.key());
    assert_eq!(stored.to_pem(), key.to_pem());
    assert_ne!(PrivateKey::generate().unwrap().key(), key.key());
}

#[test]
fn a_self_signed_certificate_is_for_its_name_and_does_not_expire() {
    let key = PrivateKey::generate().unwrap();
    let facts = Facts::from_pem(&key.self_signed_pem("standin").unwrap()).unwrap();
    assert_eq!(facts.names, ["standin"]);
    assert_eq!(facts.key, key.key());
    assert!(!facts.is_authority);
    assert!(!facts.is_expired(start() + days(365 * 1000)));
}

#[test]
fn errors_and_debug_output_have_no_key() {
    let key = PrivateKey::generate().unwrap();
    let secret = key.to_pem().lines().nth(1).unwrap();
    assert!(!format!("{key:?}").contains(secret));
    let broken = key.to_pem().replace("END PRIVATE", "END OF PRIVATE");
    let error = PrivateKey::from_pem(&broken).unwrap_err();
    assert!(!format!("{error} {error:?}").contains(secret));
}

#[test]
fn pins_are_read_as_they_are_written() {
    let hash: KeyHash = P256.parse().unwrap();
    assert_eq!(hash.to_string(), P256);
    assert_eq!(
        P256.to_uppercase()
            .replace("SHA", "sha")
            .parse::<KeyHash>()
            .unwrap(),
        hash
    );
    assert_eq!(KeyHash::from_hex(&hash.hex()).unwrap(), hash);
    let digits = hash.hex();
    let unicode = format!("sha256:{}é", &digits[..62]);
    let signs = format!("sha256:+{}", &digits[1..]);
    for wrong in ["", "sha256:", &digits, &P256[..70], &unicode, &signs] {
        assert!(wrong.parse::<KeyHash>().is_err(), "{wrong}");
    }
}
