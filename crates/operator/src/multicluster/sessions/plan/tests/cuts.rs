//! The network between the Primary and a member is cut. Both go on by their own clocks, which differ: here each second is
//! looked at by the Primary's plan and by the member's.

use super::*;
use crate::controller::closing;

/// How long the client may be away.
const WINDOW: u64 = 60;
/// When the cut begins. The session is long ready then.
const CUT: i64 = 30;
/// How long it takes until a cut is noticed.
const UNNOTICED: i64 = 25;
/// Long after the longest cut.
const END: i64 = 300;

const SETTINGS: SessionSettings = SessionSettings {
    time_to_live: Duration::from_secs(WINDOW),
    most_resume: Duration::from_secs(900),
};

/// A Primary whose client stays, east, which is always there, and west.
struct World {
    parent: MirrordMultiClusterSession,
    /// In west, with the times of west.
    child: Option<MirrordClusterSession>,
    made: u32,
    /// How far the clock of west is ahead.
    skew: i64,
    cut: std::ops::Range<i64>,
    is_over: bool,
    was_away: bool,
}

impl World {
    fn new(on_unreachable: OnUnreachable, cut: i64, skew: i64) -> Self {
        let mut parent = parent();
        parent.spec.on_unreachable = on_unreachable;
        parent.spec.resume_window_secs = WINDOW;
        World {
            parent,
            child: None,
            made: 0,
            skew,
            cut: CUT..CUT + cut,
            is_over: false,
            was_away: false,
        }
    }

    fn in_west(&self, now: i64) -> Timestamp {
        at(now + self.skew)
    }

    fn run(mut self) -> Self {
        for now in 0..END {
            self.member(now);
            self.primary(now);
            if self.is_over {
                break;
            }
        }
        self
    }

    /// The member has its client as long as the Primary reaches it, and ends its part by its own rules.
    fn member(&mut self, now: i64) {
        let time = self.in_west(now);
        let is_cut = self.cut.contains(&now);
        let Some(child) = &mut self.child else {
            return;
        };
        let status = child.status.get_or_insert_default();
        status.phase = Some(SessionPhase::Ready);
        if !is_cut {
            status.last_seen_timestamp = Some(time.to_string());
        }
        if closing(child, &SETTINGS, time).is_some() {
            self.child = None;
        }
    }

    fn primary(&mut self, now: i64) {
        let west = match &self.child {
            _ if self.cut.contains(&now) && now >= self.cut.start + UNNOTICED => cut(),
            Some(child) => Observed::There(Box::new(child.clone())),
            None => Observed::Missing,
        };
        let observed = BTreeMap::from([("east".to_owned(), ready()), ("west".to_owned(), west)]);
        let plan = plan(&self.parent, &observed, &SETTINGS, at(now));
        self.is_over = plan.delete;
        if plan.create.contains(&"west".to_owned()) && !self.cut.contains(&now) {
            self.make(now);
        }
        self.parent = after(self.parent.clone(), plan);
        let status = self.parent.status.as_mut().unwrap();
        status.connected_timestamp = Some(at(now).to_string());
        if now > CUT && !self.is_over {
            assert_eq!(status.phase, Some(MultiClusterPhase::Ready), "second {now}");
            assert!(status.cluster_sessions["east"].ready, "second {now}");
            self.was_away |= !status.cluster_sessions["west"].ready;
        }
    }

    fn make(&mut self, now: i64) {
        self.made += 1;
        let child = changed(child(None), |child| {
            child.spec.resume_window_secs = WINDOW;
            child.metadata.creation_timestamp = Some(Time(self.in_west(now)));
            child.status = None;
        });
        let Observed::There(child) = child else {
            panic!("there is no child");
        };
        self.child = Some(*child);
    }
}

/// Within the window, west has the same agents before and after. Later it has ended its part, and joins again with others,
/// where sessions go on without it. However long it is, and whatever the clocks say, the others are not held up.
#[test]
fn a_member_that_is_cut_off_resumes_within_the_window_and_joins_again_after_it() {
    use OnUnreachable::{Continue, Fail};
    // How long the cut is; whether anybody notices; how often west got a child; whether the session ends.
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
        for (on_unreachable, seconds, was_away, made, is_over) in cases {
            let world = World::new(on_unreachable, seconds, skew).run();
            let case = format!("{on_unreachable:?}, {seconds} s, clocks {skew} s apart");
            assert_eq!(world.was_away, was_away || is_over, "{case}");
            assert_eq!(world.made, made, "{case}");
            assert_eq!(world.is_over, is_over, "{case}");
            if is_over {
                continue;
            }
            let west = &world.parent.status.as_ref().unwrap().cluster_sessions["west"];
            assert!(west.ready && west.error.is_none(), "{case}: {west:?}");
            assert_eq!(west.generation, made - 1, "{case}");
        }
    }
}
