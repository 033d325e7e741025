//! What stories of sessions share: the programs of this repository, and those that stand in.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Result, anyhow};
use e2e::machine::Programs;
use e2e::{Stage, Story, environment};
use lab::standind::{self, Profile};
use lab::{Paths, Progress};

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

/// `standin`, for the cluster of a stage. Its agents have the image of this repository, which is loaded once.
pub(crate) fn standin_for(story: &Story<'_>, stage: &Stage) -> Result<Command> {
    load_agent_image(story)?;
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
    let load = || -> Result<()> {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../image");
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let progress = Progress::to_stderr();
        let program = standind::build(&repository, &target, Profile::Dev, &progress)?;
        let image = standind::image(standind::REFERENCE, &program);
        let archive = image.write_cached(&Paths::from_environment().images())?;
        story.world()?.load_image(archive.path())
    };
    LOADED
        .get_or_init(|| load().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|error| anyhow!(error))
}
