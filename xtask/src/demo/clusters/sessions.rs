//! Sessions in a cluster: a program that inspects its environment as a pod of the shop, and one that serves some of the
//! shop's requests. First with nothing installed, then through the operator, and finally over several clusters.

mod members;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, bail, ensure};
use lab::image::{Cache, ImageArchive};
use lab::standind::{self, Profile};
use lab::{Client, Progress};
use serde_json::json;

use super::NAMESPACE;
use crate::demo::machine::Programs;
use crate::demo::session::Session;
use crate::{operator, process, workspace};

const OPERATOR_NAMESPACE: &str = "standin";
const INSTALL: &str =
    "helm install standin charts/standin-operator --namespace standin --create-namespace …";
const TARGET: &str = "deployment/checkout";
/// The header that the shop's services pass on from one to the next.
const HEADER: &str = "baggage: developer=you";
const ADDRESS: &str = "http://checkout:8080/whoami";
const NEW: &str = "order taken by the new version";
/// What `inspect` finds as a pod of the shop, and nowhere else.
const ONLY_INSIDE: [&str; 3] = ["checkout-", "a-sample-key", "\"service\":\"inventory\""];

/// The programs of this part.
#[derive(Debug)]
pub(super) struct Sessions {
    programs: Programs,
    /// The agent's and operator's program, for images.
    standind: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WithOperator {
    Yes,
    No,
}

impl Sessions {
    /// Compiles what has changed, unless that was done before the command continued as root.
    pub(super) fn build(progress: &Progress) -> Result<Self> {
        let root = workspace::root()?;
        let was_built = std::env::var_os(lab::environment::STATIC_STANDIND).is_some();
        let programs = match was_built {
            true => Programs::built()?,
            false => Programs::build(&root)?,
        };
        let target = workspace::image_target()?;
        Ok(Sessions {
            programs,
            standind: standind::build(&root, &target, Profile::Dev, progress)?,
        })
    }

    /// The variables through which a process that runs as root gets these programs.
    pub(super) fn variables(&self) -> Vec<(&'static str, &OsStr)> {
        vec![(lab::environment::STATIC_STANDIND, self.standind.as_os_str())]
    }

    pub(super) fn image(&self, cache: &Cache) -> Result<ImageArchive> {
        Ok(standind::image(standind::REFERENCE, &self.standind).write_cached(cache)?)
    }

    /// `standin`, for a cluster.
    fn standin(&self, client: &Client) -> Command {
        let mut standin = Command::new(&self.programs.standin);
        if let Some(kubeconfig) = client.kubeconfig() {
            standin.env("KUBECONFIG", kubeconfig);
            // The lab's addresses are on this machine, where no proxy can reach them.
            for variable in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"] {
                standin.env_remove(variable);
            }
        }
        // These variables are not settings of a session.
        for variable in [
            lab::environment::STATIC_STANDIND,
            lab::environment::SHOP_PROGRAMS,
            lab::environment::SHOP_NODE,
        ] {
            standin.env_remove(variable);
        }
        standin
            .env("STANDIN_KUBE_CONTEXT", client.name())
            .env("STANDIN_TARGET_NAMESPACE", NAMESPACE)
            .stdin(Stdio::null());
        standin
    }

    /// Sessions in the first of these clusters, and with an operator in all of them.
    pub(super) fn show(
        &self,
        clients: &[Client],
        operator: WithOperator,
        keep: bool,
    ) -> Result<()> {
        let Some(client) = clients.first() else {
            return Ok(());
        };
        println!(
            "
Now a program of this machine becomes a part of the shop in {}. Nothing is installed there: `standin` uses the rights of
your kubeconfig, and its agent is a container that it adds to a pod. The available targets:

$ standin ls -n {NAMESPACE}",
            client.name()
        );
        print!("{}", process::output(self.standin(client).arg("ls"))?);
        self.inspect_environment(client)?;
        self.serve_some(client, AccessPath::OwnRights)?;
        if operator == WithOperator::No {
            println!(
                "\nTeams install the operator (docs/operator.md); here it is left out, since the cluster is yours."
            );
            return Ok(());
        }
        println!("\nTeams install the operator, once:\n\n$ {INSTALL}");
        operator::install(client, OPERATOR_NAMESPACE, "install", &json!({}))?;
        let shown = self.through_operator(client);
        let shown = shown.and_then(|()| members::show(self, clients));
        if !keep {
            clients.iter().try_for_each(uninstall_operator)?;
        }
        shown
    }

