//! Tokens for EKS clusters: made here, of the operator's role, without any Secret.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Mutex;

use super::identity::WebIdentity;
use super::presign::{self, AwsCredentials};
use super::{Credential, NoCredential};

/// A token is good for 15 minutes.
const BETWEEN_TOKENS: Duration = Duration::from_secs(600);
/// Credentials that end sooner than this are exchanged for others first: the cluster asks AWS with them later.
const SPARE: SignedDuration = SignedDuration::from_mins(16);
/// Until AWS is asked again for credentials that it did not give.
const AFTER_A_FAILURE: Duration = Duration::from_secs(60);

/// The operator's role in AWS, which is the same for all members.
#[derive(Debug)]
pub(crate) struct EksTokens {
    identity: WebIdentity,
    /// The last credentials and their end. Members share them.
    credentials: Mutex<Option<(AwsCredentials, Timestamp)>>,
}

impl EksTokens {
    pub(crate) fn new(identity: WebIdentity) -> Self {
        Self {
            identity,
            credentials: Mutex::default(),
        }
    }

    /// A token, and how long to wait before the next one is made.
    pub(crate) async fn token(
        &self,
        region: &str,
        cluster: &str,
        now: Timestamp,
    ) -> Result<(Credential, Duration), NoCredential> {
        let (credentials, pause) = self.credentials(region, now).await?;
        let token = presign::token(&credentials, region, cluster, now);
        Ok((Credential::Token(token), pause))
    }

    /// Those that are kept are used to their end, where AWS gives no others.
    async fn credentials(
        &self,
        region: &str,
        now: Timestamp,
    ) -> Result<(AwsCredentials, Duration), NoCredential> {
        let mut kept = self.credentials.lock().await;
        let left = kept.as_ref().map(|(_, ends)| now.duration_until(*ends));
        if let Some((credentials, _)) = kept.as_ref().filter(|_| left > Some(SPARE)) {
            return Ok((credentials.clone(), BETWEEN_TOKENS));
        }
        match (self.identity.credentials(region).await, kept.as_ref()) {
            (Ok((credentials, ends)), _) => {
                *kept = Some((credentials.clone(), ends));
                Ok((credentials, BETWEEN_TOKENS))
            }
            (Err(error), Some((credentials, ends))) if now < *ends => {
                let error = error.to_string();
                tracing::warn!(error, %ends, "AWS gives no credentials; the last ones are used to their end");
                Ok((credentials.clone(), AFTER_A_FAILURE))
            }
            (Err(error), _) => Err(NoCredential::Aws(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;

    /// An operator to which AWS gives nothing: its account's token is not there.
    fn refused(ends: Option<Timestamp>) -> EksTokens {
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
            credentials: Mutex::new(ends.map(|ends| (credentials, ends))),
            ..EksTokens::new(identity)
        }
    }

    #[tokio::test]
    async fn credentials_are_used_to_their_end_where_aws_gives_no_others() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let minutes = |minutes| Some(now + SignedDuration::from_mins(minutes));
        // When the last credentials end, and how long to wait before the next token.
        let cases = [
            (minutes(17), Some(BETWEEN_TOKENS)),
            (minutes(15), Some(AFTER_A_FAILURE)),
            (minutes(1), Some(AFTER_A_FAILURE)),
            (minutes(0), None),
            (None, None),
        ];
        for (ends, expected) in cases {
            let token = refused(ends).token("eu-north-1", "east", now).await;
            match (token, expected) {
                (Ok((_, pause)), expected) => assert_eq!(Some(pause), expected, "{ends:?}"),
                (Err(NoCredential::Aws(why)), None) => assert!(why.contains("/nowhere"), "{why}"),
                (Err(trouble), _) => panic!("{ends:?}: {trouble}"),
            }
        }
    }
}
