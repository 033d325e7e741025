//! Certificate fingerprints.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};

/// The SHA-256 hash of a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

/// Parses the format of [`Display`](fmt::Display): 64 hexadecimal digits. Colons between the bytes are allowed, because other
/// tools print them.
impl FromStr for Fingerprint {
    type Err = MalformedFingerprint;

    fn from_str(text: &str) -> Result<Self, MalformedFingerprint> {
        let digits: Vec<u8> = text
            .chars()
            .filter(|character| *character != ':')
            .map(|character| {
                character
                    .to_digit(16)
                    .and_then(|digit| u8::try_from(digit).ok())
            })
            .collect::<Option<_>>()
            .ok_or(MalformedFingerprint)?;
        let bytes: Vec<u8> = digits
            .chunks(2)
            .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit))
            .collect();
        match (digits.len(), bytes.try_into()) {
            (64, Ok(bytes)) => Ok(Self(bytes)),
            _ => Err(MalformedFingerprint),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 has 64 hexadecimal digits")]
pub struct MalformedFingerprint;

impl fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Fingerprint({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_parsed_as_they_are_printed() {
        let fingerprint = Fingerprint(std::array::from_fn(|index| index as u8 * 7));
        let text = fingerprint.to_string();
        assert_eq!(text.parse(), Ok(fingerprint));
        let pairs: Vec<&str> = (0..32).map(|pair| &text[2 * pair..2 * pair + 2]).collect();
        assert_eq!(pairs.join(":").to_uppercase().parse(), Ok(fingerprint));
        for wrong in [
            "",
            "00",
            &text[1..],
            &format!("{text}0"),
            &text.replace('0', "g"),
        ] {
            assert_eq!(wrong.parse::<Fingerprint>(), Err(MalformedFingerprint));
        }
    }
}
