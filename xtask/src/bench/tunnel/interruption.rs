//! A network that is away for 20 s.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::site::{Carrier, Site};
use super::{Extent, Row};

const OUTAGE: Duration = Duration::from_secs(20);

pub(super) fn rows(site: &mut Site, _: &Extent) -> Result<Vec<Row>> {
    let mut recovered = [0.0; 2];
    for (carrier, recovered) in Carrier::TUNNELS.into_iter().zip(&mut recovered) {
        let request = json!({"do": "first_good", "address": carrier.address(), "seconds": 60});
        site.seconds(&request)?;
        site.cut()?;
        sleep(OUTAGE);
        site.set_round_trip(0)?;
        let first = site.seconds(&request)?;
        *recovered = first.first().copied().unwrap_or(f64::INFINITY);
    }
    let [ours, theirs] = recovered;
    let name = "first good request after an outage of 20 s";
    Ok(vec![
        Row::new(name, ours, "s").baseline(theirs).at_most(3.0),
    ])
}