    /// The same program, outside and inside.
    fn inspect_environment(&self, client: &Client) -> Result<()> {
        println!(
            "\n`inspect` is a program that a developer works on: static Go, without any knowledge of Standin. Run as it is:\n\n$ inspect shop"
        );
        let outside = process::output(Command::new(&self.programs.inspect).arg("shop"))?;
        print!("{outside}");
        println!(
            "\nRun as the stand-in for the deployment `checkout`:\n\n$ standin exec -t {TARGET} -n {NAMESPACE} -- inspect shop"
        );
        let mut session = self.standin(client);
        session
            .env("STANDIN_AGENT_IMAGE", standind::REFERENCE)
            .args(["exec", "-t", TARGET, "--"])
            .arg(&self.programs.inspect)
            .arg("shop");
        let inside = process::output(&mut session)?;
        print!("{inside}");
        println!(
            "
The same program, on this machine, with a pod's host name, environment, secrets, DNS names and network. Nothing was rebuilt
or deployed, and the shop was not touched."
        );
        for expected in ONLY_INSIDE {
            ensure!(
                !outside.contains(expected),
                "{expected:?} was found without a session"
            );
            ensure!(
                inside.contains(expected),
                "{expected:?} was not found in the session"
            );
        }
        Ok(())
    }

    /// A new version serves the requests with the header, in every pod.
    fn serve_some(&self, client: &Client, access: AccessPath) -> Result<()> {
        let filter = format!("^{HEADER}$");
        println!(
            "
The other direction: a new version of `checkout` on this machine serves the requests that have your header, of every
pod, and no other requests. It listens on port 8000, the service on 8080:

$ standin exec -t {TARGET} -n {NAMESPACE} --steal --header-filter '{filter}' --port-mapping 8000:8080 -- checkout"
        );
        let mut session = self.standin(client);
        if access == AccessPath::OwnRights {
            session.env("STANDIN_AGENT_IMAGE", standind::REFERENCE);
        }
        session
            .args(["exec", "-t", TARGET, "--steal", "--header-filter", &filter])
            .args(["--port-mapping", "8000:8080", "--"])
            .arg(&self.programs.checkout);
        let session = Session::start(session)?;
        let others = self.call(client, None, access)?;
        let you = self.call(client, Some(HEADER), access)?;
        if access == AccessPath::Operator {
            println!(
                "\nAuthorized users can list the sessions:\n\n$ standin operator session list"
            );
            let mut list = self.standin(client);
            let listed = process::output(list.args(["operator", "session", "list"]))?;
            print!("{listed}");
            ensure!(listed.contains(TARGET), "the session is not listed");
        }
        session.end()?;
        println!("\nThe session has ended, and all is as before:");
        let afterwards = self.call(client, Some(HEADER), access)?;
        verify(&others, &you, &afterwards)
    }

    /// Sends one request from the storefront, in its own session.
    fn call(&self, client: &Client, header: Option<&str>, access: AccessPath) -> Result<String> {
        let shown = header.map_or_else(String::new, |header| format!(" '{header}'"));
        println!(
            "\n$ standin exec -q -t deployment/storefront -n {NAMESPACE} -- call {ADDRESS}{shown}"
        );
        let mut session = self.standin(client);
        if access == AccessPath::OwnRights {
            session.env("STANDIN_AGENT_IMAGE", standind::REFERENCE);
        }
        session
            .args(["exec", "--quiet", "-t", "deployment/storefront", "--"])
            .arg(&self.programs.call)
            .arg(ADDRESS)
            .args(header);
        let response = process::output(&mut session)?;
        println!("{}", response.trim_end());
        Ok(response)
    }

    fn through_operator(&self, client: &Client) -> Result<()> {
        println!("\n$ standin operator status");
        let mut status = self.standin(client);
        print!("{}", process::output(status.args(["operator", "status"]))?);
        println!(
            "
From now on sessions use the operator automatically: the same commands, and users need one right, to have a
session with this target, and none to start pods or to change them."
        );
        self.serve_some(client, AccessPath::Operator)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AccessPath {
    OwnRights,
    Operator,
}

/// Does nothing in clusters without an operator.
fn uninstall_operator(client: &Client) -> Result<()> {
    process::output(client.helm().args([
        "uninstall",
        "standin",
        "--namespace",
        OPERATOR_NAMESPACE,
        "--ignore-not-found",
        "--wait",
        "--timeout=120s",
    ]))
    .map(drop)
}

/// Fails if the demo did not show what it should.
fn verify(others: &str, you: &str, afterwards: &str) -> Result<()> {
    let is_deployed = |response: &str| response.contains("\"service\":\"checkout\"");
    if !is_deployed(others) || !you.contains(NEW) || !is_deployed(afterwards) {
        bail!(
            "the new version should serve the request with the header, and the pods all others; the responses were \
             {others:?}, {you:?} and {afterwards:?}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_must_come_from_the_expected_version() {
        let pod = "{\"service\":\"checkout\",\"pod\":\"checkout-1\"}";
        assert!(verify(pod, NEW, pod).is_ok());
        assert!(verify(pod, pod, pod).is_err());
        assert!(verify(NEW, NEW, pod).is_err());
        assert!(verify(pod, NEW, NEW).is_err());
    }
}
