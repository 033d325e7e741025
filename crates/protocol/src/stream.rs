//! Raw streams: reads and writes their headers.

use std::fmt::Display;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{Error, Result};

/// Writes a value whose text is ASCII, such as a number or an address.
pub(crate) fn set(headers: &mut HeaderMap, name: &'static str, value: impl Display) {
    if let Ok(value) = HeaderValue::try_from(value.to_string()) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// Writes arbitrary bytes in base64.
pub(crate) fn set_bytes(headers: &mut HeaderMap, name: &'static str, value: &[u8]) {
    set(headers, name, STANDARD_NO_PAD.encode(value));
}

pub(crate) fn get<T: FromStr>(
    headers: &HeaderMap,
    name: &'static str,
    expected: &'static str,
) -> Result<Option<T>> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    value
        .to_str()
        .ok()
        .and_then(|text| text.parse().ok())
        .map(Some)
        .ok_or(Error::BadHeader { name, expected })
}

pub(crate) fn require<T: FromStr>(
    headers: &HeaderMap,
    name: &'static str,
    expected: &'static str,
) -> Result<T> {
    get(headers, name, expected)?.ok_or(Error::MissingHeader(name))
}

pub(crate) fn get_bytes(headers: &HeaderMap, name: &'static str) -> Result<Option<Vec<u8>>> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let decoded = STANDARD_NO_PAD.decode(value);
    decoded.map(Some).map_err(|_| Error::BadHeader {
        name,
        expected: "unpadded base64",
    })
}
