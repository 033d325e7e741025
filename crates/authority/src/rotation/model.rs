//! Random histories of replicas that rotate authorities, and of agents that come and go.
//!
//! Whatever happens, in whatever order: no certificate that is in use becomes unverifiable for a peer that could know better.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::*;
use crate::Usage;
use crate::fixtures::start;

const REPLICAS: usize = 2;
const AGENTS: usize = 2;
const DISTRIBUTION: i64 = 10;

#[derive(Clone, Copy, Debug)]
enum Event {
    Pass {
        seconds: i64,
    },
    /// A replica reads the stored state.
    Read {
        replica: usize,
    },
    /// A replica takes the steps that it decides for, and writes the state if no other one has.
    Advance {
        replica: usize,
    },
    /// An administrator asks a replica for a rotation.
    Rotate {
        replica: usize,
    },
    /// A replica is started with another life for certificates.
    Configure {
        replica: usize,
        certificate: i64,
    },
    /// A replica renews its own certificate.
    Serve {
        replica: usize,
    },
    /// An agent registers again.
    Register {
        agent: usize,
        replica: usize,
    },
    /// An agent connects, receives the authorities, confirms them, and renews its certificate if it likes.
    Connect {
        agent: usize,
        replica: usize,
        renew: bool,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let replica = 0..REPLICAS;
    let both = || (0..AGENTS, 0..REPLICAS);
    // Moments, and about the times that decide.
    let seconds = prop_oneof![1..12_i64, 55..75_i64, 95..115_i64];
    let certificate = prop_oneof![Just(60), Just(100)];
    prop_oneof![
        4 => seconds.prop_map(|seconds| Event::Pass { seconds }),
        1 => replica.clone().prop_map(|replica| Event::Read { replica }),
        4 => replica.clone().prop_map(|replica| Event::Advance { replica }),
        1 => replica.clone().prop_map(|replica| Event::Rotate { replica }),
        1 => (replica.clone(), certificate)
            .prop_map(|(replica, certificate)| Event::Configure { replica, certificate }),
        2 => replica.prop_map(|replica| Event::Serve { replica }),
        1 => both().prop_map(|(agent, replica)| Event::Register { agent, replica }),
        4 => (both(), any::<bool>())
            .prop_map(|((agent, replica), renew)| Event::Connect { agent, replica, renew }),
    ]
}

struct Certificate {
    signer: String,
    expires: Timestamp,
}

struct Replica {
    policy: Policy,
    trust: Trust,
    version: u64,
    read_at: Timestamp,
    server: Option<Certificate>,
}

#[derive(Default)]
struct Agent {
    trusts: BTreeSet<String>,
    certificate: Option<Certificate>,
}

struct Setup {
    now: Timestamp,
    overlap: Option<i64>,
    stored: BTreeMap<String, Vec<u8>>,
    /// What is stored.
    newest: Trust,
    version: u64,
    replicas: Vec<Replica>,
    agents: Vec<Agent>,
    key: PrivateKey,
    /// When the last certificate of each authority expires, for any peer.
    last: BTreeMap<String, Timestamp>,
}

impl Setup {
    fn new(overlap: Option<i64>) -> Self {
        let policy = policy(100, overlap);
        let trust = Trust::create(&policy, start()).unwrap();
        let stored = trust.to_data();
        let replica = || Replica {
            policy: policy.clone(),
            trust: trust.clone(),
            version: 0,
            read_at: start(),
            server: None,
        };
        Self {
            now: start(),
            overlap,
            stored,
            newest: trust.clone(),
            version: 0,
            replicas: std::iter::repeat_with(replica).take(REPLICAS).collect(),
            agents: std::iter::repeat_with(Agent::default)
                .take(AGENTS)
                .collect(),
            key: PrivateKey::generate().unwrap(),
            last: BTreeMap::new(),
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Pass { seconds } => (0..seconds).for_each(|_| self.pass_a_second()),
            Event::Read { replica } => self.read(replica),
            Event::Advance { replica } => {
                let peers = self.peers();
                let Replica { policy, trust, .. } = &self.replicas[replica];
                let (trust, steps) = trust.advance(policy, &peers, self.now).unwrap();
                if steps.iter().any(|step| step.is_change()) {
                    self.write(replica, &trust);
                }
            }
            Event::Rotate { replica } => {
                let Replica { policy, trust, .. } = &self.replicas[replica];
                let trust = trust.clone().introduce(policy, self.now).unwrap();
                self.write(replica, &trust);
            }
            Event::Configure {
                replica,
                certificate,
            } => self.replicas[replica].policy = policy(certificate, self.overlap),
            Event::Serve { replica } => self.replicas[replica].server = self.issue(replica),
            Event::Register { agent, replica } => {
                if let Some(certificate) = self.issue(replica) {
                    self.agents[agent].certificate = Some(certificate);
                    self.agents[agent].trusts = trusted(&self.replicas[replica].trust);
                }
            }
            Event::Connect {
                agent,
                replica,
                renew,
            } => self.connect(agent, replica, renew),
        }
    }

