//! One measurement: a line of the table and an object of the JSON file.

use anyhow::Result;
use serde::Serialize;

use crate::table;

/// A measured value, and what it is compared with.
///
/// The names and the order of the fields are the JSON file's, which other programs read.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    measure: String,
    value: f64,
    unit: &'static str,
    /// The value of the baseline, measured in the same run.
    baseline: Option<f64>,
    /// `value` divided by `baseline`.
    ratio: Option<f64>,
    /// The text of the goal, as in the table.
    goal: Option<String>,
    met: Option<bool>,
}

/// A row is built as it is read: `Row::new("start", 1.2, "s").baseline(1.0).ratio_at_most(1.5)`. A goal for the ratio
/// comes after the baseline.
#[allow(
    dead_code,
    reason = "the methods for goals belong together, even if no bench uses one of them"
)]
impl Row {
    pub(crate) fn new(measure: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            measure: measure.into(),
            value,
            unit,
            baseline: None,
            ratio: None,
            goal: None,
            met: None,
        }
    }

    pub(crate) fn baseline(mut self, baseline: f64) -> Self {
        self.baseline = Some(baseline);
        self.ratio = Some(self.value / baseline).filter(|ratio| ratio.is_finite());
        self
    }

    pub(crate) fn at_most(self, limit: f64) -> Self {
        let met = self.value <= limit;
        let goal = self.with_unit(format!("<= {limit}"));
        self.goal(goal, met)
    }

    pub(crate) fn at_least(self, limit: f64) -> Self {
        let met = self.value >= limit;
        let goal = self.with_unit(format!(">= {limit}"));
        self.goal(goal, met)
    }

    pub(crate) fn at_most_more_than_baseline(self, added: f64) -> Self {
        let met = self
            .baseline
            .is_some_and(|baseline| self.value <= baseline + added);
        let goal = self.with_unit(format!("baseline + {added}"));
        self.goal(goal, met)
    }

    pub(crate) fn near(self, target: f64, tolerance: f64) -> Self {
        let met = (self.value - target).abs() <= tolerance;
        let goal = self.with_unit(format!("{target} +- {tolerance}"));
        self.goal(goal, met)
    }

    pub(crate) fn ratio_at_most(self, limit: f64) -> Self {
        let met = self.ratio.is_some_and(|ratio| ratio <= limit);
        self.goal(format!("ratio <= {limit}"), met)
    }

    pub(crate) fn ratio_at_least(self, limit: f64) -> Self {
        let met = self.ratio.is_some_and(|ratio| ratio >= limit);
        self.goal(format!("ratio >= {limit}"), met)
    }

    pub(crate) fn is_missed(&self) -> bool {
        self.met == Some(false)
    }

    fn goal(mut self, goal: String, met: bool) -> Self {
        self.goal = Some(goal);
        self.met = Some(met);
        self
    }

    fn with_unit(&self, number: String) -> String {
        if self.unit.is_empty() {
            number
        } else {
            format!("{number} {}", self.unit)
        }
    }
}

/// The human-readable table.
pub(crate) fn render(rows: &[Row]) -> String {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let amount = |number| row.with_unit(readable(number));
            let met = match row.met {
                Some(true) => "yes",
                Some(false) => "NO",
                None => "",
            };
            vec![
                row.measure.clone(),
                amount(row.value),
                row.baseline.map(amount).unwrap_or_default(),
                row.ratio.map(readable).unwrap_or_default(),
                row.goal.clone().unwrap_or_default(),
                met.to_owned(),
            ]
        })
        .collect();
    table::render(
        &["measure", "value", "baseline", "ratio", "goal", "met"],
        &["value", "baseline", "ratio"],
        &cells,
    )
}

/// The machine-readable form: an array with one object per row.
pub(crate) fn json(rows: &[Row]) -> Result<String> {
    Ok(serde_json::to_string_pretty(rows)? + "\n")
}

/// About three significant digits.
fn readable(number: f64) -> String {
    let decimals = match number.abs() {
        size if size == 0.0 || size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        vec![
            Row::new(
                "two clusters, nothing running to names resolve",
                14.237,
                "s",
            )
            .at_most(30.0),
            Row::new("throughput", 850.0, "Mbit/s")
                .baseline(1_700.0)
                .at_least(1_000.0),
            Row::new("round trip", 40.31, "ms")
                .baseline(40.0)
                .near(40.0, 1.0),
            Row::new("open", 0.0312, "ms")
                .baseline(0.02)
                .ratio_at_most(1.5),
            Row::new("left over", 0.0, "").at_most(0.0),
            Row::new("stat", 231.0, "µs")
                .baseline(120.0)
                .at_most_more_than_baseline(100.0),
            Row::new("memory", 512.0, "MiB"),
        ]
    }

    #[test]
    fn the_table_for_people() {
        assert_eq!(
            render(&rows()),
            "\
measure                                              value     baseline  ratio  goal               met
two clusters, nothing running to names resolve      14.2 s                      <= 30 s            yes
throughput                                      850 Mbit/s  1700 Mbit/s  0.500  >= 1000 Mbit/s     NO
round trip                                         40.3 ms      40.0 ms   1.01  40 +- 1 ms         yes
open                                              0.031 ms     0.020 ms   1.56  ratio <= 1.5       NO
left over                                                0                      <= 0               yes
stat                                                231 µs       120 µs   1.93  baseline + 100 µs  NO
memory                                             512 MiB
"
        );
    }

    #[test]
    fn the_json_for_programs() {
        assert_eq!(
            json(&rows()[1..2]).unwrap(),
            r#"[
  {
    "measure": "throughput",
    "value": 850.0,
    "unit": "Mbit/s",
    "baseline": 1700.0,
    "ratio": 0.5,
    "goal": ">= 1000 Mbit/s",
    "met": false
  }
]
"#
        );
        let memory: serde_json::Value = serde_json::from_str(&json(&rows()[6..]).unwrap()).unwrap();
        for key in ["baseline", "ratio", "goal", "met"] {
            assert!(
                memory[0].get(key).is_some_and(serde_json::Value::is_null),
                "{key}"
            );
        }
    }

    #[test]
    fn a_baseline_of_zero_has_no_ratio_and_meets_no_goal_for_it() {
        let row = Row::new("lost", 1.0, "").baseline(0.0).ratio_at_least(0.5);
        assert_eq!((row.ratio, row.met), (None, Some(false)));
    }
}
