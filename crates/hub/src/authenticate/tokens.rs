//! Tokens of the hub's cluster, reviewed by its API server. Clients send the same token with each request, so results are
//! kept for a short time, under a hash that is useless outside of this process.

use std::time::Duration;

use error_chain::error_chain;
use k8s_openapi::api::authentication::v1::{
    TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo,
};
use kube::api::PostParams;
use kube::{Api, Client};
use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Rejected, jwt};
use crate::cache::{Cache, Loaded};
use crate::user::User;

/// The audience of tokens for hubs only, which other API servers do not accept. That of the operator of a Primary has it.
const OWN_AUDIENCE: &str = "standin-hub";
/// How long a valid token may be used after it was revoked.
const VALID_TTL: Duration = Duration::from_secs(10);
/// How long an invalid token causes no other review.
const INVALID_TTL: Duration = Duration::from_secs(5);
const CAPACITY: usize = 4096;
/// The limit of concurrent reviews, so that a flood of tokens does not become one of requests to the API server.
const MAX_REVIEWS: usize = 32;
/// The limit of reviews that wait for others. More are refused at once, so that a flood of invalid tokens delays valid ones for
/// a short time only.
const MAX_WAITING: usize = 256;
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// The review of tokens.
pub(crate) struct TokenReviews {
    client: Client,
    /// The audiences that a token may be for. Empty for [`OWN_AUDIENCE`] and those of the API server.
    audiences: Vec<String>,
    key: hmac::Key,
    cache: Cache<Vec<u8>, Option<User>>,
    reviews: Semaphore,
    waiting: Semaphore,
}

impl std::fmt::Debug for TokenReviews {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("TokenReviews")
            .field("audiences", &self.audiences)
            .finish_non_exhaustive()
    }
}

impl TokenReviews {
    /// Fails if the system has no random numbers.
    pub(crate) fn new(
        client: Client,
        audiences: Vec<String>,
    ) -> Result<Self, ring::error::Unspecified> {
        Ok(Self {
            client,
            audiences,
            key: hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())?,
            cache: Cache::new(CAPACITY),
            reviews: Semaphore::new(MAX_REVIEWS),
            waiting: Semaphore::new(MAX_WAITING),
        })
    }

    pub(crate) async fn review(&self, token: &str) -> Result<User, Rejected> {
        let key = hmac::sign(&self.key, token.as_bytes()).as_ref().to_vec();
        let load = async || {
            let user = timeout(REVIEW_TIMEOUT, self.review_now(token))
                .await
                .map_err(|_| {
                    Rejected::Unavailable("the API server does not respond".to_owned())
                })??;
            Ok(Loaded {
                ttl: if user.is_some() {
                    VALID_TTL
                } else {
                    INVALID_TTL
                },
                is_valuable: user.is_some(),
                value: user,
            })
        };
        let user = self.cache.get(&key, load).await?;
        user.ok_or_else(|| Rejected::Invalid("the bearer token is not valid".to_owned()))
    }

    async fn review_now(&self, token: &str) -> Result<Option<User>, Rejected> {
        let unavailable =
            |error: &(dyn std::error::Error + 'static)| Rejected::Unavailable(error_chain(error));
        let waiting = self.waiting.try_acquire().map_err(|_| {
            Rejected::Unavailable("too many credentials are being checked".to_owned())
        })?;
        let _permit = self
            .reviews
            .acquire()
            .await
            .map_err(|error| unavailable(&error))?;
        drop(waiting);
        let audiences = self.audiences_of(token);
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: (!audiences.is_empty()).then(|| audiences.clone()),
            },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let reviewed = reviews.create(&PostParams::default(), &review).await;
        let status = reviewed.map_err(|error| unavailable(&error))?.status;
        decide(status.unwrap_or_default(), &audiences)
    }

    /// The audiences that are accepted for a token. A review is for one or the other: nothing names the API server's own.
    fn audiences_of(&self, token: &str) -> Vec<String> {
        if self.audiences.is_empty() && jwt::names_audience(token, OWN_AUDIENCE) {
            vec![OWN_AUDIENCE.to_owned()]
        } else {
            self.audiences.clone()
        }
    }
}

/// The user of a review. An authenticator that has failed has not decided.
fn decide(status: TokenReviewStatus, audiences: &[String]) -> Result<Option<User>, Rejected> {
    if status.authenticated != Some(true) {
        // Kubernetes reports invalid tokens as errors too, so its text decides nothing. It may be in the log only.
        if let Some(error) = &status.error {
            tracing::debug!(error, "token review failed");
        }
        return Ok(None);
    }
    let found = status.audiences.unwrap_or_default();
    if !audiences.is_empty() && !found.iter().any(|audience| audiences.contains(audience)) {
        return Ok(None);
    }
    Ok(status.user.and_then(user))
}

fn user(info: UserInfo) -> Option<User> {
    Some(User {
        name: info.username.filter(|name| !name.is_empty())?,
        uid: info.uid.filter(|uid| !uid.is_empty()),
        groups: info.groups.unwrap_or_default(),
        extra: info.extra.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(authenticated: Option<bool>, name: &str, audiences: &[&str]) -> TokenReviewStatus {
        TokenReviewStatus {
            authenticated,
            audiences: Some(audiences.iter().map(|text| (*text).to_owned()).collect()),
            user: Some(UserInfo {
                username: Some(name.to_owned()),
                ..UserInfo::default()
            }),
            ..TokenReviewStatus::default()
        }
    }

    #[test]
    fn only_an_authenticated_token_for_the_audience_has_a_user() {
        let hub = ["hub".to_owned()];
        let cases = [
            (TokenReviewStatus::default(), &[][..], None),
            (status(None, "anna", &[]), &[], None),
            (status(Some(false), "anna", &[]), &[], None),
            (status(Some(true), "", &[]), &[], None),
            (status(Some(true), "anna", &[]), &[], Some("anna")),
            // An API server that does not know audiences checks none.
            (status(Some(true), "anna", &[]), &hub, None),
            (status(Some(true), "anna", &["other"]), &hub, None),
            (
                status(Some(true), "anna", &["other", "hub"]),
                &hub,
                Some("anna"),
            ),
        ];
        for (status, audiences, expected) in cases {
            let found = decide(status.clone(), audiences).unwrap();
            assert_eq!(
                found.map(|user| user.name).as_deref(),
                expected,
                "{status:?}"
            );
        }
    }
}
