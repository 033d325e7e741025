//! Registration: an agent redeems its token for a certificate.
//!
//! Every token that is refused gets the same response after the same time, whatever the reason is, so that a response says
//! nothing about tokens. The log has the reason.

use std::net::IpAddr;
use std::time::Duration;

use api::hub::{Registered, Registration};
use authority::{Facts, Profile, SigningRequest, Usage};
use error_chain::error_chain;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::{Instant, sleep_until};

use crate::Hub;
use crate::error::{Error, Result};
use crate::responses::{ApiResponse, Failure, json, read_json};
use crate::tokens::Rejection;

/// A failure is answered this long after its request, or at a multiple of it. It is longer than a write to a Secret takes.
const FAILURE_STEP: Duration = Duration::from_millis(200);
/// How much of a text from outside is logged.
const MAX_LOGGED: usize = 64;

/// Why a registration failed. Only the log has it.
#[derive(Debug, thiserror::Error)]
enum Rejected {
    #[error(transparent)]
    Token(Rejection),
    #[error(transparent)]
    Failed(Error),
}

impl Rejected {
    /// For metrics.
    fn reason(&self) -> &'static str {
        match self {
            Self::Token(Rejection::Unknown) => "unknown_token",
            Self::Token(Rejection::Expired) => "expired_token",
            Self::Token(Rejection::ClusterMismatch { .. }) => "another_cluster",
            Self::Token(Rejection::AnotherKey) => "another_key",
            Self::Token(Rejection::Burned) => "burned_token",
            Self::Failed(Error::NotRegistered { .. }) => "not_registered",
            Self::Failed(Error::Revoked { .. }) => "revoked",
            Self::Failed(_) => "error",
        }
    }

    /// Whether the agent should ask again with the same token.
    fn is_temporary(&self) -> bool {
        self.reason() == "error"
    }
}

/// Responds to `POST /api/agents/register`. No other credential than the token is needed.
pub(crate) async fn register(hub: &Hub, source: IpAddr, request: Request<Incoming>) -> ApiResponse {
    let rate = hub.configuration.borrow().agent.registrations;
    if !hub.rate_limit.lock().admit(source, rate, Timestamp::now()) {
        hub.metrics.limit_hit("registrations");
        return Failure::too_many_requests().response();
    }
    let registration: Registration = match read_json(request).await {
        Ok(registration) => registration,
        Err(failure) => return failure.response(),
    };
    // Before the token is looked up, so the response says nothing about it.
    let request = match SigningRequest::from_pem(&registration.csr) {
        Ok(request) => request,
        Err(error) => {
            return Failure::bad_request(format!("csr: {}", error_chain(&error))).response();
        }
    };
    let cluster: String = registration.cluster.chars().take(MAX_LOGGED).collect();
    let started = Instant::now();
    let rejected = match redeem(hub, &registration, &request, Timestamp::now()).await {
        Ok(registered) => {
            hub.metrics.registration("registered");
            let expires_at = registered.expires_at.0;
            tracing::info!(cluster, %source, %expires_at, "agent registered");
            return json(StatusCode::OK, &registered);
        }
        Err(rejected) => rejected,
    };
    hub.metrics.registration(rejected.reason());
    let reason = error_chain(&rejected);
    tracing::warn!(cluster, %source, reason, "registration rejected");
    sleep_until(started + answer_after(started.elapsed())).await;
    if rejected.is_temporary() {
        let error = "the hub cannot register agents now";
        return Failure::unavailable(error).response();
    }
    Failure::new(StatusCode::UNAUTHORIZED, api::hub::REGISTRATION_REJECTED).response()
}

/// When a failure is answered that took so long.
fn answer_after(elapsed: Duration) -> Duration {
    let steps = elapsed.as_nanos() / FAILURE_STEP.as_nanos() + 1;
    FAILURE_STEP.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX))
}

async fn redeem(
    hub: &Hub,
    registration: &Registration,
    request: &SigningRequest,
    now: Timestamp,
) -> Result<Registered, Rejected> {
    let cluster = &registration.cluster;
    let key = request.key().hex();
    let issue = || {
        // A token may outlive its cluster.
        if hub.registry.get(cluster).is_none() {
            let name = cluster.clone();
            return Err(Error::NotRegistered { name });
        }
        sign(hub, cluster, request, now)
    };
    let redeemed = hub
        .tokens
        .redeem(&registration.token, cluster, &key, now, issue)
        .await
        .map_err(Rejected::Failed)?;
    let certificate = redeemed.map_err(Rejected::Token)?;
    hand_out(hub, cluster, certificate, None, now)
        .await
        .map_err(Rejected::Failed)
}

/// Issues another certificate to an agent that has proved its identity with `previous`.
pub(crate) async fn renew(
    hub: &Hub,
    cluster: &str,
    previous: &Facts,
    request: &SigningRequest,
    now: Timestamp,
) -> Result<Registered> {
    let certificate = sign(hub, cluster, request, now)?;
    hand_out(hub, cluster, certificate, Some(previous), now).await
}

fn sign(hub: &Hub, cluster: &str, request: &SigningRequest, now: Timestamp) -> Result<String> {
    let profile = Profile {
        common_name: cluster.to_owned(),
        names: Vec::new(),
        usage: Usage::Client,
        lifetime: hub.configuration.borrow().agent.certificate_lifetime(),
    };
    let authorities = hub.certificates.borrow().authorities.clone();
    let issued = authorities.trust().sign(request, &profile, now)?;
    Ok(issued.certificate_pem)
}

/// Records a certificate, so that it can be revoked, and only then returns it.
async fn hand_out(
    hub: &Hub,
    cluster: &str,
    certificate: String,
    previous: Option<&Facts>,
    now: Timestamp,
) -> Result<Registered> {
    let facts = Facts::from_pem(&certificate)?;
    hub.registry
        .record_certificate(cluster, &facts, previous, now)
        .await?;
    Ok(Registered {
        cert: certificate,
        ca_bundle: hub.certificates.borrow().authorities.bundle().to_owned(),
        expires_at: Time(facts.not_after),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_answered_at_fixed_times() {
        for (elapsed, expected) in [(0, 200), (1, 200), (199, 200), (200, 400), (401, 600)] {
            let after = answer_after(Duration::from_millis(elapsed));
            assert_eq!(after, Duration::from_millis(expected), "{elapsed} ms");
        }
    }
}
