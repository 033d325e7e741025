//! Operations on the target's files.

use anyhow::Result;
use serde_json::json;

use super::programs::Worker;
use super::site::{LARGE_FILE, SMALL_FILES, Server, Site, Transport};
use super::{Extent, LINKS, Row, mebi, median, micro};

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for link in LINKS {
        site.set_round_trip(link)?;
        // Each link has its own session, so that none uses the cache of another.
        let bare = &mut site.bare_worker()?;
        let inside = &mut site.session_worker(Transport::Tcp)?;
        let count = if link == 0 { 400 } else { 40 };
        let request =
            json!({"do": "round_trip", "address": Server::Echo.address(), "count": count});
        let round_trip = micro(median(bare.measure(&request, "seconds")?));
        rows.extend(small_files(inside, link, round_trip, count)?);
        rows.push(further_reads(site, bare, inside, link)?);
        if link <= 5 {
            rows.extend(whole_file(site, bare, inside, link, extent)?);
        }
    }
    Ok(rows)
}

fn small_files(inside: &mut Worker, link: u64, round_trip: f64, count: usize) -> Result<Vec<Row>> {
    let tree = Site::tree();
    // The first operation of a session pays for one-time setup.
    inside.call(&json!({"do": "open_read_close", "folder": tree, "from": 0, "count": 10}))?;
    let request = json!({"do": "open_read_close", "folder": tree, "from": 10, "count": count});
    let opened = inside.measure(&request, "seconds")?;
    let request =
        json!({"do": "metadata", "folder": tree, "from": SMALL_FILES / 2, "count": count});
    let mut metadata = inside.call(&request)?;
    let first = metadata.remove("first").unwrap_or_default();
    let again = metadata.remove("again").unwrap_or_default();
    let row = |what: &str, samples| {
        Row::new(
            format!("remote {what}, {link} ms"),
            micro(median(samples)),
            "µs",
        )
    };
    Ok(vec![
        row("open + read 4 KiB + close (baseline: a round trip)", opened)
            .baseline(round_trip)
            .at_most_more_than_baseline(300.0),
        row("stat, first (baseline: a round trip)", first)
            .baseline(round_trip)
            .at_most_more_than_baseline(200.0),
        row("stat, again within a second", again).at_most(40.0),
    ])
}

fn further_reads(site: &Site, bare: &mut Worker, inside: &mut Worker, link: u64) -> Result<Row> {
    let local = local_copy(site)?;
    let reads =
        |path: &std::path::Path| json!({"do": "further_reads", "path": path, "count": 2000});
    let with = inside.measure(
        &reads(&std::path::Path::new(Site::tree()).join("large")),
        "seconds",
    )?;
    let without = bare.measure(&reads(&local), "seconds")?;
    let name = format!("further 4 KiB read of an open remote file, {link} ms");
    Ok(Row::new(name, micro(median(with)), "µs")
        .baseline(micro(median(without)))
        .ratio_at_most(2.0))
}

fn whole_file(
    site: &Site,
    bare: &mut Worker,
    inside: &mut Worker,
    link: u64,
    extent: &Extent,
) -> Result<Vec<Row>> {
    let local = local_copy(site)?;
    let remote = std::path::Path::new(Site::tree()).join("large");
    let fetch = json!({"do": "http2", "address": Server::Http2.address(), "length": LARGE_FILE});
    let (mut with, mut http2, mut without) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..extent.rounds(5) {
        http2.extend(bare.measure(&fetch, "seconds")?);
        with.extend(inside.measure(&json!({"do": "whole_file", "path": remote}), "seconds")?);
        without.extend(bare.measure(&json!({"do": "whole_file", "path": local}), "seconds")?);
    }
    let speed = |seconds| mebi(LARGE_FILE as f64 / median(seconds));
    let (with, http2, without) = (speed(with), speed(http2), speed(without));
    let name = format!("64 MiB remote file from open to end, {link} ms");
    Ok(vec![
        Row::new(format!("{name} (baseline: HTTP/2)"), with, "MiB/s")
            .baseline(http2)
            .ratio_at_least(0.6),
        Row::new(format!("{name} (baseline: local)"), with, "MiB/s").baseline(without),
    ])
}

/// The large file, on this machine.
fn local_copy(site: &Site) -> Result<std::path::PathBuf> {
    let path = site.local_folder().join("large");
    if !path.is_file() {
        std::fs::write(&path, vec![7; LARGE_FILE])?;
    }
    Ok(path)
}
