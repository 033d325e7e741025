//! The tokens in their Secret, which all replicas share and which survives restarts.

use jiff::{SignedDuration, Timestamp};
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::error::{Error, Result};
use crate::secrets::{Data, SharedSecret, text};
use crate::tokens::{
    self, Claim, Redemption, Rejection, TOKEN_BYTES, TokenHash, Tokens, TooManyTokens,
};

/// The key in the Secret.
const TOKENS: &str = "tokens.json";

pub(crate) struct TokenStore {
    secret: SharedSecret,
}

impl TokenStore {
    pub(crate) fn new(secret: SharedSecret) -> Self {
        Self { secret }
    }

    /// Creates a token, and returns it with the time at which it expires.
    pub(crate) async fn create(
        &self,
        cluster: &str,
        lifetime: SignedDuration,
        now: Timestamp,
    ) -> Result<Result<(String, Timestamp), TooManyTokens>> {
        let mut bytes = [0; TOKEN_BYTES];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| Error::NoRandomness)?;
        let token = tokens::encode(&bytes);
        let expires_at = now + lifetime;
        let Some(hash) = TokenHash::of(&token) else {
            return Err(Error::NoRandomness);
        };
        let added = self
            .update(|tokens| Ok(tokens.add(hash.clone(), cluster, expires_at, now)))
            .await?;
        Ok(added.map(|()| (token, expires_at)))
    }

    /// Redeems a token for a certificate, which `issue` creates if this is the first time.
    pub(crate) async fn redeem(
        &self,
        token: &str,
        cluster: &str,
        key: &str,
        now: Timestamp,
        issue: impl Fn() -> Result<String> + Send + Sync,
    ) -> Result<Result<String, Rejection>> {
        // Unknown tokens change nothing, so they do not wait for those that do.
        let Some(hash) = TokenHash::of(token) else {
            return Ok(Err(Rejection::Unknown));
        };
        if !self.read(&self.secret.read().await?)?.contains(&hash) {
            return Ok(Err(Rejection::Unknown));
        }
        let claim = Claim {
            token: &hash,
            cluster,
            key,
        };
        self.update(|tokens| match tokens.redeem(claim, now) {
            Ok(Redemption::First) => {
                let certificate = issue()?;
                tokens.complete(claim, &certificate);
                Ok(Ok(certificate))
            }
            Ok(Redemption::Again(certificate)) => Ok(Ok(certificate)),
            Err(rejection) => Ok(Err(rejection)),
        })
        .await
    }

    /// Burns every token of a cluster.
    pub(crate) async fn burn(&self, cluster: &str) -> Result<()> {
        self.update(|tokens| {
            tokens.burn(cluster);
            Ok(())
        })
        .await
    }

    async fn update<T>(
        &self,
        change: impl Fn(&mut Tokens) -> Result<T> + Send + Sync,
    ) -> Result<T> {
        self.secret
            .update(|data| {
                let mut tokens = self.read(data)?;
                let before = tokens.clone();
                let outcome = change(&mut tokens)?;
                if tokens != before {
                    let text = serde_json::to_vec(&tokens);
                    data.insert(
                        TOKENS.to_owned(),
                        text.map_err(|error| self.invalid(error))?,
                    );
                }
                Ok(outcome)
            })
            .await
    }

    fn read(&self, data: &Data) -> Result<Tokens> {
        let Some(text) = text(data, TOKENS) else {
            return Ok(Tokens::default());
        };
        serde_json::from_str(text).map_err(|error| self.invalid(error))
    }

    fn invalid(&self, error: serde_json::Error) -> Error {
        let hint = "remove it, and create new tokens";
        self.secret.invalid(TOKENS, hint, error)
    }
}
