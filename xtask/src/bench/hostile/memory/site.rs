//! A target with an HTTP/2 application and an agent in one control group, and clients on the other side of a wire.

use std::time::Duration;

use anyhow::Result;
use lab::wire::{Conditions, Wire};
use serde_json::json;

use super::group::Group;
use crate::bench::server::{Mode, ServerBehavior, Session};
use crate::bench::session::programs::{Program, Programs, Worker};
use crate::bench::session::site::{
    AGENT, Folder, TARGET, agent, exec, in_network, join, network, worker,
};

const APPLICATION: u16 = 8080;
/// The limit of the agent and the application together.
pub(super) const LIMIT: u64 = 512 << 20;

/// The site. What was started in it ends with it, in this order.
pub(super) struct Site {
    programs: Programs,
    hostile: Worker,
    well_behaved: Worker,
    agent: Program,
    _application: Program,
    _target: Program,
    group: Group,
    _wire: Wire,
    client_network: Program,
    _target_network: Program,
    folder: Folder,
}

impl Site {
    pub(super) fn build(programs: &Programs) -> Result<Self> {
        let folder = Folder::new()?;
        let (client_network, target_network) = (network()?, network()?);
        let wire = join(&client_network, &target_network)?;
        wire.set_both("client", "target", Conditions::delayed_by(Duration::ZERO))?;
        let group = Group::with_limit(LIMIT)?;
        let inside = || group.inside(in_network(&target_network));
        let mut target = inside();
        target.arg(&programs.workload).arg("target");
        let target = Program::start(target)?.0;
        let mut application = inside();
        application.arg(&programs.workload).arg("stalling");
        application.args(["--listen", &format!("0.0.0.0:{APPLICATION}")]);
        let application = Program::start(application)?.0;
        let agent = Program::start(agent(inside(), programs, &target, AGENT))?.0;
        Ok(Self {
            programs: programs.clone(),
            hostile: worker(&client_network, programs)?,
            well_behaved: worker(&client_network, programs)?,
            agent,
            _application: application,
            _target: target,
            group,
            _wire: wire,
            client_network,
            _target_network: target_network,
            folder,
        })
    }

    pub(super) fn agent_pid(&self) -> u32 {
        self.agent.pid()
    }

    /// A session that steals requests which none of the clients sends.
    pub(super) fn session(&self) -> Result<Session> {
        Session::start(
            exec(&self.client_network, &self.programs, AGENT),
            &self.programs,
            &self.folder.0,
            Mode::Steal,
            ServerBehavior::Healthy,
            APPLICATION,
        )
    }

    /// Opens streams, and fills their windows with bytes that the application does not read.
    pub(super) fn stall(&mut self, clients: usize, streams: usize) -> Result<()> {
        let request =
            json!({"do": "stall", "address": address(), "clients": clients, "streams": streams});
        self.hostile.call(&request).map(drop)
    }

    /// Sends requests on connections of their own. Fails if one has no response.
    pub(super) fn well_behaved(&mut self, count: usize) -> Result<()> {
        let request = json!({"do": "http2_each", "address": address(), "count": count});
        self.well_behaved.call(&request).map(drop)
    }

    pub(super) fn killed(&self) -> Result<f64> {
        self.group.killed()
    }
}

fn address() -> String {
    format!("{TARGET}:{APPLICATION}")
}
