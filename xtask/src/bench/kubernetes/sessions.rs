//! Many sessions at once, by simulated clients, through the real API server: what they cost the operator while
//! idle, how long the next one takes to start, and whether all of them outlive the API server's request timeout.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lab::component::API_SERVER;
use serde_json::json;

use super::site::{NAMESPACE, Site, TARGET};
use crate::bench::session::programs::{Worker, memory, processor_seconds};
use crate::bench::session::{median, ninety_fifth};
use crate::bench::{Extent, Row};

/// So many start in parallel, before start times are measured.
const AT_ONCE: usize = 8;
/// So many start in sequence, while all others are open.
const STARTS: usize = 40;
/// The API server's timeout for requests that it does not treat as long-running.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// How long idle sessions are measured: several times the interval of their periodic work.
const IDLE: Duration = Duration::from_secs(60);
const IDLE_QUICK: Duration = Duration::from_secs(30);
const LATENCY_SAMPLES: usize = 15;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    site.operator()?;
    let timeout = format!("--request-timeout={}s", REQUEST_TIMEOUT.as_secs());
    restart_api_server(site, &[&timeout])?;
    let rows = measure(site, extent);
    restart_api_server(site, &[])?;
    rows
}

fn measure(site: &Site, extent: &Extent) -> Result<Vec<Row>> {
    let (count, starts) = if extent.quick {
        (60, 10)
    } else {
        (300, STARTS)
    };
    let idle = if extent.quick { IDLE_QUICK } else { IDLE };
    let without_sessions = Usage::during(site, idle / 2)?;
    let latency_before = latency(site)?;
    let mut clients = clients(site)?;
    clients.call(&json!({"do": "open", "count": count - starts, "at_once": AT_ONCE}))?;
    let start_times = clients.measure(
        &json!({"do": "open", "count": starts, "at_once": 1}),
        "seconds",
    )?;
    let youngest = Instant::now();
    let many = Usage::during(site, idle)?;
    let latency_with = latency(site)?;
    // Half as long again as the API server would have waited.
    thread::sleep((REQUEST_TIMEOUT * 3 / 2).saturating_sub(youngest.elapsed()));
    let cut = clients.measure(&json!({"do": "status"}), "cut")?;
    clients.call(&json!({"do": "close"}))?;
    let all = format!("{count} idle sessions");
    let seconds = REQUEST_TIMEOUT.as_secs();
    Ok(vec![
        Row::new(
            format!("operator, {all}: memory of all replicas (baseline: with none)"),
            many.memory,
            "MiB",
        )
        .baseline(without_sessions.memory)
        .at_most(200.0),
        Row::new(
            format!("operator, {all}: of a core, all replicas (baseline: with none)"),
            many.processor,
            "%",
        )
        .baseline(without_sessions.processor)
        .at_most(10.0),
        Row::new(
            format!("agent on the node, {all}: memory (baseline: with none)"),
            many.agent_memory,
            "MiB",
        )
        .baseline(without_sessions.agent_memory),
        Row::new(
            format!("session start, with more than {} open, p95", count - starts),
            ninety_fifth(start_times),
            "s",
        )
        .at_most(2.0),
        Row::new(
            format!("{count} sessions for longer than the API server's request timeout of {seconds} s: cut"),
            cut.iter().sum(),
            "",
        )
        .at_most(0.0),
        Row::new(
            format!("`kubectl get pods`, {all} (baseline: with none)"),
            latency_with * 1e3,
            "ms",
        )
        .baseline(latency_before * 1e3)
        .ratio_at_most(1.2),
    ])
}

/// The resource usage of the operator.
struct Usage {
    /// In MiB.
    memory: f64,
    /// In percent of a core.
    processor: f64,
    agent_memory: f64,
}

impl Usage {
    fn during(site: &Site, time: Duration) -> Result<Self> {
        let operators = site.processes("operator")?;
        let used = || -> Result<f64> { operators.iter().map(|pid| processor_seconds(*pid)).sum() };
        let before = used()?;
        let start = Instant::now();
        thread::sleep(time);
        let processor = (used()? - before) / start.elapsed().as_secs_f64() * 100.0;
        let all =
            |role: &str| -> Result<f64> { site.processes(role)?.into_iter().map(memory).sum() };
        Ok(Self {
            memory: all("operator")?,
            processor,
            agent_memory: all("node-agent")?,
        })
    }
}

/// The latency of the API server for other clients, in seconds.
fn latency(site: &Site) -> Result<f64> {
    let mut seconds = Vec::new();
    for _ in 0..LATENCY_SAMPLES {
        let start = Instant::now();
        site.kubectl(&["get", "pods"])?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(median(seconds))
}

fn clients(site: &Site) -> Result<Worker> {
    let client = site.client()?;
    let mut command = Command::new(&site.programs().workload);
    command
        .arg("clients")
        .arg("--kubeconfig")
        .arg(client.kubeconfig().context("the lab has no kubeconfig")?)
        .args(["--context", client.name()])
        .args(["--namespace", NAMESPACE, "--target", TARGET]);
    Worker::start(command)
}

fn restart_api_server(site: &mut Site, arguments: &[&str]) -> Result<()> {
    let cluster = site.cluster()?;
    let node = &cluster.plan().first_node().name;
    cluster.restart_component_with(node, API_SERVER, arguments)?;
    cluster.wait_for_api_server()?;
    site.operator()?.wait()
}
