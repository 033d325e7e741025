//! Functions that the scenarios of sessions share: the programs of this repository and the processes of sessions.

use std::env;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, anyhow};
use e2e::machine::{ProgramOutput, Programs};
use e2e::{Scenario, TestNamespace, environment, until};
use lab::image::Image;
use lab::standind::{self, Profile};
use lab::{Lab, Paths, Progress};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use tempfile::TempDir;

/// `standin` and `standind`.
pub(crate) fn programs() -> Result<Programs> {
    Programs::find(&Path::new(env!("CARGO_TARGET_TMPDIR")).join(".."))
}

/// The folder of compiled programs.
pub(crate) fn cache() -> PathBuf {
    env::var_os(environment::FIXTURES).map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs"),
        PathBuf::from,
    )
}

/// The process of a running session. It is killed when this value is dropped.
pub(crate) struct SessionProcess {
    process: Child,
    folder: TempDir,
}

impl SessionProcess {
    /// Starts a session. Its settings become environment variables with the prefix `STANDIN_`.
    pub(crate) fn start(mut command: Command, settings: &[(&str, &str)]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for (name, value) in settings {
            command.env(format!("STANDIN_{name}"), value);
        }
        let process = command
            .stdout(File::create(folder.path().join("stdout"))?)
            .stderr(File::create(folder.path().join("stderr"))?)
            .spawn()?;
        Ok(SessionProcess { process, folder })
    }

    /// The output of the program so far.
    pub(crate) fn stdout(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.path().join("stdout"))?)
    }

    /// The messages of `standin` so far, and the program's standard error.
    pub(crate) fn stderr(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.path().join("stderr"))?)
    }

    /// Waits until standard error contains a text.
    pub(crate) async fn wait_for_message(&self, text: &str) -> Result<()> {
        let what = format!("the session to print {text:?}");
        let waited = until(&what, async || {
            Ok(self.stderr()?.contains(text).then_some(()))
        });
        waited.await.with_context(|| self.report())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a line to a program that was started with a pipe as its standard input.
    pub(crate) fn send_line(&mut self, line: &str) -> Result<()> {
        let input = self.process.stdin.as_mut().context("no input")?;
        Ok(writeln!(input, "{line}")?)
    }

    /// The exit status, if it has exited.
    pub(crate) fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.process.try_wait()?)
    }

    /// Closes its standard input and waits until it exits.
    pub(crate) fn end(mut self) -> Result<ProgramOutput> {
        let status = self.process.wait()?;
        Ok(ProgramOutput::new(self.stdout()?, self.stderr()?, status))
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Ends it with SIGTERM, unless it has exited, and waits until it exits.
    pub(crate) fn terminate(&mut self) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.process.id())?);
        if self.exit_status()?.is_none() {
            signal::kill(pid, Signal::SIGTERM)?;
            self.process.wait()?;
        }
        Ok(())
    }

    pub(crate) fn report(&self) -> String {
        let text = |output: Result<String>| output.unwrap_or_else(|error| format!("{error:#}"));
        format!(
            "--- stdout\n{}--- stderr\n{}",
            text(self.stdout()),
            text(self.stderr())
        )
    }
}

impl Drop for SessionProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// `standin` for the cluster of a namespace. Loads the image of the agents once.
pub(crate) fn standin_for(scenario: &Scenario<'_>, namespace: &TestNamespace) -> Result<Command> {
    load_agent_image(scenario)?;
    standin_in(namespace)
}

/// The same, for clusters of the scenario's own, which have the image already.
pub(crate) fn standin_in(namespace: &TestNamespace) -> Result<Command> {
    let mut standin = programs()?.standin();
    let client = &namespace.cluster.client;
    if let Some(kubeconfig) = client.kubeconfig() {
        standin.env("KUBECONFIG", kubeconfig);
        // The lab's addresses exist only on this machine, where no proxy can reach them.
        for variable in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"] {
            standin.env_remove(variable);
        }
    }
    standin
        .env("STANDIN_AGENT_IMAGE", standind::REFERENCE)
        .env("STANDIN_KUBE_CONTEXT", client.name())
        .env("STANDIN_TARGET_NAMESPACE", &namespace.name)
        .stdin(Stdio::null());
    Ok(standin)
}

/// `standin exec` for a target. The caller appends the program.
pub(crate) fn exec_for(
    scenario: &Scenario<'_>,
    namespace: &TestNamespace,
    target: &str,
) -> Result<Command> {
    let mut standin = standin_for(scenario, namespace)?;
    standin.args(["exec", "-t", target]);
    Ok(standin)
}

/// The processes of the lab that match a filter.
pub(crate) fn lab_processes(lab: &Lab, filter: impl Fn(u32) -> bool) -> Result<Vec<u32>> {
    let all = lab.processes()?.into_iter();
    let mut found: Vec<u32> = all.filter_map(|pid| u32::try_from(pid).ok()).collect();
    found.retain(|pid| filter(*pid));
    found.sort_unstable();
    Ok(found)
}

/// The first process of a pod's containers.
pub(crate) fn process_of_pod(lab: &Lab, pod: &str) -> Result<u32> {
    let host_name = format!("HOSTNAME={pod}");
    let found = lab_processes(lab, |pid| {
        let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = variables.split(|byte| *byte == 0);
        variables.any(|one| one == host_name.as_bytes())
    })?;
    let first = found.first().copied();
    first.with_context(|| format!("no process of the pod {pod} is running"))
}

/// Loads the image of the agents into all clusters, once for all scenarios.
pub(crate) fn load_agent_image(scenario: &Scenario<'_>) -> Result<()> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    let load = || scenario.environment()?.load_image(&agent_image()?);
    LOADED
        .get_or_init(|| load().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|error| anyhow!(error))
}

/// The archive with the image of agents and operators.
pub(crate) fn agent_image() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    built_once(&BUILT, |program| {
        standind::image(standind::REFERENCE, program)
    })
}

/// The archive with the image of hubs and tunnel agents.
pub(crate) fn hub_image() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    built_once(&BUILT, |program| {
        standind::hub_image(standind::HUB_REFERENCE, program)
    })
}

/// Makes an image from the programs beside `standind`.
fn built_once(
    built: &OnceLock<Result<PathBuf, String>>,
    image: impl FnOnce(&Path) -> Image,
) -> Result<PathBuf> {
    let build = || -> Result<PathBuf> {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../image");
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let progress = Progress::to_stderr();
        let program = standind::build(&repository, &target, Profile::Dev, &progress)?;
        let archive = image(&program).write_cached(&Paths::from_environment().images())?;
        Ok(archive.path().to_owned())
    };
    built
        .get_or_init(|| build().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|error| anyhow!(error))
}
