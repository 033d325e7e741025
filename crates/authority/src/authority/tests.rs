use super::*;
use crate::KeyHash;
use crate::fixtures::{days, profile, start, verify_client, verify_server};

fn authority() -> Authority {
    Authority::generate("standin-hub@1", days(3650), start()).unwrap()
}

fn request(key: &PrivateKey) -> SigningRequest {
    SigningRequest::from_pem(&key.request_pem("another name").unwrap()).unwrap()
}

#[test]
fn certificates_have_what_the_profile_says() {
    let authority = authority();
    let key = PrivateKey::generate().unwrap();
    let signed = authority
        .sign(&request(&key), &profile(Usage::Client), start())
        .unwrap();
    assert_eq!(
        Facts::from_pem(&signed.certificate_pem).unwrap(),
        signed.facts
    );
    assert_eq!(signed.facts.common_name, "prod-eu");
    assert_eq!(signed.facts.names, ["hub.example.com", "192.0.2.7"]);
    assert_eq!(signed.facts.key, key.key());
    assert_eq!(signed.facts.not_after, start() + days(90));
    assert!(!signed.facts.is_authority);
    let again = authority
        .issue(&key, &profile(Usage::Client), start())
        .unwrap();
    assert_eq!(again.facts.key, key.key());
    assert_ne!(again.facts.serial, signed.facts.serial);
}

#[test]
fn peers_verify_certificates() {
    let authority = authority();
    let bundle = authority.certificate_pem();
    let key = PrivateKey::generate().unwrap();
    let issue = |usage| {
        let issued = authority.issue(&key, &profile(usage), start());
        issued.unwrap().certificate_pem
    };
    let [server, client, both] = [Usage::Server, Usage::Client, Usage::Both].map(issue);
    let name = "hub.example.com";
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(&str, bool, Result<(), rustls::Error>)] = &[
        ("a server",                     true,  verify_server(bundle, &server, name, start())),
        ("a server by its address",      true,  verify_server(bundle, &server, "192.0.2.7", start())),
        ("a server of another name",     false, verify_server(bundle, &server, "other.example.com", start())),
        ("a client as a server",         false, verify_server(bundle, &client, name, start())),
        ("both as a server",             true,  verify_server(bundle, &both, name, start())),
        ("a client",                     true,  verify_client(bundle, &client, start())),
        ("a server as a client",         false, verify_client(bundle, &server, start())),
        ("both as a client",             true,  verify_client(bundle, &both, start())),
        ("a client whose clock is slow", true,  verify_client(bundle, &client, start() - SignedDuration::from_mins(59))),
        ("a client in its last second",  true,  verify_client(bundle, &client, start() + days(90))),
        ("a client after its life",      false, verify_client(bundle, &client, start() + days(91))),
        ("of another authority",         false, verify_client(self::authority().certificate_pem(), &client, start())),
    ];
    for (what, expected, verified) in cases {
        assert_eq!(verified.is_ok(), *expected, "{what}: {verified:?}");
    }
}

#[test]
fn an_authority_of_an_administrator_signs() {
    let p256 = include_str!("../../testdata/p256.ca.pem");
    let p384 = include_str!("../../testdata/p384.ca.pem");
    #[rustfmt::skip] // A table is read by its columns.
    let cases = [
        ("PKCS #8",         p256, include_str!("../../testdata/p256.pkcs8.pem")),
        ("SEC 1",           p256, include_str!("../../testdata/p256.sec1.pem")),
        ("SEC 1 for P-384", p384, include_str!("../../testdata/p384.sec1.pem")),
    ];
    for (what, certificate, key) in cases {
        let brought = Authority::from_pem(certificate, key).unwrap();
        let stored = Authority::from_pem(brought.certificate_pem(), brought.key_pem()).unwrap();
        assert_eq!(stored, brought, "{what}");
        assert_eq!(stored.certificate_pem(), certificate, "{what}");
        let key = PrivateKey::generate().unwrap();
        let client = stored
            .sign(&request(&key), &profile(Usage::Client), start())
            .unwrap();
        let verified = verify_client(certificate, &client.certificate_pem, start());
        assert!(verified.is_ok(), "{what}: {verified:?}");
    }
}

#[test]
fn unusable_authorities_are_refused() {
    let certificate = include_str!("../../testdata/p256.ca.pem");
    let key = include_str!("../../testdata/p256.sec1.pem");
    let other_key = include_str!("../../testdata/p384.sec1.pem");
    let chain = format!("{certificate}{certificate}");
    let leaf = include_str!("../../testdata/no-authority.pem");
    let repeated = include_str!("../../testdata/repeated-attribute.ca.pem");
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(&str, &str, &str)] = &[
        ("",          key,       "there is no certificate in PEM"),
        (&chain,      key,       "there are 2 certificates"),
        (certificate, "",        "there is no private key in PEM"),
        (certificate, other_key, "the private key does not belong to the certificate of Example Tunnels"),
        (leaf,        key,       "the certificate of Not an authority is not one of a certificate authority"),
        (repeated,    key,       "the subject of the certificate of x cannot be that of an authority"),
    ];
    for (certificate, key, expected) in cases {
        let error = Authority::from_pem(certificate, key).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(expected), "{text}");
    }
}

#[test]
fn a_certificate_never_outlives_its_authority() {
    let authority = authority();
    let end = authority.facts().not_after;
    let key = PrivateKey::generate().unwrap();
    let issue = |at| authority.issue(&key, &profile(Usage::Client), at);
    let late = issue(end - days(10)).unwrap();
    assert_eq!(late.facts.not_after, end);
    assert_eq!(late.facts.issued_at(), end - days(10));
    for at in [end, end + days(1), start() - days(1)] {
        let error = issue(at).unwrap_err();
        assert!(matches!(error, Error::AuthorityNotValid { .. }), "{error}");
    }
}

#[test]
fn impossible_profiles_are_refused() {
    let authority = authority();
    let key = PrivateKey::generate().unwrap();
    let named = |name: &str| Profile {
        names: vec![name.to_owned()],
        ..profile(Usage::Server)
    };
    let lasting = |lifetime| Profile {
        lifetime,
        ..profile(Usage::Server)
    };
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(Profile, bool)] = &[
        (named("hub.example.com"),               true),
        (named("*.hub.example.com"),             true),
        (named("2001:db8::1"),                   true),
        (named("not a name"),                    false),
        (named("https://hub.example.com"),       false),
        (named(""),                              false),
        (lasting(SignedDuration::from_secs(1)),  true),
        (lasting(SignedDuration::ZERO),          false),
        (lasting(-days(1)),                      false),
    ];
    for (profile, expected) in cases {
        let issued = authority.issue(&key, profile, start());
        assert_eq!(issued.is_ok(), *expected, "{profile:?}: {issued:?}");
    }
}

#[test]
fn debug_output_has_no_key() {
    let authority = authority();
    let secret = authority.key_pem().lines().nth(1).unwrap();
    assert!(!format!("{authority:?}").contains(secret));
}

#[test]
fn a_pin_is_the_hash_of_the_key_in_the_certificate() {
    let authority = authority();
    let key = PrivateKey::generate().unwrap();
    let issued = authority
        .issue(&key, &profile(Usage::Server), start())
        .unwrap();
    let pin: KeyHash = key.key().to_string().parse().unwrap();
    assert_eq!(issued.facts.key, pin);
}
