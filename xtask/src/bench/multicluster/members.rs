//! Many members: whether a session waits for them in parallel or in sequence.
//!
//! A machine can run few clusters, so each of the two real members has many names. To the Primary each name is a member
//! with its own credential, watch, child session and connection. The members share the CPU of this machine, so the rows
//! that have a goal are about slow links.

use anyhow::Result;

use super::ready::time_session;
use super::site::{MEMBERS, SessionScope, Site};
use crate::bench::session::median;
use crate::bench::{Extent, Row};

const MANY: usize = 32;
const ROUNDS: usize = 9;
const ROUNDS_QUICK: usize = 3;
/// The round trip of the slow links, in milliseconds.
const SLOW_ROUND_TRIP: u64 = 80;
/// If the members were waited for in sequence, the ratio would be that of their numbers.
const MAX_ADDED_RATIO: f64 = 1.5;
const MAX_RATIO: f64 = 2.0;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    eprintln!(
        "{MANY} members are simulated: each of {} real clusters is a member under {} names",
        MEMBERS.len(),
        MANY / MEMBERS.len()
    );
    let rounds = if extent.quick { ROUNDS_QUICK } else { ROUNDS };
    let few = Ready::measure(site, MEMBERS.len(), rounds)?;
    site.set_round_trip(0)?;
    site.configure("upgrade", &named(MANY))?;
    let many = Ready::measure(site, MANY, rounds);
    // Restores the members for the next group.
    site.set_round_trip(0)?;
    site.configure("upgrade", &named(MEMBERS.len()))?;
    let many = many?;
    Ok(vec![
        row("session Ready, 32 members, 0 ms", many.near, few.near),
        row("session Ready, 32 members, 80 ms", many.far, few.far).ratio_at_most(MAX_RATIO),
        row(
            "session Ready, 32 members, what links of 80 ms add",
            many.far - many.near,
            few.far - few.near,
        )
        .ratio_at_most(MAX_ADDED_RATIO),
    ])
}

fn row(name: &str, seconds: f64, baseline: f64) -> Row {
    Row::new(format!("{name} (baseline: 2 members)"), seconds * 1e3, "ms").baseline(baseline * 1e3)
}

/// Seconds until a session has links with the agents of all clusters.
struct Ready {
    near: f64,
    far: f64,
}

impl Ready {
    fn measure(site: &Site, members: usize, rounds: usize) -> Result<Self> {
        // The Primary has targets as well.
        let mut clients = site.clients(SessionScope::All, members + 1)?;
        let mut ready = |link: u64| -> Result<f64> {
            site.set_round_trip(link)?;
            time_session(&mut clients)?;
            let mut seconds = Vec::new();
            for _ in 0..rounds {
                // Sessions that are still being removed would disturb the measurement.
                site.wait_for_no_session()?;
                seconds.push(time_session(&mut clients)?);
            }
            Ok(median(seconds))
        };
        Ok(Self {
            near: ready(0)?,
            far: ready(SLOW_ROUND_TRIP)?,
        })
    }
}

/// `count` names for the real members; the first are their own names.
fn named(count: usize) -> Vec<(String, &'static str)> {
    let members = MEMBERS.iter().cycle().take(count).enumerate();
    let named = members.map(|(number, member)| match number / MEMBERS.len() {
        0 => ((*member).to_owned(), *member),
        again => (format!("{member}-{again}"), *member),
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_has_a_name_of_its_own() {
        let few: Vec<String> = named(2).into_iter().map(|(name, _)| name).collect();
        assert_eq!(few, MEMBERS);
        let many = named(MANY);
        let names: std::collections::BTreeSet<_> = many.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), MANY);
        for member in MEMBERS {
            let same = many.iter().filter(|(_, cluster)| *cluster == member);
            assert_eq!(same.count(), MANY / MEMBERS.len());
        }
    }
}
