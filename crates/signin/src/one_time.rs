//! Tokens that work once: a command prints one, or opens a browser with it, and the browser has a session from then on.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};

use crate::seal::{SealError, Sealer};
use crate::user::User;

/// How long a browser has to start and to use its token.
const LIFETIME: SignedDuration = SignedDuration::from_secs(120);
/// The maximum number of tokens that were not used yet. More of them replace the oldest.
const MAX_TOKENS: usize = 1024;

/// The tokens of this process that were not used yet. Only their hashes are kept.
#[derive(Debug, Default)]
pub struct OneTimeTokens {
    tokens: Mutex<HashMap<Vec<u8>, Pending>>,
}

#[derive(Debug)]
struct Pending {
    user: User,
    expires: Timestamp,
}

impl OneTimeTokens {
    /// A token with which one browser can sign in as this user, soon.
    pub fn mint(&self, user: User, now: Timestamp) -> Result<String, SealError> {
        let token = URL_SAFE_NO_PAD.encode(Sealer::new_key()?);
        let mut tokens = self.tokens.lock();
        tokens.retain(|_, pending| now < pending.expires);
        if tokens.len() >= MAX_TOKENS {
            let oldest = tokens.iter().min_by_key(|(_, pending)| pending.expires);
            let oldest = oldest.map(|(hash, _)| hash.clone());
            oldest.map(|hash| tokens.remove(&hash));
        }
        let expires = now + LIFETIME;
        tokens.insert(hash(&token), Pending { user, expires });
        Ok(token)
    }

    /// The user of a token. It does not work again.
    pub fn redeem(&self, token: &str, now: Timestamp) -> Option<User> {
        let pending = self.tokens.lock().remove(&hash(token))?;
        (now < pending.expires).then_some(pending.user)
    }
}

/// The map is searched by the hash, so the time that it takes says nothing about tokens.
fn hash(token: &str) -> Vec<u8> {
    digest(&SHA256, token.as_bytes()).as_ref().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn user(name: &str) -> User {
        User {
            name: name.to_owned(),
            ..User::default()
        }
    }

    #[test]
    fn a_token_works_once_and_soon() {
        let tokens = OneTimeTokens::default();
        let (first, second) = (
            tokens.mint(user("anna"), at(0)).unwrap(),
            tokens.mint(user("ben"), at(0)).unwrap(),
        );
        assert_eq!(tokens.redeem("other", at(1)), None);
        assert_eq!(tokens.redeem(&first, at(119)), Some(user("anna")));
        assert_eq!(tokens.redeem(&first, at(119)), None);
        assert_eq!(tokens.redeem(&second, at(120)), None);
    }

    #[test]
    fn the_number_of_tokens_is_limited() {
        let tokens = OneTimeTokens::default();
        let oldest = tokens.mint(user("anna"), at(0)).unwrap();
        let second = tokens.mint(user("ben"), at(1)).unwrap();
        for _ in 0..MAX_TOKENS - 1 {
            tokens.mint(user("cora"), at(2)).unwrap();
        }
        assert_eq!(tokens.tokens.lock().len(), MAX_TOKENS);
        assert_eq!(tokens.redeem(&oldest, at(3)), None);
        assert_eq!(tokens.redeem(&second, at(3)), Some(user("ben")));
    }
}
