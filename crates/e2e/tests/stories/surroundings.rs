//! What stories of sessions share: the programs of this repository, and those that stand in.

use std::env;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, anyhow};
use e2e::machine::{Ended, Programs};
use e2e::{Stage, Story, environment, until};
use lab::standind::{self, Profile};
use lab::{Paths, Progress};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use tempfile::TempDir;

/// `standin` and `standind`.
pub(crate) fn programs() -> Result<Programs> {
    Programs::find(&Path::new(env!("CARGO_TARGET_TMPDIR")).join(".."))
}

/// Where compiled programs are kept.
pub(crate) fn cache() -> PathBuf {
    env::var_os(environment::FIXTURES).map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs"),
        PathBuf::from,
    )
}

/// A session that is watched while it runs. It ends with this value.
pub(crate) struct Running {
    process: Child,
    folder: TempDir,
}

impl Running {
    /// Starts a session whose settings are variables, by the ends of their names.
    pub(crate) fn start(mut command: Command, settings: &[(&str, &str)]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for (name, value) in settings {
            command.env(format!("STANDIN_{name}"), value);
        }
        let process = command
            .stdout(File::create(folder.path().join("stdout"))?)
            .stderr(File::create(folder.path().join("stderr"))?)
            .spawn()?;
        Ok(Running { process, folder })
    }

    /// What the program has printed.
    pub(crate) fn stdout(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.path().join("stdout"))?)
    }

    /// What `standin` has said, and the program.
    pub(crate) fn stderr(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.path().join("stderr"))?)
    }

    pub(crate) async fn says(&self, words: &str) -> Result<()> {
        let what = format!("the session to say {words:?}");
        let waited = until(&what, async || {
            Ok(self.stderr()?.contains(words).then_some(()))
        });
        waited.await.with_context(|| self.report())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Lets a program that was started with a pipe read a line.
    pub(crate) fn tell(&mut self, line: &str) -> Result<()> {
        let input = self.process.stdin.as_mut().context("no input")?;
        Ok(writeln!(input, "{line}")?)
    }

    /// How it has ended, when it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.process.try_wait()?)
    }

    /// Closes its input, and waits for its end.
    pub(crate) fn end(mut self) -> Result<Ended> {
        let status = self.process.wait()?;
        Ok(Ended::new(self.stdout()?, self.stderr()?, status))
    }

    /// As a user who is in a hurry ends it.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// As a user ends it, and waits for its end. One that has ended already has.
    pub(crate) fn interrupt(&mut self) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.process.id())?);
        if self.ended()?.is_none() {
            signal::kill(pid, Signal::SIGTERM)?;
            self.process.wait()?;
        }
        Ok(())
    }

    pub(crate) fn report(&self) -> String {
        let text = |said: Result<String>| said.unwrap_or_else(|error| format!("{error:#}"));
        format!(
            "--- stdout\n{}--- stderr\n{}",
            text(self.stdout()),
            text(self.stderr())
        )
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// `standin`, for the cluster of a stage. Its agents have the image of this repository, which is loaded once.
pub(crate) fn standin_for(story: &Story<'_>, stage: &Stage) -> Result<Command> {
    load_agent_image(story)?;
    standin_in(stage)
}

/// The same, where the clusters are the story's own and have the image.
pub(crate) fn standin_in(stage: &Stage) -> Result<Command> {
    let mut standin = programs()?.standin();
    let client = &stage.cluster.client;
    if let Some(kubeconfig) = client.kubeconfig() {
        standin.env("KUBECONFIG", kubeconfig);
        // The lab's addresses are on this machine, where no proxy can reach them.
        for variable in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"] {
            standin.env_remove(variable);
        }
    }
    standin
        .env("STANDIN_AGENT_IMAGE", standind::REFERENCE)
        .env("STANDIN_KUBE_CONTEXT", client.name())
        .env("STANDIN_TARGET_NAMESPACE", &stage.namespace)
        .stdin(Stdio::null());
    Ok(standin)
}

/// `standin exec` for a target, without the program yet.
pub(crate) fn exec_for(story: &Story<'_>, stage: &Stage, target: &str) -> Result<Command> {
    let mut standin = standin_for(story, stage)?;
    standin.args(["exec", "-t", target]);
    Ok(standin)
}

/// Once for all stories.
pub(crate) fn load_agent_image(story: &Story<'_>) -> Result<()> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    let load = || story.world()?.load_image(&agent_image()?);
    LOADED
        .get_or_init(|| load().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|error| anyhow!(error))
}

/// The archive with the image of agents, and of operators.
pub(crate) fn agent_image() -> Result<PathBuf> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let make = || -> Result<PathBuf> {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../image");
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let progress = Progress::to_stderr();
        let program = standind::build(&repository, &target, Profile::Dev, &progress)?;
        let image = standind::image(standind::REFERENCE, &program);
        let archive = image.write_cached(&Paths::from_environment().images())?;
        Ok(archive.path().to_owned())
    };
    MADE.get_or_init(|| make().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|error| anyhow!(error))
}
