//! The cost of an event for the data path.

use std::process::Command;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::super::session::median;
use super::super::session::programs::Programs;
use super::{Extent, Row};
use crate::process;

/// Enough for a stable median.
const TURNS: usize = 25;
const ROUNDS: usize = 2000;

/// Microseconds of CPU for an event, by turn: all three were measured in turn.
#[derive(Debug, Deserialize)]
struct Costs {
    off: Vec<f64>,
    unsubscribed: Vec<f64>,
    subscribed: Vec<f64>,
}

pub(super) fn rows(programs: &mut Programs, extent: &Extent) -> Result<Vec<Row>> {
    let turns = extent.rounds(TURNS).to_string();
    let rounds = ROUNDS.to_string();
    let output = process::output(
        Command::new(&programs.workload).args(["monitor", "--turns", &turns, "--rounds", &rounds]),
    )?;
    let costs: Costs =
        serde_json::from_str(&output).context("the workload printed something else")?;
    let mut rows = cost("no subscriber", &costs.unsubscribed, &costs.off, 1.0);
    rows.extend(cost("one subscriber", &costs.subscribed, &costs.off, 8.0));
    Ok(rows)
}

/// Medians with and without, and how far the differences of the pairs are spread.
fn cost(name: &str, with: &[f64], without: &[f64], limit: f64) -> Vec<Row> {
    let pairs = with.iter().zip(without);
    let mut added: Vec<f64> = pairs.map(|(with, without)| with - without).collect();
    added.sort_by(f64::total_cmp);
    let at = |part: usize| {
        added
            .get(added.len() * part / 10)
            .copied()
            .unwrap_or(f64::NAN)
    };
    vec![
        Row::new(
            format!("CPU of an event, {name}"),
            median(added.clone()),
            "µs",
        )
        .at_most(limit),
        Row::new(
            format!("the same, 80 % of {} pairs are within", added.len()),
            at(9) - at(1),
            "µs",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_compared_with_one_another() {
        // A slow moment of both values of a pair is no cost.
        let without: Vec<f64> = (0..10).map(|turn| f64::from(turn) * 100.0).collect();
        let with: Vec<f64> = without.iter().map(|cost| cost + 0.5).collect();
        let rows = cost("x", &with, &without, 1.0);
        let shown = super::super::super::row::render(&rows);
        assert!(
            shown.contains("0.500 µs") && shown.contains("yes"),
            "{shown}"
        );
    }
}
