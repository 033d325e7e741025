//! Local operations.

use anyhow::Result;
use serde_json::json;

use super::site::{Site, Transport};
use super::{Extent, Row, median, micro};

const OPENS: usize = 1000;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let (mut bare, mut inside) = (site.bare_worker()?, site.session_worker(Transport::Tcp)?);
    let mut rows = Vec::new();
    for (name, description, added) in [
        ("absolute", "an absolute path", 15.0),
        ("relative", "a relative path", 25.0),
        ("link", "a symbolic link", 25.0),
    ] {
        let request = json!({"do": "open_local", "folder": site.local_folder(), "count": OPENS});
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..extent.rounds(5) {
            without.extend(bare.measure(&request, name)?);
            with.extend(inside.measure(&request, name)?);
        }
        let without = micro(median(without));
        rows.push(
            Row::new(
                format!("open of {description}, local"),
                micro(median(with)),
                "µs",
            )
            .baseline(without)
            .at_most_more_than_baseline(added),
        );
    }
    let request = json!({"do": "messages", "milliseconds": 500});
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..extent.rounds(5) {
        without.extend(bare.measure(&request, "per_second")?);
        with.extend(inside.measure(&request, "per_second")?);
    }
    rows.push(
        Row::new("sendmsg of 1 KiB on a local stream", median(with), "/s")
            .baseline(median(without))
            .ratio_at_least(0.7),
    );
    Ok(rows)
}
