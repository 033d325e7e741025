//! What others build on the numbers' names: a dashboard, and a page that explains them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Metrics, RequestLabels, TaskLabels};

const DASHBOARD: &str = include_str!("../../../../charts/standin-operator/files/dashboard.json");
const PAGE: &str = include_str!("../../../../docs/observability.md");
const PREFIX: &str = "standin_operator_";

/// The names of all families, with their kinds, as Prometheus sees them.
fn families() -> BTreeMap<String, String> {
    let metrics = Metrics::new();
    // Which answers there will be is not known before there is one.
    let labels = RequestLabels {
        resource: "targets",
        code: 200,
    };
    metrics.requests.get_or_create(&labels).inc();
    let labels = TaskLabels { task: "trust" };
    metrics.failed_tasks.get_or_create(&labels).inc();
    let text = metrics.text();
    text.lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split_once(' '))
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect()
}

/// The names of all time series that the families have.
fn series() -> BTreeSet<String> {
    families()
        .iter()
        .flat_map(|(name, kind)| {
            let endings: &[&str] = match kind.as_str() {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_count", "_sum"],
                _ => &[""],
            };
            endings.iter().map(move |ending| format!("{name}{ending}"))
        })
        .collect()
}

/// Every word of a text that is the name of one of our numbers.
fn names_in(text: &str) -> BTreeSet<String> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| word.starts_with(PREFIX))
        .map(str::to_owned)
        .collect()
}

/// What the panels of the dashboard ask Prometheus.
fn questions() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn the_dashboard_asks_only_for_what_there_is() {
    let known = series();
    assert!(!questions().is_empty());
    for question in questions() {
        let asked = names_in(&question);
        assert!(!asked.is_empty(), "no number of ours: {question}");
        let unknown: Vec<_> = asked.difference(&known).collect();
        assert!(unknown.is_empty(), "{unknown:?} in {question}");
    }
}

#[test]
fn every_panel_has_a_place_of_its_own() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    let places: BTreeSet<_> = panels
        .iter()
        .map(|panel| panel["gridPos"].to_string())
        .collect();
    assert_eq!((ids.len(), places.len()), (panels.len(), panels.len()));
}

#[test]
fn the_page_explains_every_number_and_no_others() {
    let rows = PAGE
        .lines()
        .filter(|line| line.starts_with(&format!("| `{PREFIX}")));
    let explained: BTreeSet<String> = rows
        .filter_map(|row| names_in(row).into_iter().next())
        .collect();
    assert_eq!(explained, names_for_people());
    let mut known = series();
    known.extend(explained);
    let unknown: Vec<_> = names_in(PAGE).difference(&known).cloned().collect();
    assert!(unknown.is_empty(), "not there: {unknown:?}");
}

/// One name for each family: a histogram's is not that of any series.
fn names_for_people() -> BTreeSet<String> {
    let name_of = |(name, kind): (String, String)| match kind.as_str() {
        "counter" => format!("{name}_total"),
        _ => name,
    };
    families().into_iter().map(name_of).collect()
}
