//! Simulates a network outage between the Primary and a member. Both continue with their own clocks, which differ. In each
//! second of the simulation, the plans of the Primary and of the member run.

use super::*;
use crate::controller::plan_close;

/// The resume window.
const WINDOW: u64 = 60;
/// When the outage begins. The session is ready long before.
const OUTAGE_START: i64 = 30;
/// How long it takes until an outage is detected.
const DETECTION_DELAY: i64 = 25;
/// Long after the longest outage.
const END: i64 = 300;

/// A Primary with a connected client, the cluster east, which is always reachable, and the cluster west.
struct Simulation {
    parent: MirrordMultiClusterSession,
    /// The child in west, with timestamps of west.
    child: Option<MirrordClusterSession>,
    /// How many children were created in west.
    created: u32,
    /// How far the clock of west is ahead.
    skew: i64,
    outage: std::ops::Range<i64>,
    has_ended: bool,
    /// Whether west was ever reported as not ready.
    was_unready: bool,
}

impl Simulation {
    fn new(on_unreachable: OnUnreachable, duration: i64, skew: i64) -> Self {
        let mut parent = parent();
        parent.spec.on_unreachable = on_unreachable;
        parent.spec.resume_window_secs = WINDOW;
        Simulation {
            parent,
            child: None,
            created: 0,
            skew,
            outage: OUTAGE_START..OUTAGE_START + duration,
            has_ended: false,
            was_unready: false,
        }
    }

    fn west_time(&self, now: i64) -> Timestamp {
        at(now + self.skew)
    }

    fn run(mut self) -> Self {
        for now in 0..END {
            self.member(now);
            self.primary(now);
            if self.has_ended {
                break;
            }
        }
        self
    }

    /// The member gets heartbeats as long as the Primary reaches it, and ends its child by its own rules.
    fn member(&mut self, now: i64) {
        let time = self.west_time(now);
        let is_out = self.outage.contains(&now);
        let Some(child) = &mut self.child else {
            return;
        };
        let status = child.status.get_or_insert_default();
        status.phase = Some(SessionPhase::Ready);
        if !is_out {
            status.last_seen_timestamp = Some(time.to_string());
        }
        if plan_close(child, &settings().session, time).is_some() {
            self.child = None;
        }
    }

    fn primary(&mut self, now: i64) {
        let west = match &self.child {
            _ if self.outage.contains(&now) && now >= self.outage.start + DETECTION_DELAY => {
                unreachable()
            }
            Some(child) => Observed::Present(Box::new(child.clone())),
            None => Observed::Missing,
        };
        let observed = BTreeMap::from([("east".to_owned(), ready()), ("west".to_owned(), west)]);
        let plan = plan(&self.parent, &observed, &settings(), at(now));
        self.has_ended = plan.delete;
        if plan.create.contains(&"west".to_owned()) && !self.outage.contains(&now) {
            self.create_child(now);
        }
        self.parent = after(self.parent.clone(), plan);
        let status = self.parent.status.as_mut().unwrap();
        status.connected_timestamp = Some(at(now).to_string());
        if now > OUTAGE_START && !self.has_ended {
            assert_eq!(status.phase, Some(MultiClusterPhase::Ready), "second {now}");
            assert!(status.cluster_sessions["east"].ready, "second {now}");
            self.was_unready |= !status.cluster_sessions["west"].ready;
        }
    }

    fn create_child(&mut self, now: i64) {
        self.created += 1;
        let child = changed(child(None), |child| {
            child.spec.resume_window_secs = WINDOW;
            child.metadata.creation_timestamp = Some(Time(self.west_time(now)));
            child.status = None;
        });
        let Observed::Present(child) = child else {
            panic!("there is no child");
        };
        self.child = Some(*child);
    }
}

/// After an outage within the resume window, west has the same agents. After a longer one, its child has ended, and it joins
/// again with a new child, if the session tolerates that. Other clusters are never affected, whatever the clocks show.
#[test]
fn a_member_resumes_within_the_window_and_rejoins_after_it() {
    use OnUnreachable::{Continue, Fail};
    // The duration of the outage; whether it is detected; how many children were created in west; whether the session ends.
    let cases = [
        (Continue, 5, false, 1, false),
        (Continue, 45, true, 1, false),
        (Continue, 60, true, 1, false),
        (Continue, 75, true, 2, false),
        (Continue, 200, true, 2, false),
        (Fail, 5, false, 1, false),
        (Fail, 45, true, 1, false),
        (Fail, 75, true, 1, true),
    ];
    for skew in [0, 300, -300] {
        for (on_unreachable, seconds, was_unready, created, has_ended) in cases {
            let simulation = Simulation::new(on_unreachable, seconds, skew).run();
            let case = format!("{on_unreachable:?}, {seconds} s, clocks {skew} s apart");
            assert_eq!(simulation.was_unready, was_unready || has_ended, "{case}");
            assert_eq!(simulation.created, created, "{case}");
            assert_eq!(simulation.has_ended, has_ended, "{case}");
            if has_ended {
                continue;
            }
            let west = &simulation.parent.status.as_ref().unwrap().cluster_sessions["west"];
            assert!(west.ready && west.error.is_none(), "{case}: {west:?}");
            assert_eq!(west.generation, created - 1, "{case}");
        }
    }
}
