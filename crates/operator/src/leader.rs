//! Leader election: the replica that holds the Lease runs the controllers. All replicas serve requests.

use std::future::Future;
use std::time::Duration;

use error_chain::error_chain;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::{Instant, sleep, timeout};

use crate::error::{KubeResultExt as _, Result};
use crate::metrics::Metrics;
use crate::settings::Settings;

/// A Lease that was not renewed for this time can be acquired by another replica.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// A leader that could not renew for this time stops leading, well before another replica can acquire the Lease.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// The interval between attempts to acquire or renew the Lease.
const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// What to do about a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseAction {
    /// This replica holds the Lease.
    Renew,
    /// The Lease has no holder, or its holder did not renew it.
    Acquire,
    /// Another replica holds the Lease.
    Wait,
}

/// Decides by the observations of this replica, not by the holder's clock: `unchanged` is the time for which this replica
/// has observed the same Lease.
fn lease_action(spec: &LeaseSpec, replica: &str, unchanged: Duration) -> LeaseAction {
    match spec.holder_identity.as_deref() {
        None | Some("") => LeaseAction::Acquire,
        Some(holder) if holder == replica => LeaseAction::Renew,
        Some(_) if unchanged > LEASE_DURATION => LeaseAction::Acquire,
        Some(_) => LeaseAction::Wait,
    }
}

fn renewed_lease(
    spec: &LeaseSpec,
    replica: &str,
    action: LeaseAction,
    now: Timestamp,
) -> LeaseSpec {
    let now = MicroTime(now);
    let mut next = LeaseSpec {
        holder_identity: Some(replica.to_owned()),
        lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
        renew_time: Some(now.clone()),
        ..spec.clone()
    };
    if action == LeaseAction::Acquire {
        next.acquire_time = Some(now);
        next.lease_transitions = Some(spec.lease_transitions.unwrap_or_default() + 1);
    }
    next
}

pub(crate) struct Election {
    leases: Api<Lease>,
    name: String,
    replica: String,
    /// The Lease as last observed, and since when it is unchanged.
    observed: Option<(LeaseSpec, Instant)>,
}

impl Election {
    pub(crate) fn new(client: Client, settings: &Settings) -> Self {
        Self {
            leases: Api::namespaced(client, &settings.namespace),
            name: settings.lease.clone(),
            replica: settings.replica.clone(),
            observed: None,
        }
    }

    /// Runs `work` whenever this replica is the leader. Never returns.
    pub(crate) async fn lead<Work, Working>(mut self, metrics: &Metrics, work: Work)
    where
        Work: Fn() -> Working,
        Working: Future<Output = ()>,
    {
        loop {
            while !self.try_lead().await {
                sleep(RETRY_PERIOD).await;
            }
            tracing::info!("became leader");
            metrics.is_leader.set(1);
            tokio::select! {
                // The cause of its end may persist.
                () = work() => sleep(RETRY_PERIOD).await,
                () = self.until_lost() => {}
            }
            metrics.is_leader.set(0);
            tracing::warn!("stopped leading");
        }
    }

    async fn until_lost(&mut self) {
        let mut renewed = Instant::now();
        while renewed.elapsed() < RENEW_DEADLINE {
            sleep(RETRY_PERIOD).await;
            if timeout(RETRY_PERIOD, self.try_lead()).await == Ok(true) {
                renewed = Instant::now();
            }
        }
    }

    /// Acquires or renews the Lease, and returns whether this replica holds it now.
    async fn try_lead(&mut self) -> bool {
        match self.update_lease().await {
            Ok(is_leader) => is_leader,
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "leader election failed");
                false
            }
        }
    }

    async fn update_lease(&mut self) -> Result<bool> {
        let action = format!("read the Lease {}", self.name);
        let mut lease = self.leases.get(&self.name).await.action(action)?;
        let spec = lease.spec.clone().unwrap_or_default();
        let unchanged = match &self.observed {
            Some((observed, since)) if *observed == spec => since.elapsed(),
            _ => {
                self.observed = Some((spec.clone(), Instant::now()));
                Duration::ZERO
            }
        };
        let action = lease_action(&spec, &self.replica, unchanged);
        if action == LeaseAction::Wait {
            return Ok(false);
        }
        lease.spec = Some(renewed_lease(
            &spec,
            &self.replica,
            action,
            Timestamp::now(),
        ));
        // The write contains the resource version that was read: of two replicas that acquire the Lease, one gets a conflict.
        let written = self
            .leases
            .replace(&self.name, &PostParams::default(), &lease)
            .await;
        match written {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error).action(format!("write the Lease {}", self.name)),
        }
    }

    /// Releases the Lease, so that another replica need not wait until it expires.
    pub(crate) async fn release(client: Client, settings: &Settings) {
        let leases: Api<Lease> = Api::namespaced(client, &settings.namespace);
        let Ok(mut lease) = leases.get(&settings.lease).await else {
            return;
        };
        let mut spec = lease.spec.clone().unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(&settings.replica) {
            return;
        }
        spec.holder_identity = None;
        lease.spec = Some(spec);
        if let Err(error) = leases
            .replace(&settings.lease, &PostParams::default(), &lease)
            .await
        {
            tracing::debug!(%error, "Lease release failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_by(holder: Option<&str>) -> LeaseSpec {
        LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_lease_is_acquired_when_its_holder_does_not_renew_it() {
        let fresh = Duration::from_secs(14);
        let stale = Duration::from_secs(16);
        let cases = [
            (None, fresh, LeaseAction::Acquire),
            (Some(""), fresh, LeaseAction::Acquire),
            (Some("us"), fresh, LeaseAction::Renew),
            (Some("us"), stale, LeaseAction::Renew),
            (Some("them"), fresh, LeaseAction::Wait),
            (Some("them"), stale, LeaseAction::Acquire),
        ];
        for (holder, unchanged, expected) in cases {
            assert_eq!(
                lease_action(&held_by(holder), "us", unchanged),
                expected,
                "{holder:?}"
            );
        }
        assert!(
            RENEW_DEADLINE + RETRY_PERIOD * 2 < LEASE_DURATION,
            "never two leaders"
        );
    }

    #[test]
    fn only_an_acquisition_is_a_transition() {
        let now = Timestamp::UNIX_EPOCH;
        let acquired = renewed_lease(&held_by(Some("them")), "us", LeaseAction::Acquire, now);
        assert_eq!(acquired.holder_identity.as_deref(), Some("us"));
        assert_eq!(acquired.lease_transitions, Some(1));
        let renewed = renewed_lease(&acquired, "us", LeaseAction::Renew, now);
        assert_eq!(renewed.lease_transitions, Some(1));
    }
}
