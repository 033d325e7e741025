//! Tokens for EKS clusters, which the operator creates with its role in AWS, without a Secret.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Mutex;

use super::identity::WebIdentity;
use super::presign::{self, AwsCredentials};
use super::{Credential, NoCredential};

/// A token is valid for 15 minutes.
const REFRESH_INTERVAL: Duration = Duration::from_secs(600);
/// Credentials that expire sooner than this are renewed first: the cluster uses them later, to verify the token.
const MIN_REMAINING: SignedDuration = SignedDuration::from_mins(16);
/// The delay before the next request to AWS after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(60);

/// The operator's role in AWS, which is the same for all members.
#[derive(Debug)]
pub(crate) struct EksTokens {
    identity: WebIdentity,
    /// The last credentials and their expiry. Members share them.
    credentials: Mutex<Option<(AwsCredentials, Timestamp)>>,
}

impl EksTokens {
    pub(crate) fn new(identity: WebIdentity) -> Self {
        Self {
            identity,
            credentials: Mutex::default(),
        }
    }

    /// A token, and the delay before the next one is created.
    pub(crate) async fn token(
        &self,
        region: &str,
        cluster: &str,
        now: Timestamp,
    ) -> Result<(Credential, Duration), NoCredential> {
        let (credentials, delay) = self.credentials(region, now).await?;
        let token = presign::token(&credentials, region, cluster, now);
        Ok((Credential::Token(token), delay))
    }

    /// The credentials and the delay before the next token. If AWS fails, the cached credentials are used until they expire.
    async fn credentials(
        &self,
        region: &str,
        now: Timestamp,
    ) -> Result<(AwsCredentials, Duration), NoCredential> {
        let mut cached = self.credentials.lock().await;
        let left = cached
            .as_ref()
            .map(|(_, expires)| now.duration_until(*expires));
        if let Some((credentials, _)) = cached.as_ref().filter(|_| left > Some(MIN_REMAINING)) {
            return Ok((credentials.clone(), REFRESH_INTERVAL));
        }
        match (self.identity.credentials(region).await, cached.as_ref()) {
            (Ok((credentials, expires)), _) => {
                *cached = Some((credentials.clone(), expires));
                Ok((credentials, REFRESH_INTERVAL))
            }
            (Err(error), Some((credentials, expires))) if now < *expires => {
                let error = error.to_string();
                tracing::warn!(error, %expires, "AWS credential refresh failed, using cached credentials");
                Ok((credentials.clone(), RETRY_DELAY))
            }
            (Err(error), _) => Err(NoCredential::Aws(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;

    /// An operator that gets no credentials: the token of its account is missing.
    fn without_token(expires: Option<Timestamp>) -> EksTokens {
        let identity = WebIdentity {
            role: "arn:aws:iam::1:role/standin".to_owned(),
            token_file: "/nowhere/token".into(),
            session_name: "standin".to_owned(),
            region: None,
            endpoint: None,
        };
        let credentials = AwsCredentials {
            access_key_id: "ASIAEXAMPLE".to_owned(),
            secret_access_key: SecretString::from("key"),
            session_token: None,
        };
        EksTokens {
            credentials: Mutex::new(expires.map(|expires| (credentials, expires))),
            ..EksTokens::new(identity)
        }
    }

    #[tokio::test]
    async fn cached_credentials_are_used_until_they_expire() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let minutes = |minutes| Some(now + SignedDuration::from_mins(minutes));
        // When the cached credentials expire, and the delay before the next token.
        let cases = [
            (minutes(17), Some(REFRESH_INTERVAL)),
            (minutes(15), Some(RETRY_DELAY)),
            (minutes(1), Some(RETRY_DELAY)),
            (minutes(0), None),
            (None, None),
        ];
        for (expires, expected) in cases {
            let token = without_token(expires)
                .token("eu-north-1", "east", now)
                .await;
            match (token, expected) {
                (Ok((_, delay)), expected) => assert_eq!(Some(delay), expected, "{expires:?}"),
                (Err(NoCredential::Aws(why)), None) => assert!(why.contains("/nowhere"), "{why}"),
                (Err(error), _) => panic!("{expires:?}: {error}"),
            }
        }
    }
}
