//! A user's token for a hub.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Tokens with many claims have a few KiB.
const MAX_LENGTH: usize = 64 * 1024;

/// A bearer token. Debug output does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Token(String);

/// The claims of a JSON web token that are read. The hub verifies the token.
#[derive(Debug, Deserialize)]
struct Claims {
    exp: Option<f64>,
}

impl Token {
    /// Reads a token as it is in a file. The error does not repeat the text.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let token = text.trim();
        if token.is_empty() {
            return Err("there is no token");
        }
        let is_visible = token.bytes().all(|byte| byte.is_ascii_graphic());
        match is_visible && token.len() <= MAX_LENGTH {
            true => Ok(Self(token.to_owned())),
            false => Err("this is not a token: a token is one word"),
        }
    }

    pub(super) fn expose(&self) -> &str {
        &self.0
    }

    /// When the token expires, if it is a JSON web token. Others do not say.
    pub(super) fn expires_at(&self) -> Option<Timestamp> {
        let mut parts = self.0.split('.');
        let (Some(_), Some(claims), Some(_), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return None;
        };
        let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
        let claims: Claims = serde_json::from_slice(&claims).ok()?;
        // Some issuers write fractions of seconds.
        let seconds = claims.exp.filter(|seconds| seconds.is_finite())?;
        Timestamp::from_second(seconds as i64).ok()
    }

    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at()
            .is_some_and(|expires_at| expires_at <= now)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Token").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web_token(claims: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn the_expiry_of_web_tokens_is_known() {
        let at = |second| Timestamp::from_second(second).ok();
        for (text, expected) in [
            (web_token(r#"{"exp":1700000000}"#), at(1_700_000_000)),
            (web_token(r#"{"exp":1700000000.9}"#), at(1_700_000_000)),
            (web_token(r#"{"exp":1e300}"#), None),
            (web_token(r#"{"sub":"anna"}"#), None),
            (web_token("no JSON"), None),
            ("a.b".to_owned(), None),
            ("opaque".to_owned(), None),
        ] {
            let token = Token::parse(&text).unwrap();
            assert_eq!(token.expires_at(), expected, "{text}");
        }
        let token = Token::parse(&web_token(r#"{"exp":100}"#)).unwrap();
        for (second, expected) in [(99, false), (100, true)] {
            assert_eq!(token.is_expired(at(second).unwrap()), expected);
        }
    }

    #[test]
    fn tokens_are_one_word_and_are_not_in_debug_output() {
        assert_eq!(Token::parse(" secret\n").unwrap().expose(), "secret");
        for text in ["", "\n", "two words", "a\nb", "ü"] {
            assert!(Token::parse(text).is_err(), "{text:?}");
        }
        let token = Token::parse("secret").unwrap();
        assert!(!format!("{token:?}").contains("secret"));
    }
}
