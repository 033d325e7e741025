//! Which replica runs the controllers: the one that holds the Lease. All replicas serve; this is only about who changes
//! things.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::{Instant, sleep, timeout};

use crate::error::{Doing as _, Result, chain};
use crate::metrics::Metrics;
use crate::settings::Settings;

/// A holder that has not renewed for so long is gone.
const LEASE: Duration = Duration::from_secs(15);
/// A holder that could not renew for so long steps back, well before another one can step up.
const STEP_BACK: Duration = Duration::from_secs(10);
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);

/// What to do about a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It is ours: say that we are still there.
    Renew,
    /// It is nobody's.
    Take,
    /// Somebody else has it.
    Wait,
}

/// Decides by what this replica has seen, not by what the holder's clock said: `unchanged` is how long the Lease has
/// looked the same to us.
fn step(spec: &LeaseSpec, replica: &str, unchanged: Duration) -> Step {
    match spec.holder_identity.as_deref() {
        None | Some("") => Step::Take,
        Some(holder) if holder == replica => Step::Renew,
        Some(_) if unchanged > LEASE => Step::Take,
        Some(_) => Step::Wait,
    }
}

fn held(spec: &LeaseSpec, replica: &str, step: Step, now: Timestamp) -> LeaseSpec {
    let now = MicroTime(now);
    let mut next = LeaseSpec {
        holder_identity: Some(replica.to_owned()),
        lease_duration_seconds: i32::try_from(LEASE.as_secs()).ok(),
        renew_time: Some(now.clone()),
        ..spec.clone()
    };
    if step == Step::Take {
        next.acquire_time = Some(now);
        next.lease_transitions = Some(spec.lease_transitions.unwrap_or_default() + 1);
    }
    next
}

pub(crate) struct Election {
    leases: Api<Lease>,
    name: String,
    replica: String,
    /// What the Lease looked like, and since when.
    seen: Option<(LeaseSpec, Instant)>,
}

impl Election {
    pub(crate) fn new(client: Client, settings: &Settings) -> Self {
        Self {
            leases: Api::namespaced(client, &settings.namespace),
            name: settings.lease.clone(),
            replica: settings.replica.clone(),
            seen: None,
        }
    }

    /// Runs `work` while this replica is the leader, again and again.
    pub(crate) async fn lead<Work, Working>(mut self, metrics: &Metrics, work: Work)
    where
        Work: Fn() -> Working,
        Working: Future<Output = ()>,
    {
        loop {
            while !self.look().await {
                sleep(BETWEEN_LOOKS).await;
            }
            tracing::info!("this replica runs the controllers now");
            metrics.is_leader.set(1);
            tokio::select! {
                // Whatever has ended it may be there still.
                () = work() => sleep(BETWEEN_LOOKS).await,
                () = self.until_lost() => {}
            }
            metrics.is_leader.set(0);
            tracing::warn!("this replica does not run the controllers any more");
        }
    }

    async fn until_lost(&mut self) {
        let mut renewed = Instant::now();
        while renewed.elapsed() < STEP_BACK {
            sleep(BETWEEN_LOOKS).await;
            if timeout(BETWEEN_LOOKS, self.look()).await == Ok(true) {
                renewed = Instant::now();
            }
        }
    }

    /// Says whether the Lease is ours now.
    async fn look(&mut self) -> bool {
        match self.try_once().await {
            Ok(ours) => ours,
            Err(error) => {
                tracing::warn!(error = chain(&error), "no leader can be agreed on now");
                false
            }
        }
    }

    async fn try_once(&mut self) -> Result<bool> {
        let doing = format!("read the Lease {}", self.name);
        let mut lease = self.leases.get(&self.name).await.doing(doing)?;
        let spec = lease.spec.clone().unwrap_or_default();
        let unchanged = match &self.seen {
            Some((seen, since)) if *seen == spec => since.elapsed(),
            _ => {
                self.seen = Some((spec.clone(), Instant::now()));
                Duration::ZERO
            }
        };
        let step = step(&spec, &self.replica, unchanged);
        if step == Step::Wait {
            return Ok(false);
        }
        lease.spec = Some(held(&spec, &self.replica, step, Timestamp::now()));
        // The version that was read goes along: of two that take it, one is told that it came too late.
        let written = self
            .leases
            .replace(&self.name, &PostParams::default(), &lease)
            .await;
        match written {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error).doing(format!("write the Lease {}", self.name)),
        }
    }

    /// Gives the Lease back, so that another replica need not wait.
    pub(crate) async fn resign(client: Client, settings: &Settings) {
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
            tracing::debug!(%error, "the Lease runs out by itself");
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
    fn a_lease_is_taken_when_its_holder_is_gone() {
        let fresh = Duration::from_secs(14);
        let stale = Duration::from_secs(16);
        let cases = [
            (None, fresh, Step::Take),
            (Some(""), fresh, Step::Take),
            (Some("us"), fresh, Step::Renew),
            (Some("us"), stale, Step::Renew),
            (Some("them"), fresh, Step::Wait),
            (Some("them"), stale, Step::Take),
        ];
        for (holder, unchanged, expected) in cases {
            assert_eq!(
                step(&held_by(holder), "us", unchanged),
                expected,
                "{holder:?}"
            );
        }
        assert!(STEP_BACK + BETWEEN_LOOKS * 2 < LEASE, "never two leaders");
    }

    #[test]
    fn only_taking_is_a_transition() {
        let now = Timestamp::UNIX_EPOCH;
        let taken = held(&held_by(Some("them")), "us", Step::Take, now);
        assert_eq!(taken.holder_identity.as_deref(), Some("us"));
        assert_eq!(taken.lease_transitions, Some(1));
        let renewed = held(&taken, "us", Step::Renew, now);
        assert_eq!(renewed.lease_transitions, Some(1));
    }
}
