//! The dashboard and the documentation use the names of metrics, so they are compared with the metrics.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Metrics, RequestLabels, TaskLabels};

const DASHBOARD: &str = include_str!("../../../../charts/standin-operator/files/dashboard.json");
const PAGE: &str = include_str!("../../../../docs/observability.md");
const PREFIX: &str = "standin_operator_";

/// The names of all metric families, with their types, as Prometheus sees them.
fn families() -> BTreeMap<String, String> {
    let metrics = Metrics::new();
    // A family with dynamic labels is empty until it is counted.
    let labels = RequestLabels {
        resource: "targets",
        code: 200,
    };
    metrics.requests.get_or_create(&labels).inc();
    let labels = TaskLabels { task: "trust" };
    metrics.failed_tasks.get_or_create(&labels).inc();
    let _admission = metrics.admission("api", super::LIMITS);
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

/// Every word of a text that is the name of an operator metric.
fn names_in(text: &str) -> BTreeSet<String> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| word.starts_with(PREFIX))
        .map(str::to_owned)
        .collect()
}

/// The Prometheus queries of the dashboard's panels.
fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn the_dashboard_queries_only_existing_metrics() {
    let existing = series();
    assert!(!queries().is_empty());
    for query in queries() {
        let queried = names_in(&query);
        assert!(!queried.is_empty(), "no operator metric: {query}");
        let unknown: Vec<_> = queried.difference(&existing).collect();
        assert!(unknown.is_empty(), "{unknown:?} in {query}");
    }
}

#[test]
fn every_panel_has_its_own_position() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    let positions: BTreeSet<_> = panels
        .iter()
        .map(|panel| panel["gridPos"].to_string())
        .collect();
    assert_eq!((ids.len(), positions.len()), (panels.len(), panels.len()));
}

#[test]
fn the_documentation_lists_exactly_the_existing_metrics() {
    let rows = PAGE
        .lines()
        .filter(|line| line.starts_with(&format!("| `{PREFIX}")));
    let documented: BTreeSet<String> = rows
        .filter_map(|row| names_in(row).into_iter().next())
        .collect();
    assert_eq!(documented, documented_names());
    let mut existing = series();
    existing.extend(documented);
    let unknown: Vec<_> = names_in(PAGE).difference(&existing).cloned().collect();
    assert!(unknown.is_empty(), "unknown metrics: {unknown:?}");
}

/// One name for each family. The name of a histogram is not the name of a series.
fn documented_names() -> BTreeSet<String> {
    let name_of = |(name, kind): (String, String)| match kind.as_str() {
        "counter" => format!("{name}_total"),
        _ => name,
    };
    families().into_iter().map(name_of).collect()
}
