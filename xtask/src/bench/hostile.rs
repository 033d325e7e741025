//! What hostile peers cost others: clients, other pods and member clusters that try to use up what they share.
//!
//! Each group has its own site. Baselines are measured in the same run, without the hostile peer.

mod listeners;
mod member;
mod memory;

use std::fs::File;

use anyhow::Result;
use lab::Paths;
use serde_json::Value;

pub(crate) use self::listeners::soak;
use super::groups::{self, Group};
use super::kubernetes::operator::NAMESPACE as OPERATOR_NAMESPACE;
use super::kubernetes::site::Site;
use super::session::programs::{Programs, log_path};
use super::{Extent, Row, images};

const GROUPS: &[Group<Programs>] = &[
    ("listeners", |programs, extent| {
        listeners::rows(programs, extent)
    }),
    ("member", |programs, extent| member::rows(programs, extent)),
    ("memory", |programs, extent| memory::rows(programs, extent)),
];

pub(crate) fn prepare() -> Result<()> {
    crate::lab::prepare(&Paths::from_environment(), 1, 1)?;
    images::build_programs()
}

pub(super) fn measure(extent: &Extent) -> Result<Vec<Row>> {
    // Discards the log of the previous run.
    File::create(log_path()?)?;
    groups::measure(GROUPS, extent, || Programs::find(extent), |_| Ok(()))
}

/// How often the operator's pods have restarted, and the probes that failed.
fn health(site: &Site) -> Result<Vec<String>> {
    let pods = list(site, "pods", OPERATOR_NAMESPACE)?;
    let events = list(site, "events", OPERATOR_NAMESPACE)?;
    Ok(lab::hostile::health(&pods, &events))
}

fn list(site: &Site, kind: &str, namespace: &str) -> Result<Value> {
    let list = site.kubectl(&["get", kind, "--namespace", namespace, "--output=json"])?;
    Ok(serde_json::from_str(&list)?)
}
