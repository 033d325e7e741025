//! The certificate authorities in their Secret: one that signs, and others during a rotation. The hub creates the first one;
//! an administrator may bring one, and its successor.

use authority::rotation::{Peer, Policy, Step, Trust};
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::error::Result;
use crate::secrets::{Data, SharedSecret};

/// A key that an administrator adds to the Secret to rotate the authority now. The next write removes it.
const ROTATE: &str = "rotate";
const HINT: &str = "restore the Secret from a backup, or correct the value that you have written";

/// The authorities of a moment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Authorities {
    trust: Trust,
    bundle: String,
}

impl Authorities {
    fn new(trust: Trust) -> Self {
        Self {
            bundle: trust.bundle_pem(),
            trust,
        }
    }

    /// Signs with the current authority.
    pub(crate) fn trust(&self) -> &Trust {
        &self.trust
    }

    /// All that agents have to trust, in PEM.
    pub(crate) fn bundle(&self) -> &str {
        &self.bundle
    }
}

pub(super) struct AuthorityStore {
    secret: SharedSecret,
    /// The last step that only an administrator can take, so that it is logged once.
    awaited: Mutex<bool>,
}

impl AuthorityStore {
    pub(super) fn new(secret: SharedSecret) -> Self {
        Self {
            secret,
            awaited: Mutex::new(false),
        }
    }

    /// Reads the authorities, creates one if there is none, and takes the steps of a rotation that are due. Without `peers`,
    /// when it is not known yet who has to trust a new authority, no rotation proceeds.
    pub(super) async fn ensure(
        &self,
        policy: &Policy,
        peers: Option<&[Peer]>,
        now: Timestamp,
    ) -> Result<Authorities> {
        let advanced = self.secret.update(|data| {
            let (trust, steps) = advance(data, policy, peers, now)
                .map_err(|error| self.secret.invalid("ca.crt", HINT, error))?;
            if steps.iter().any(|step| step.is_change())
                || data.contains_key(ROTATE)
                || is_empty(data)
            {
                *data = trust.to_data();
            }
            Ok((trust, steps))
        });
        let (trust, steps) = advanced.await?;
        self.report(&steps);
        Ok(Authorities::new(trust))
    }

    fn report(&self, steps: &[Step]) {
        for step in steps.iter().filter(|step| step.is_change()) {
            tracing::info!(?step, "certificate authority rotation");
        }
        let awaits = steps.contains(&Step::AwaitSuccessor);
        if awaits && !std::mem::replace(&mut *self.awaited.lock(), awaits) {
            tracing::warn!("certificate authority needs a successor");
        }
    }
}

fn is_empty(data: &Data) -> bool {
    !data.contains_key("ca.crt")
}

fn advance(
    data: &Data,
    policy: &Policy,
    peers: Option<&[Peer]>,
    now: Timestamp,
) -> Result<(Trust, Vec<Step>), authority::Error> {
    let mut trust = match Trust::from_data(data)? {
        Some(trust) => trust,
        None => Trust::create(policy, now)?,
    };
    if data.contains_key(ROTATE) {
        trust = trust.introduce(policy, now)?;
    }
    if let Some(peers) = peers {
        return trust.advance(policy, peers, now);
    }
    // Needed before anything is signed, and harmless.
    let step = trust.decide(policy, &[], now);
    match step {
        Step::NoteLifetime => Ok((trust.apply(step, policy, now)?, vec![step])),
        _ => Ok((trust, Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use authority::rotation::Durations;
    use jiff::SignedDuration;

    use super::*;

    fn policy() -> Policy {
        Policy::new("standin-hub", Durations::default()).unwrap()
    }

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap() + SignedDuration::from_hours(hours)
    }

    fn steps(data: &mut Data, peers: Option<&[Peer]>, hours: i64) -> Vec<Step> {
        let (trust, steps) = advance(data, &policy(), peers, at(hours)).unwrap();
        *data = trust.to_data();
        steps
    }

    /// A replica that has not read the registry must not conclude that there are no agents.
    #[test]
    fn a_rotation_waits_until_the_agents_are_known_and_confirm() {
        let mut data = Data::new();
        assert_eq!(steps(&mut data, Some(&[]), 0), []);
        data.insert(ROTATE.to_owned(), b"now".to_vec());
        assert_eq!(steps(&mut data, None, 1), []);
        assert!(data.contains_key("next.crt") && !data.contains_key(ROTATE));
        assert_eq!(steps(&mut data, None, 2), []);
        let mut peer = Peer {
            name: "a".to_owned(),
            certificate_expires_at: at(1000),
            trusts: [].into(),
        };
        assert_eq!(steps(&mut data, Some(&[peer.clone()]), 3), []);
        let trust = Trust::from_data(&data).unwrap().unwrap();
        let next = trust.next().unwrap().facts().fingerprint.clone();
        peer.trusts.insert(next);
        assert_eq!(steps(&mut data, Some(&[peer]), 4), [Step::Promote]);
    }
}
