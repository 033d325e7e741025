//! The workflows of a release: in which order their jobs run, and what the scripts of their steps do, with real
//! repositories and real Helm, and fakes for programs that would reach external services.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::rendering::{chart, helm, read, words};

fn workflow(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).unwrap()
}

/// The shell of a step, and the variables that it is given where these are plain text.
fn step(workflow: &Value, job: &str, name: &str) -> (String, Vec<(String, String)>) {
    let steps = workflow["jobs"][job]["steps"].as_array().unwrap();
    let step = steps.iter().find(|step| step["name"] == name);
    let step = step.unwrap_or_else(|| panic!("{job} has no step {name:?}"));
    let variables = step["env"].as_object().into_iter().flatten();
    let plain = variables
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .filter(|(_, value)| !value.contains("${{"))
        .collect();
    (step["run"].as_str().unwrap().to_owned(), plain)
}

/// A machine as in a workflow: without git settings of a user, and with fake programs first on `PATH`.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bin", "home", "work"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Machine { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates a fake program that logs its calls and runs a script.
    fn fake_program(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        let log = self.path("calls");
        let text = format!(
            "#!/bin/sh\necho \"{name} $*\" >> {}\n{script}\n",
            log.display()
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn run(&self, folder: &Path, script: &str, variables: &[(String, String)]) {
        let mut command = Command::new("bash");
        let search = std::env::var("PATH").unwrap();
        command
            .args(["--noprofile", "--norc", "-eo", "pipefail", "-c", script])
            .current_dir(folder)
            .env("PATH", format!("{}:{search}", self.path("bin").display()))
            .env("HOME", self.path("home"))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GITHUB_REF_NAME", "1.2.3")
            .envs(variables.iter().cloned());
        let finished = command.output().unwrap();
        assert!(
            finished.status.success(),
            "{script}\n{}{}",
            String::from_utf8_lossy(&finished.stdout),
            String::from_utf8_lossy(&finished.stderr)
        );
    }

    fn git(&self, folder: &Path, arguments: &str) {
        let identity = "-c user.name=Anna -c user.email=a@example.com";
        self.run(folder, &format!("git {identity} {arguments}"), &[]);
    }
}

#[test]
fn charts_are_released_only_after_their_image_and_the_programs() {
    let release = workflow(".github/workflows/release.yml");
    let jobs = &release["jobs"];
    for (job, needs) in [
        ("programs", json!("check")),
        ("image", json!("programs")),
        ("publish", json!("image")),
        ("charts", json!(["image", "publish"])),
    ] {
        assert_eq!(jobs[job]["needs"], needs, "{job}");
        // A job with a condition of its own may run although what it needs has failed.
        assert_eq!(jobs[job].get("if"), None, "{job}");
    }
    assert_eq!(
        jobs["charts"]["uses"],
        "./.github/workflows/charts-release.yml"
    );
    let text = read(".github/workflows/charts-release.yml");
    let charts = workflow(".github/workflows/charts-release.yml");
    let steps = charts["jobs"]["push"]["steps"].as_array().unwrap();
    assert_eq!(steps[0]["with"]["ref"], "refs/tags/${{ inputs.version }}");
    let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("no {words}"));
    assert!(at("docker manifest inspect") < at("release push-charts"));
    assert!(charts["on"]["workflow_dispatch"].is_object() || text.contains("workflow_dispatch:"));
}

/// The folders of a crate and of its dependencies in this workspace.
fn folders_of(folder: &str) -> BTreeSet<String> {
    let manifest: toml::Value = toml::from_str(&read(&format!("{folder}/Cargo.toml"))).unwrap();
    let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
    let ours = dependencies
        .into_iter()
        .flat_map(toml::Table::values)
        .filter_map(|dependency| dependency.get("path")?.as_str()?.strip_prefix("../"));
    let below = ours.flat_map(|name| folders_of(&format!("crates/{name}")));
    below.chain([folder.to_owned()]).collect()
}

#[test]
fn the_chart_is_tried_whenever_what_it_is_made_of_changes() {
    let charts = workflow(".github/workflows/charts.yml");
    let paths = words(&charts["on"]["pull_request"]["paths"]);
    let mut needed = folders_of("crates/server");
    assert!(needed.contains("crates/splitter"), "{needed:?}");
    needed.extend(["charts", "xtask", "proto"].map(str::to_owned));
    let mut expected: BTreeSet<String> = needed.iter().map(|it| format!("{it}/**")).collect();
    expected.extend(
        [
            "Cargo.toml",
            "Cargo.lock",
            "rust-toolchain.toml",
            ".ci/chart",
        ]
        .map(str::to_owned),
    );
    expected.insert(".github/workflows/charts.yml".to_owned());
    assert_eq!(paths.into_iter().collect::<BTreeSet<_>>(), expected);
    let steps = charts["jobs"]["install"]["steps"].as_array().unwrap();
    let checks = |step: &Value| step["run"] == "cargo xtask generate --check";
    assert!(steps.iter().any(checks), "generated files are not compared");
}

/// Input of the user who starts a workflow must never be executed as shell.
#[test]
fn no_input_is_a_part_of_a_script() {
    for path in [
        ".github/workflows/charts-release.yml",
        ".github/workflows/charts.yml",
        ".github/workflows/release.yml",
        "charts/.github/workflows/release.yml",
    ] {
        for (name, job) in workflow(path)["jobs"].as_object().unwrap() {
            for step in job["steps"].as_array().into_iter().flatten() {
                let script = step["run"].as_str().unwrap_or_default();
                for part in ["${{ inputs", "${{ github", "${{ secrets"] {
                    assert!(!script.contains(part), "{path}: {name}: {script}");
                }
            }
        }
    }
}

