//! Tokens for EKS clusters: made here, of the operator's role, without any Secret.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Mutex;

use super::identity::WebIdentity;
use super::presign::{self, AwsCredentials};
use super::{Credential, NoCredential};

/// A token is good for 15 minutes.
pub(crate) const BETWEEN_TOKENS: Duration = Duration::from_secs(600);
/// Credentials that end sooner than this are exchanged for others first: the cluster asks AWS with them later.
const SPARE: SignedDuration = SignedDuration::from_mins(16);

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

    pub(crate) async fn token(
        &self,
        region: &str,
        cluster: &str,
        now: Timestamp,
    ) -> Result<Credential, NoCredential> {
        let mut kept = self.credentials.lock().await;
        let is_fresh = |(_, ends): &&(AwsCredentials, Timestamp)| now.duration_until(*ends) > SPARE;
        let credentials = match kept.as_ref().filter(is_fresh) {
            Some((credentials, _)) => credentials.clone(),
            None => {
                let asked = self.identity.credentials(region).await;
                let (credentials, ends) =
                    asked.map_err(|error| NoCredential::Aws(error.to_string()))?;
                *kept = Some((credentials.clone(), ends));
                credentials
            }
        };
        let token = presign::token(&credentials, region, cluster, now);
        Ok(Credential::Token(token))
    }
}
