//! File operations in the Default, which is a member: they go through the Primary.

use std::process::Command;

use anyhow::Result;
use serde_json::json;

use super::LINKS;
use super::site::{DEFAULT, PRIMARY, SMALL_FILES, Site};
use crate::bench::images::TREE;
use crate::bench::session::programs::{Program, Worker};
use crate::bench::session::{median, micro};
use crate::bench::{Extent, Row};

const ECHO: u16 = 7001;
const OUTER: u16 = 9101;
const INNER: u16 = 9102;
/// The allowed overhead of an operation compared with its path, in microseconds.
const ALLOWANCE: f64 = 400.0;
/// A description of the baseline, for readers of the rows.
const DESCRIPTION: &str = "the path: a byte and its echo through plain TCP relays in place of the Primary's API \
     server and operator and of the Default's, to a server in a pod there; no TLS, no HTTP";

pub(super) fn rows(site: &mut Site, _: &Extent) -> Result<Vec<Row>> {
    eprintln!("{DESCRIPTION}");
    let path = Path::build(site)?;
    let mut bare = bare_worker(site)?;
    let mut rows = Vec::new();
    for link in LINKS {
        site.set_round_trip(link)?;
        // Each link has its own session, so that none uses the cache of another.
        let mut inside = site.session_worker()?;
        let count = if link == 0 { 400 } else { 40 };
        let echo = json!({"do": "round_trip", "address": path.address, "count": count});
        let before = bare.measure(&echo, "seconds")?;
        let (opened, metadata) = files(&mut inside, count)?;
        let after = bare.measure(&echo, "seconds")?;
        let path = micro(median([before, after].concat()));
        for (what, seconds) in [("stat", metadata), ("open + read 4 KiB + close", opened)] {
            let name = format!("{what} in the Default, {link} ms (baseline: the path)");
            rows.push(
                Row::new(name, micro(median(seconds)), "µs")
                    .baseline(path)
                    .at_most_more_than_baseline(ALLOWANCE),
            );
        }
    }
    Ok(rows)
}

/// Seconds to open and read a file, and to read metadata, each time of another file.
fn files(inside: &mut Worker, count: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    let open = |from: usize, count: usize| json!({"do": "open_read_close", "folder": TREE, "from": from, "count": count});
    // The first operation of a session pays for one-time setup.
    inside.call(&open(0, 10))?;
    let opened = inside.measure(&open(10, count), "seconds")?;
    let request =
        json!({"do": "metadata", "folder": TREE, "from": SMALL_FILES / 2, "count": count});
    let metadata = inside.measure(&request, "first")?;
    Ok((opened, metadata))
}

/// A worker on the developer's machine, in no session.
fn bare_worker(site: &Site) -> Result<Worker> {
    let mut command = Command::new(&site.programs().workload);
    command.arg("worker");
    Worker::start(command)
}

/// Plain relays in place of the session's hops.
struct Path {
    address: String,
    _relays: Vec<Program>,
}

impl Path {
    fn build(site: &Site) -> Result<Self> {
        let outer = |cluster: &str| -> Result<String> {
            let node = site.cluster(cluster)?.plan().first_node();
            Ok(format!("{}:{OUTER}", node.address))
        };
        let inner = format!("127.0.0.1:{INNER}");
        let server = format!("{}:{ECHO}", site.servers(DEFAULT)?);
        let hops = [
            (DEFAULT, inner.clone(), server),
            (DEFAULT, outer(DEFAULT)?, inner.clone()),
            (PRIMARY, inner.clone(), outer(DEFAULT)?),
            (PRIMARY, outer(PRIMARY)?, inner),
        ];
        let mut relays = Vec::new();
        for (cluster, listen, to) in hops {
            let mut command = site.in_node_network(cluster)?;
            command.args(["relay", "--listen", &listen, "--to", &to]);
            relays.push(Program::start(command)?.0);
        }
        Ok(Self {
            address: outer(PRIMARY)?,
            _relays: relays,
        })
    }
}