#[test]
fn the_repository_of_charts_makes_an_index_that_grows() {
    let machine = Machine::new();
    std::os::unix::fs::symlink(helm(), machine.path("bin/helm")).unwrap();
    let bare = machine.path("charts.git");
    machine.git(
        &machine.path("work"),
        &format!("init --quiet --bare -b main {}", bare.display()),
    );
    let clone = machine.path("clone");
    machine.git(
        &machine.path("work"),
        &format!("clone --quiet {} {}", bare.display(), clone.display()),
    );
    let workflow = workflow("charts/.github/workflows/release.yml");
    let (script, mut variables) = step(&workflow, "packages", "Add the packages to the index");
    variables.push(("URL".to_owned(), "https://example.com/charts".to_owned()));

    let copy = format!("cp -r {} standin-operator", chart().display());
    let at = |version: &str| {
        format!("sed -i 's/^version: .*/version: {version}/' standin-operator/Chart.yaml")
    };
    let mut pages = Vec::new();
    for (version, change) in [
        ("1.2.3", format!("{copy}; {}", at("1.2.3"))),
        ("1.2.4", at("1.2.4")),
    ] {
        machine.run(&clone, &change, &[]);
        machine.git(&clone, "add standin-operator");
        machine.git(&clone, &format!("commit --quiet -m {version}"));
        // Each run of a workflow has a clone of its own, and the second run of the same version changes nothing.
        for _ in 0..2 {
            machine.run(&clone, &script, &variables);
            machine.run(
                &clone,
                "git worktree remove --force pages && git branch -D gh-pages",
                &[],
            );
        }
        let published = machine.path(&format!("published-{version}"));
        let from = format!(
            "clone --quiet -b gh-pages {} {}",
            bare.display(),
            published.display()
        );
        machine.git(&machine.path("work"), &from);
        pages.push(published);
    }
    let first = fs::read(pages[0].join("standin-operator-1.2.3.tgz")).unwrap();
    let still = fs::read(pages[1].join("standin-operator-1.2.3.tgz")).unwrap();
    assert!(first == still, "a published package has changed");
    let index: Value =
        serde_saphyr::from_str(&fs::read_to_string(pages[1].join("index.yaml")).unwrap()).unwrap();
    let entries = index["entries"]["standin-operator"].as_array().unwrap();
    let urls: Vec<Vec<String>> = entries.iter().map(|entry| words(&entry["urls"])).collect();
    assert_eq!(
        urls.concat(),
        [
            "https://example.com/charts/standin-operator-1.2.4.tgz",
            "https://example.com/charts/standin-operator-1.2.3.tgz"
        ]
    );
}

#[test]
fn the_image_of_all_machines_has_one_name() {
    let machine = Machine::new();
    machine.fake_program("cargo", "echo a.b/c:1.2.3");
    machine.fake_program("docker", "");
    let work = machine.path("work");
    for (folder, kind) in [("packages-1", "x86_64"), ("packages-2", "aarch64")] {
        let folder = work.join("packages").join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("standind-1.2.3-linux-{kind}.tar")), "").unwrap();
    }
    let (script, variables) = step(
        &workflow(".github/workflows/release.yml"),
        "image",
        "Push the image",
    );
    machine.run(&work, &script, &variables);
    let calls = machine.calls();
    let pushed: Vec<&String> = calls.iter().filter(|call| call.contains("push")).collect();
    assert_eq!(
        pushed,
        [
            "docker push a.b/c:1.2.3-x86_64",
            "docker push a.b/c:1.2.3-aarch64",
            "docker manifest push a.b/c:1.2.3"
        ]
    );
    let joined = "docker manifest create a.b/c:1.2.3 a.b/c:1.2.3-x86_64 a.b/c:1.2.3-aarch64";
    assert!(calls.iter().any(|call| call == joined), "{calls:?}");
}

#[test]
fn an_existing_release_is_completed() {
    for (exists, created) in [("exit 0", 0), ("[ \"$2\" != view ]", 1)] {
        let machine = Machine::new();
        machine.fake_program("gh", exists);
        let work = machine.path("work");
        for (folder, name) in [
            ("notes", "notes.md"),
            ("packages-1", "one.tgz"),
            ("packages-1", "SHA256SUMS"),
            ("packages-2", "two.tgz"),
            ("packages-2", "SHA256SUMS"),
        ] {
            let folder = work.join("downloads").join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(name), "").unwrap();
        }
        let name = "Create the release, or complete an existing one";
        let (script, variables) = step(&workflow(".github/workflows/release.yml"), "publish", name);
        machine.run(&work, &script, &variables);
        let calls = machine.calls();
        let creations = calls
            .iter()
            .filter(|call| call.starts_with("gh release create 1.2.3"));
        assert_eq!(creations.count(), created, "{calls:?}");
        let upload =
            "gh release upload 1.2.3 files/SHA256SUMS files/one.tgz files/two.tgz --clobber";
        assert_eq!(calls.last().map(String::as_str), Some(upload), "{calls:?}");
        let sums = fs::read_to_string(work.join("files/SHA256SUMS")).unwrap();
        assert_eq!(sums.lines().count(), 2, "{sums}");
    }
}
