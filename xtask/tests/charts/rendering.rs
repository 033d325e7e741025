//! Runs Helm: the machine's own, or the lab's, which is built when it is missing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use lab::binaries::Binaries;
use lab::{Paths, Progress};
use serde_json::Value;

/// The oldest version of Kubernetes that the chart supports.
const KUBERNETES: &str = "1.30.0";

pub(crate) const OPERATOR: &str = "standin-operator";
pub(crate) const HUB: &str = "standin-hub";
pub(crate) const TUNNEL_AGENT: &str = "standin-tunnel-agent";

/// The values without which an agent cannot be installed.
const REQUIRED: &[(&str, &[&str])] = &[(
    TUNNEL_AGENT,
    &["agent.cluster=prod-eu", "agent.serverURL=wss://hub:8443"],
)];

/// The top of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(crate) fn chart() -> PathBuf {
    chart_of(OPERATOR)
}

fn chart_of(name: &str) -> PathBuf {
    root().join("charts").join(name)
}

pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// Renders the chart with some settings: `--set` for each, or `--set-json` where a value is JSON.
pub(crate) fn template(settings: &[&str]) -> Result<String, String> {
    template_of(OPERATOR, settings)
}

/// Renders any of the charts.
pub(crate) fn template_of(chart: &str, settings: &[&str]) -> Result<String, String> {
    template_in(chart, "tools", settings)
}

fn template_in(chart: &str, namespace: &str, settings: &[&str]) -> Result<String, String> {
    let mut command = Command::new(helm());
    command
        .args(["template", "standin"])
        .arg(chart_of(chart))
        .args(["--namespace", namespace, "--kube-version", KUBERNETES]);
    let required = REQUIRED.iter().find(|(name, _)| *name == chart);
    let required = required.map_or(&[][..], |(_, required)| *required);
    for setting in required.iter().chain(settings) {
        let is_json = setting.contains('"');
        command.args([if is_json { "--set-json" } else { "--set" }, setting]);
    }
    let finished = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match finished.status.success() {
        true => Ok(text(&finished.stdout)),
        false => Err(text(&finished.stderr)),
    }
}

/// The objects that the chart makes with some settings.
pub(crate) fn objects(settings: &[&str]) -> Vec<Value> {
    in_namespace("tools", settings)
}

/// The objects of any of the charts.
pub(crate) fn objects_of(chart: &str, settings: &[&str]) -> Vec<Value> {
    parse(&template_of(chart, settings).unwrap())
}

/// The objects of a release in another namespace.
pub(crate) fn in_namespace(namespace: &str, settings: &[&str]) -> Vec<Value> {
    parse(&template_in(OPERATOR, namespace, settings).unwrap())
}

fn parse(text: &str) -> Vec<Value> {
    text.split("\n---\n")
        .map(|document| serde_saphyr::from_str::<Value>(document).unwrap())
        .filter(Value::is_object)
        .collect()
}

/// The object of a kind and name, if the chart makes it.
pub(crate) fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> Option<&'a Value> {
    objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
}

/// The words of a list.
pub(crate) fn words(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.map(|word| word.as_str().unwrap_or_default().to_owned())
        .collect()
}

pub(crate) fn helm() -> &'static Path {
    static HELM: OnceLock<PathBuf> = OnceLock::new();
    HELM.get_or_init(|| {
        let search = std::env::var_os("PATH").unwrap_or_default();
        let own = std::env::split_paths(&search).map(|folder| folder.join("helm"));
        own.into_iter()
            .find(|helm| helm.is_file())
            .unwrap_or_else(|| {
                let paths = Paths::from_environment();
                let binaries = Binaries::ensure(&paths, &Progress::to_stderr()).unwrap();
                binaries.program("helm")
            })
    })
}
