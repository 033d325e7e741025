//! `kubectl port-forward`, as a baseline for the path from a developer's machine into a cluster.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use super::site::{NAMESPACE, Site};
use crate::bench::load::{Hop, LoadSite, Route, UNMATCHED_HEADER};
use crate::bench::session::programs::{Program, Worker};

/// The port forwarding ends when this is dropped.
pub(super) struct Forward {
    address: String,
    worker: Worker,
    _kubectl: Program,
}

impl Forward {
    /// Forwards to a port of a pod, Service or workload.
    pub(super) fn start(site: &Site, to: &str, port: u16) -> Result<Self> {
        let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut kubectl = site.client()?.kubectl();
        kubectl
            .args(["--namespace", NAMESPACE, "port-forward", to])
            .arg(format!("{free}:{port}"))
            .stdin(Stdio::null());
        let (kubectl, _) = Program::start(kubectl).context("forwarding a port with kubectl")?;
        let mut worker = Command::new(&site.programs().workload);
        worker.arg("worker");
        Ok(Self {
            address: format!("127.0.0.1:{free}"),
            worker: Worker::start(worker)?,
            _kubectl: kubectl,
        })
    }

    /// Its address on this machine.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The route to the application.
    pub(super) fn route(&self) -> Route {
        Route::new(
            self.address.clone(),
            UNMATCHED_HEADER,
            "original",
            Hop::Nothing,
        )
    }
}

impl LoadSite for Forward {
    /// On the developer's machine, in no session.
    fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    fn processor_seconds(&self, _: Hop) -> Result<f64> {
        Ok(0.0)
    }
}
