//! The path of a session through an operator, without Standin: a plain relay instead of the agent, one instead of the
//! operator, one WebSocket through the same API server, and its plain end on the developer's machine.
//!
//! Nothing is encrypted end to end, resumed or parsed. So this is the cost of the path alone.

use std::net::TcpListener;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::site::{NAMESPACE, Site};
use crate::bench::load::{Hop, MATCHED_HEADER, Route};
use crate::bench::session::programs::Program;

/// A description of the baseline, for readers of the rows.
pub(super) const DESCRIPTION: &str = "the plain relays: load -> TCP relay instead of the agent -> relay instead of the operator -> one WebSocket through \
     the same API server -> the developer's server; no TLS from end to end, no HTTP/2, nothing that resumes";

const MANIFESTS: &str = include_str!("carrier.yaml");
const API_SERVICE: &str = "apiservice/v1.relay.bench";
/// The carrier's port, and the address of the relay in front of it in the network of the node.
const CARRIER: u16 = 9000;
const NEAR: &str = "127.0.0.1:9100";
/// As many as the largest load has, and some that are closing.
const CONNECTIONS: usize = 160;

#[derive(Debug)]
pub(super) struct RawRelay {
    _programs: [Program; 3],
}

impl RawRelay {
    pub(super) fn start(site: &Site) -> Result<Self> {
        let client = site.client()?;
        client.apply(NAMESPACE, MANIFESTS)?;
        site.kubectl(&["rollout", "status", "deployment/carrier", "--timeout=120s"])?;
        site.kubectl(&[
            "wait",
            "--for=condition=Available",
            API_SERVICE,
            "--timeout=60s",
        ])?;
        let carrier = site.kubectl(&[
            "get",
            "pods",
            "--selector=app=carrier",
            "--output=jsonpath={.items[0].status.podIP}",
        ])?;
        let mut near = site.in_node_network()?;
        near.args(["relay", "--listen", NEAR, "--to"])
            .arg(format!("{carrier}:{CARRIER}"));
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = format!("127.0.0.1:{port}");
        let mut developer = Command::new(&site.programs().workload);
        developer.args(["http", "--from", "developer", "--listen", &server]);
        let (near, developer) = (Program::start(near)?.0, Program::start(developer)?.0);
        let mut far_end = Command::new(&site.programs().workload);
        far_end
            .arg("far-end")
            .arg("--kubeconfig")
            .arg(client.kubeconfig().context("the lab has no kubeconfig")?)
            .args(["--context", client.name(), "--to", &server])
            .args(["--connections", &CONNECTIONS.to_string()]);
        let (far_end, _) = Program::start(far_end)?;
        Ok(Self {
            _programs: [near, developer, far_end],
        })
    }

    pub(super) fn route(&self) -> Route {
        Route::new(NEAR.to_owned(), MATCHED_HEADER, "developer", Hop::Nothing)
    }

    /// Removes the API: one without a server would slow down API discovery.
    pub(super) fn end(self, site: &Site) -> Result<()> {
        site.kubectl(&[
            "delete",
            API_SERVICE,
            "deployment/carrier",
            "service/carrier",
        ])
        .map(drop)
    }
}
