//! Reviews the right of a connected user again and again, because a right that is removed must end its sessions.
//!
//! Each reconnect is authorized anyway. The review uses the user of the connection, as the API server has authenticated it,
//! with everything that an authorizer may need.

use std::time::Duration;

use api::TargetPath;
use http::StatusCode;
use kube::Client;
use tokio::time::{sleep, timeout};

use super::authorize;
use crate::front_proxy::User;
use crate::response::Refusal;

/// The delay after a review that has failed. A failure is no decision.
const RETRY_DELAY: Duration = Duration::from_secs(10);
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// What a connection is authorized for.
#[derive(Clone, Debug)]
pub(crate) struct Authorization {
    pub(crate) user: User,
    pub(crate) namespace: String,
    pub(crate) target: TargetPath,
}

impl Authorization {
    /// Completes when the user has lost the right, with a message for that user.
    pub(crate) async fn revoked(&self, client: &Client, interval: Duration) -> String {
        let mut delay = interval;
        loop {
            sleep(delay).await;
            delay = match self.review(client).await {
                Ok(()) => interval,
                Err(refusal) if refusal.code == StatusCode::FORBIDDEN => {
                    return format!("the right to it was removed: {}", refusal.message);
                }
                Err(refusal) => {
                    let error = refusal.message;
                    tracing::warn!(user = self.user.name, error, "rights review failed");
                    interval.min(RETRY_DELAY)
                }
            };
        }
    }

    async fn review(&self, client: &Client) -> Result<(), Refusal> {
        let review = authorize(client, &self.user, &self.namespace, &self.target);
        let reviewed = timeout(REVIEW_TIMEOUT, review).await;
        reviewed.unwrap_or_else(|_| Err(Refusal::unavailable("the API server does not respond")))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;
    use crate::multicluster::stub;

    const INTERVAL: Duration = Duration::from_secs(300);

    fn review(status: &Value) -> stub::StubResponse {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "metadata": {}, "spec": {}, "status": status,
        });
        stub::json_response(StatusCode::CREATED, &review)
    }

    fn failure(code: StatusCode) -> stub::StubResponse {
        let status = json!({
            "kind": "Status", "status": "Failure", "code": code.as_u16(), "reason": "Failed", "message": "failed",
        });
        stub::json_response(code, &status)
    }

    /// An API server that gives these responses, one after another.
    fn responding(responses: Vec<stub::StubResponse>) -> Client {
        let mut responses = VecDeque::from(responses);
        stub::client(move |_| responses.pop_front().expect("no more reviews"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_right_ends_the_session_and_a_failure_does_not() {
        let allowed = || review(&json!({"allowed": true}));
        let denied = || review(&json!({"allowed": false}));
        let undecided = || review(&json!({"allowed": false, "evaluationError": "webhook"}));
        let unavailable = || failure(StatusCode::INTERNAL_SERVER_ERROR);
        // The responses, and the seconds until the session ends.
        let cases = [
            (vec![denied()], 300),
            (vec![allowed(), allowed(), denied()], 900),
            (vec![failure(StatusCode::TOO_MANY_REQUESTS), denied()], 310),
            (vec![unavailable(), unavailable(), allowed(), denied()], 620),
            (vec![undecided(), denied()], 310),
            (vec![failure(StatusCode::FORBIDDEN), denied()], 310),
            (vec![stub::reset_response(), denied()], 310),
            (vec![stub::pending_response(), denied()], 320),
        ];
        let authorization = Authorization {
            user: User {
                name: "anna".to_owned(),
                ..User::default()
            },
            namespace: "shop".to_owned(),
            target: "deployment/web".parse().unwrap(),
        };
        for (responses, expected) in cases {
            let began = Instant::now();
            let message = authorization
                .revoked(&responding(responses), INTERVAL)
                .await;
            assert_eq!(began.elapsed().as_secs(), expected);
            let expected = "the right to it was removed: anna may not have a session with deployment/web in shop";
            assert!(message.starts_with(expected), "{message}");
        }
    }
}
