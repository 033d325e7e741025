//! `kubectl port-forward`, the way that everybody knows from a developer's machine into a cluster.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use super::site::{NAMESPACE, Site};
use crate::bench::load::{Ground, Hop, NOT_WANTED, Way};
use crate::bench::session::programs::{Program, Worker};

/// It ends when this is dropped.
pub(super) struct Forward {
    address: String,
    worker: Worker,
    _kubectl: Program,
}

impl Forward {
    /// To a port of a pod, Service or workload.
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

    /// Where it listens on this machine.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// To the application.
    pub(super) fn way(&self) -> Way {
        Way::new(self.address.clone(), NOT_WANTED, "original", Hop::Nothing)
    }
}

impl Ground for Forward {
    /// On the developer's machine, in no session.
    fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    fn processor_seconds(&self, _: Hop) -> Result<f64> {
        Ok(0.0)
    }
}
