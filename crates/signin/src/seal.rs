//! Encrypts what a browser keeps for the server. A browser can neither read nor change it, nor use it for another purpose.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::error::Unspecified;
use ring::rand::{SecureRandom as _, SystemRandom};
use thiserror::Error;

/// The length of a key.
pub const KEY_LENGTH: usize = 32;

/// Why nothing can be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SealError {
    #[error("a key for cookies has {KEY_LENGTH} bytes, and not {0}")]
    KeyLength(usize),
    #[error("a key for cookies is missing")]
    NoKey,
    #[error("the system has no random numbers")]
    NoRandomNumbers,
}

/// Seals with the newest of its keys, and opens with all of them, so that a key can be replaced while sessions are open.
pub struct Sealer {
    keys: Vec<LessSafeKey>,
    random: SystemRandom,
}

impl Sealer {
    /// The newest key first.
    pub fn new<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>) -> Result<Self, SealError> {
        let keys = keys
            .into_iter()
            .map(|key| {
                let key = key.as_ref();
                let unbound = UnboundKey::new(&CHACHA20_POLY1305, key);
                let unbound = unbound.map_err(|_| SealError::KeyLength(key.len()))?;
                Ok(LessSafeKey::new(unbound))
            })
            .collect::<Result<Vec<_>, SealError>>()?;
        if keys.is_empty() {
            return Err(SealError::NoKey);
        }
        Ok(Self {
            keys,
            random: SystemRandom::new(),
        })
    }

    /// A new key.
    pub fn new_key() -> Result<[u8; KEY_LENGTH], SealError> {
        let mut key = [0; KEY_LENGTH];
        let filled = SystemRandom::new().fill(&mut key);
        filled.map_err(|_| SealError::NoRandomNumbers)?;
        Ok(key)
    }

    /// The text can be opened for the same purpose only. It consists of letters, digits, `-` and `_`.
    pub fn seal(&self, purpose: &str, content: &[u8]) -> Result<String, SealError> {
        let key = self.keys.first().ok_or(SealError::NoKey)?;
        let mut nonce = [0; NONCE_LEN];
        let filled = self.random.fill(&mut nonce);
        filled.map_err(|_| SealError::NoRandomNumbers)?;
        let mut sealed = content.to_vec();
        key.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(purpose.as_bytes()),
            &mut sealed,
        )
        .map_err(|Unspecified| SealError::NoKey)?;
        Ok(URL_SAFE_NO_PAD.encode([&nonce, sealed.as_slice()].concat()))
    }

    /// The content, if one of the keys sealed this text for this purpose.
    pub fn open(&self, purpose: &str, text: &str) -> Option<Vec<u8>> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        self.keys.iter().find_map(|key| {
            let mut content = sealed.to_vec();
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let opened = key.open_in_place(nonce, Aad::from(purpose.as_bytes()), &mut content);
            opened.ok().map(|content| content.to_vec())
        })
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Sealer");
        debug
            .field("keys", &self.keys.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sealer(keys: &[u8]) -> Sealer {
        Sealer::new(keys.iter().map(|byte| [*byte; KEY_LENGTH])).unwrap()
    }

    #[test]
    fn only_the_same_key_and_purpose_open_it() {
        let text = sealer(&[1]).seal("session", b"anna").unwrap();
        assert_eq!(sealer(&[1]).open("session", &text).unwrap(), b"anna");
        assert_eq!(sealer(&[1]).open("flow", &text), None);
        assert_eq!(sealer(&[2]).open("session", &text), None);
        // A new key was added, and the old one is still there.
        assert_eq!(sealer(&[2, 1]).open("session", &text).unwrap(), b"anna");
        let again = sealer(&[1]).seal("session", b"anna").unwrap();
        assert_ne!(text, again, "the same content is recognisable");
    }

    #[test]
    fn keys_of_another_length_are_refused() {
        assert_eq!(
            Sealer::new([[0; 16]]).unwrap_err(),
            SealError::KeyLength(16)
        );
        assert_eq!(Sealer::new([[0; 0]; 0]).unwrap_err(), SealError::NoKey);
    }

    proptest! {
        #[test]
        fn changed_texts_are_not_opened(content in proptest::collection::vec(any::<u8>(), 0..64), at in any::<prop::sample::Index>(), with in 0..64_u8) {
            let sealer = sealer(&[7]);
            let text = sealer.seal("x", &content).unwrap();
            let mut changed = text.clone().into_bytes();
            let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
            let at = at.index(changed.len());
            changed[at] = alphabet[usize::from(with)];
            let changed = String::from_utf8(changed).unwrap();
            let expected = (changed == text).then_some(content);
            prop_assert_eq!(sealer.open("x", &changed), expected);
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in ".*") {
            prop_assert_eq!(sealer(&[7]).open("x", &text), None);
        }
    }
}