    fn pass_a_second(&mut self) {
        self.now += SignedDuration::from_secs(1);
        for replica in 0..REPLICAS {
            let age = self.replicas[replica].read_at.duration_until(self.now);
            if age.as_secs() >= DISTRIBUTION {
                self.read(replica);
            }
        }
    }

    fn read(&mut self, replica: usize) {
        let replica = &mut self.replicas[replica];
        if replica.version != self.version {
            replica.trust = Trust::from_data(&self.stored).unwrap().unwrap();
            replica.version = self.version;
        }
        replica.read_at = self.now;
    }

    /// A replica that has not read the newest state has a conflict, and reads it.
    fn write(&mut self, replica: usize, trust: &Trust) {
        if self.replicas[replica].version == self.version {
            self.stored = trust.to_data();
            self.newest = trust.clone();
            self.version += 1;
        }
        self.read(replica);
    }

    /// A certificate that a replica signs, unless its authority has expired.
    fn issue(&mut self, replica: usize) -> Option<Certificate> {
        let Replica { policy, trust, .. } = &self.replicas[replica];
        let profile = Profile {
            common_name: "test".to_owned(),
            names: Vec::new(),
            usage: Usage::Both,
            lifetime: policy.certificate_lifetime(),
        };
        let issued = trust.issue(&self.key, &profile, self.now).ok()?;
        let signer = trust.signing().facts().fingerprint.clone();
        let expires = issued.facts.not_after;
        let last = self.last.entry(signer.clone()).or_insert(expires);
        *last = expires.max(*last);
        Some(Certificate { signer, expires })
    }

    fn connect(&mut self, agent: usize, replica: usize, renew: bool) {
        let trust = &self.replicas[replica].trust;
        let (Some(client), Some(server)) = (
            valid(&self.agents[agent].certificate, self.now),
            valid(&self.replicas[replica].server, self.now),
        ) else {
            return;
        };
        if !trusted(trust).contains(&client.signer)
            || !self.agents[agent].trusts.contains(&server.signer)
        {
            return;
        }
        self.agents[agent].trusts = trusted(trust);
        if renew && let Some(certificate) = self.issue(replica) {
            self.agents[agent].certificate = Some(certificate);
        }
    }

    /// What the registry of the hub contains.
    fn peers(&self) -> Vec<Peer> {
        let peer = |(index, agent): (usize, &Agent)| {
            let certificate = agent.certificate.as_ref()?;
            Some(Peer {
                name: format!("agent-{index}"),
                certificate_expires_at: certificate.expires,
                trusts: agent.trusts.clone(),
            })
        };
        self.agents.iter().enumerate().filter_map(peer).collect()
    }

    fn check(&self) -> TestCaseResult {
        let newest = trusted(&self.newest);
        for (signer, expires) in &self.last {
            let is_trusted = self.now > *expires || newest.contains(signer);
            prop_assert!(
                is_trusted,
                "an authority was dropped before its last certificate expired"
            );
        }
        for agent in &self.agents {
            let Some(client) = valid(&agent.certificate, self.now) else {
                continue;
            };
            prop_assert!(
                newest.contains(&client.signer),
                "a certificate in use was dropped"
            );
            // Without an own overlap, not even agents that are away may be forgotten.
            let must_verify = self.overlap.is_none() || agent.trusts == newest;
            for replica in &self.replicas {
                prop_assert!(
                    trusted(&replica.trust).contains(&client.signer),
                    "a replica refuses an agent"
                );
                if let Some(server) = valid(&replica.server, self.now) {
                    prop_assert!(
                        !must_verify || agent.trusts.contains(&server.signer),
                        "an agent refuses a replica"
                    );
                }
            }
        }
        let peers = self.peers();
        for replica in &self.replicas {
            if replica.version == self.version {
                prop_assert_eq!(&replica.trust, &self.newest);
                let decide = |trust: &Trust| trust.decide(&replica.policy, &peers, self.now);
                prop_assert_eq!(decide(&replica.trust), decide(&self.newest));
            }
        }
        Ok(())
    }
}

fn policy(certificate: i64, overlap: Option<i64>) -> Policy {
    let seconds = SignedDuration::from_secs;
    let durations = Durations {
        authority: seconds(600),
        certificate: seconds(certificate),
        overlap: overlap.map(seconds),
        distribution: seconds(DISTRIBUTION),
    };
    Policy::new("test", durations).unwrap()
}

fn trusted(trust: &Trust) -> BTreeSet<String> {
    let bundle = trust.bundle();
    bundle
        .iter()
        .map(|trusted| trusted.facts.fingerprint.clone())
        .collect()
}

fn valid(certificate: &Option<Certificate>, now: Timestamp) -> Option<&Certificate> {
    certificate.as_ref().filter(|found| now <= found.expires)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn certificates_in_use_can_be_verified(
        overlap in prop_oneof![Just(None), Just(Some(20))],
        events in prop::collection::vec(event(), 1..160),
    ) {
        let mut setup = Setup::new(overlap);
        for event in events {
            setup.happen(event);
            setup.check()?;
        }
    }
}
