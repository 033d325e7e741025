//! Stolen requests, which the developer's server serves instead of the pod.

use anyhow::Result;

use super::forward::Forward;
use super::raw_relay::{self, RawRelay};
use super::site::{AccessPath, DIRECT, Site, TARGET};
use crate::bench::load::{Load, requests, times};
use crate::bench::server::Mode;
use crate::bench::{Extent, Row};

/// The modes of a session, and their descriptions.
const MODES: [(Mode, &str); 2] = [(Mode::Steal, "by header"), (Mode::StealAll, "all of it")];

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (mode, how) in MODES {
        let _session = site.session(mode, AccessPath::OwnRights)?;
        let routes = [site.direct(), site.stolen()];
        for connections in [16, 64] {
            let load = Load::full(connections, extent);
            let [direct, stolen] = load.compare(site, extent, &routes)?;
            let name = format!("stolen {how}, {connections} connections (baseline: the pod)");
            rows.push(requests(name, &stolen, &direct).ratio_at_least(0.25));
        }
        let [direct, stolen] = Load::full(1, extent).compare(site, extent, &routes)?;
        let name = format!("stolen {how}, one connection (baseline: the pod)");
        let [p50, p99] = times(&name, &stolen, &direct);
        rows.push(p50.ratio_at_most(6.0));
        rows.push(p99.ratio_at_most(3.0));
    }
    rows.extend(forwarded(site, extent)?);
    Ok(rows)
}

/// `kubectl port-forward` as a comparison: it goes through API server, kubelet and container runtime. Sessions bypass the
/// last two where the API server reaches pods.
fn forwarded(site: &mut Site, extent: &Extent) -> Result<[Row; 2]> {
    let load = Load::full(1, extent);
    let mut forward = Forward::start(site, TARGET, DIRECT)?;
    let route = forward.route();
    let [port_forward] = load.compare(&mut forward, extent, &[route])?;
    let route = site.direct();
    let [direct] = load.compare(site, extent, &[route])?;
    let name = "not stolen, `kubectl port-forward`, one connection (baseline: the pod)";
    Ok(times(name, &port_forward, &direct))
}

/// Through an operator, compared with plain relays on the same path.
pub(super) fn rows_with_operator(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    site.operator()?;
    let relay = RawRelay::start(site)?;
    eprintln!("{}", raw_relay::DESCRIPTION);
    let mut rows = Vec::new();
    for (mode, how) in MODES {
        let _session = site.session(mode, AccessPath::Operator)?;
        let routes = [relay.route(), site.stolen()];
        for connections in [16, 64] {
            let load = Load::full(connections, extent);
            let [raw, stolen] = load.compare(site, extent, &routes)?;
            let name = format!(
                "stolen {how}, operator, {connections} connections (baseline: plain relays, one WebSocket)"
            );
            rows.push(requests(name, &stolen, &raw).ratio_at_least(0.6));
        }
        let [raw, stolen] = Load::full(1, extent).compare(site, extent, &routes)?;
        let name = format!("stolen {how}, operator, one connection (baseline: the same)");
        rows.extend(times(&name, &stolen, &raw));
    }
    relay.end(site)?;
    Ok(rows)
}
