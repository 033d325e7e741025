//! Keys as `openssl ecparam` and many libraries write them (SEC 1, RFC 5915), in the form that signing needs (PKCS #8,
//! RFC 5958).

use rustls::pki_types::PrivatePkcs8KeyDer;

const SEQUENCE: u8 = 0x30;
const OCTET_STRING: u8 = 0x04;
/// The integer 0.
const VERSION: &[u8] = &[0x02, 0x01, 0x00];

/// The algorithm identifiers of elliptic curves: a sequence of two object identifiers, `ecPublicKey` and the curve.
const P256: &[u8] = &[
    0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48,
    0xce, 0x3d, 0x03, 0x01, 0x07,
];
const P384: &[u8] = &[
    0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04,
    0x00, 0x22,
];

/// The key as one of each supported curve. At most one of them is accepted as a key, because their lengths differ.
pub(super) fn to_pkcs8(sec1: &[u8]) -> [PrivatePkcs8KeyDer<'static>; 2] {
    [P256, P384].map(|algorithm| {
        let key = element(OCTET_STRING, sec1);
        element(SEQUENCE, &[VERSION, algorithm, &key].concat()).into()
    })
}

/// An element in DER.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut element = vec![tag];
    let length = content.len().to_be_bytes();
    let length = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    match length {
        [] => element.push(0),
        [byte] if *byte < 0x80 => element.push(*byte),
        // A long length has its own length in front. It has 8 bytes at most.
        _ => {
            element.push(0x80 | length.len() as u8);
            element.extend_from_slice(length);
        }
    }
    element.extend_from_slice(content);
    element
}
