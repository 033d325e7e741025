#![allow(clippy::type_complexity, reason = "a table is read by its columns")]

use super::*;
use crate::PrivateKey;

#[test]
fn requests_are_verified() {
    let key = PrivateKey::generate().unwrap();
    let request = key.request_pem("prod-eu").unwrap();
    assert_eq!(SigningRequest::from_pem(&request).unwrap().key(), key.key());

    let ours = PrivateKey::from_pem(include_str!("../../testdata/p256.pkcs8.pem")).unwrap();
    let foreign = include_str!("../../testdata/request.pem");
    assert_eq!(SigningRequest::from_pem(foreign).unwrap().key(), ours.key());
}

#[test]
fn unusable_requests_are_refused() {
    let key = PrivateKey::generate().unwrap();
    let request = key.request_pem("prod-eu").unwrap();
    let other_name = forge(&request, |der| {
        let at = der.windows(7).position(|bytes| bytes == b"prod-eu");
        der[at.unwrap()] = b'q';
    });
    let longer = forge(&request, |der| der.push(0));
    let cut = forge(&request, |der| der.truncate(100));
    let long = format!("{request}{}", " ".repeat(MAX_LENGTH));
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(&str, &str, fn(&Error) -> bool)] = &[
        ("nothing",          "",           |error| matches!(error, Error::NoRequest)),
        ("a key",            key.to_pem(), |error| matches!(error, Error::NoRequest)),
        ("a changed name",   &other_name,  |error| matches!(error, Error::ForgedRequest)),
        ("more bytes",       &longer,      |error| matches!(error, Error::UnreadableRequest(_))),
        ("a part",           &cut,         |error| matches!(error, Error::UnreadableRequest(_))),
        ("a very long text", &long,        |error| matches!(error, Error::LongRequest(_))),
    ];
    for (what, text, expected) in cases {
        let error = SigningRequest::from_pem(text).unwrap_err();
        assert!(expected(&error), "{what}: {error}");
    }
}

fn forge(request: &str, change: impl FnOnce(&mut Vec<u8>)) -> String {
    let der = CertificateSigningRequestDer::from_pem_slice(request.as_bytes()).unwrap();
    let mut der = der.to_vec();
    change(&mut der);
    crate::pem::encode_certificate(&der).replace("CERTIFICATE", "CERTIFICATE REQUEST")
}
