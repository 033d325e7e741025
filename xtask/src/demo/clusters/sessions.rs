//! Sessions in a cluster: a program that looks around as a pod of the shop, and one that answers some of its requests.
//! First with nothing installed, then through the operator, and with several clusters through the operators of all.

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
/// What `look` finds as a pod of the shop, and nowhere else.
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
    /// Compiles what has changed, unless that was done before root was asked for.
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
        // Ours, and no settings of a session.
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
your kubeconfig, and its agent is a container that it adds to a pod. What there is to stand in for:

$ standin ls -n {NAMESPACE}",
            client.name()
        );
        print!("{}", process::output(self.standin(client).arg("ls"))?);
        self.look_around(client)?;
        self.answer_some(client, Through::OwnRights)?;
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
    fn look_around(&self, client: &Client) -> Result<()> {
        println!(
            "\n`look` is a program that a developer works on: static Go, knowing nothing of Standin. Run as it is:\n\n$ look shop"
        );
        let outside = process::output(Command::new(&self.programs.look).arg("shop"))?;
        print!("{outside}");
        println!(
            "\nRun as the stand-in for the deployment `checkout`:\n\n$ standin exec -t {TARGET} -n {NAMESPACE} -- look shop"
        );
        let mut session = self.standin(client);
        session
            .env("STANDIN_AGENT_IMAGE", standind::REFERENCE)
            .args(["exec", "-t", TARGET, "--"])
            .arg(&self.programs.look)
            .arg("shop");
        let inside = process::output(&mut session)?;
        print!("{inside}");
        println!(
            "
The same program, on this machine, with a pod's host name, environment, secrets, names and network. Nothing was rebuilt
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

    /// A new version answers the requests with the header, in every pod.
    fn answer_some(&self, client: &Client, through: Through) -> Result<()> {
        let filter = format!("^{HEADER}$");
        println!(
            "
The other direction: a new version of `checkout` on this machine answers requests that have your header, whichever pod
they come to, and nobody else's. It listens on port 8000, the service on 8080:

$ standin exec -t {TARGET} -n {NAMESPACE} --steal --header-filter '{filter}' --port-mapping 8000:8080 -- checkout"
        );
        let mut session = self.standin(client);
        if through == Through::OwnRights {
            session.env("STANDIN_AGENT_IMAGE", standind::REFERENCE);
        }
        session
            .args(["exec", "-t", TARGET, "--steal", "--header-filter", &filter])
            .args(["--port-mapping", "8000:8080", "--"])
            .arg(&self.programs.checkout);
        let session = Session::start(session)?;
        let everybody = self.ask(client, None, through)?;
        let you = self.ask(client, Some(HEADER), through)?;
        if through == Through::Operator {
            println!(
                "\nEverybody who may can see who is where:\n\n$ standin operator session list"
            );
            let mut list = self.standin(client);
            let listed = process::output(list.args(["operator", "session", "list"]))?;
            print!("{listed}");
            ensure!(listed.contains(TARGET), "the session is not listed");
        }
        session.end()?;
        println!("\nThe session has ended, and all is as before:");
        let afterwards = self.ask(client, Some(HEADER), through)?;
        judge(&everybody, &you, &afterwards)
    }

    /// One request, from where the storefront is: in a session of its own.
    fn ask(&self, client: &Client, header: Option<&str>, through: Through) -> Result<String> {
        let shown = header.map_or_else(String::new, |header| format!(" '{header}'"));
        println!(
            "\n$ standin exec -q -t deployment/storefront -n {NAMESPACE} -- ask {ADDRESS}{shown}"
        );
        let mut session = self.standin(client);
        if through == Through::OwnRights {
            session.env("STANDIN_AGENT_IMAGE", standind::REFERENCE);
        }
        session
            .args(["exec", "--quiet", "-t", "deployment/storefront", "--"])
            .arg(&self.programs.ask)
            .arg(ADDRESS)
            .args(header);
        let answer = process::output(&mut session)?;
        println!("{}", answer.trim_end());
        Ok(answer)
    }

    fn through_operator(&self, client: &Client) -> Result<()> {
        println!("\n$ standin operator status");
        let mut status = self.standin(client);
        print!("{}", process::output(status.args(["operator", "status"]))?);
        println!(
            "
From now on sessions go through the operator by themselves: the same commands, and users need one right, to have a
session with this target, and none to start pods or to change them."
        );
        self.answer_some(client, Through::Operator)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Through {
    OwnRights,
    Operator,
}

/// Clusters that have none are left alone.
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

/// A demo that shows nothing must not look like one that went well.
fn judge(everybody: &str, you: &str, afterwards: &str) -> Result<()> {
    let is_deployed = |answer: &str| answer.contains("\"service\":\"checkout\"");
    if !is_deployed(everybody) || !you.contains(NEW) || !is_deployed(afterwards) {
        bail!(
            "the new version was to answer the request with the header, and the pods all others; the answers were \
             {everybody:?}, {you:?} and {afterwards:?}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_must_come_from_whom_they_should() {
        let pod = "{\"service\":\"checkout\",\"pod\":\"checkout-1\"}";
        assert!(judge(pod, NEW, pod).is_ok());
        assert!(judge(pod, pod, pod).is_err());
        assert!(judge(NEW, NEW, pod).is_err());
        assert!(judge(pod, NEW, NEW).is_err());
    }
}
