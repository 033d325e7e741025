//! The workflows of a release: in which order their jobs run, and what the scripts of their steps do, with real
//! repositories and real Helm, and fakes for programs that would reach external services.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::rendering::{chart, helm, read, root, words};

/// The workflows of this repository and of the repository of charts.
fn all_workflows() -> Vec<String> {
    let mut paths = Vec::new();
    for folder in [".github/workflows", "charts/.github/workflows"] {
        let entries = fs::read_dir(root().join(folder)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        paths.extend(names.map(|name| format!("{folder}/{}", name.to_str().unwrap())));
    }
    assert!(paths.len() >= 8, "{paths:?}");
    paths
}

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
        if let Err(output) = self.try_run(folder, script, variables) {
            panic!("{script}\n{output}");
        }
    }

    /// The output of a script that has failed is its error.
    fn try_run(
        &self,
        folder: &Path,
        script: &str,
        variables: &[(String, String)],
    ) -> Result<(), String> {
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
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match finished.status.success() {
            true => Ok(()),
            false => Err(text(&finished.stdout) + &text(&finished.stderr)),
        }
    }

    fn git(&self, folder: &Path, arguments: &str) {
        let identity = "-c user.name=Anna -c user.email=a@example.com";
        self.run(folder, &format!("git {identity} {arguments}"), &[]);
    }
}

#[test]
fn a_version_is_public_only_when_everything_of_it_can_be_pulled() {
    let release = workflow(".github/workflows/release.yml");
    let jobs = &release["jobs"];
    for (job, needs) in [
        ("programs", json!("check")),
        ("image", json!("programs")),
        ("publish", json!("image")),
        ("charts", json!(["image", "publish"])),
        ("available", json!("charts")),
        ("latest", json!("available")),
    ] {
        assert_eq!(jobs[job]["needs"], needs, "{job}");
        // A job with a condition of its own may run although what it needs has failed.
        assert_eq!(jobs[job].get("if"), None, "{job}");
    }
    assert_eq!(jobs["programs"]["uses"], "./.github/workflows/packages.yml");
    assert_eq!(
        jobs["charts"]["uses"],
        "./.github/workflows/charts-release.yml"
    );
    // The release commit is found in the history of the main branch.
    assert_eq!(jobs["check"]["steps"][0]["with"]["fetch-depth"], 0);
    let text = read(".github/workflows/charts-release.yml");
    let charts = workflow(".github/workflows/charts-release.yml");
    let steps = charts["jobs"]["push"]["steps"].as_array().unwrap();
    assert_eq!(steps[0]["with"]["ref"], "refs/tags/${{ inputs.version }}");
    assert_eq!(steps[0]["with"]["fetch-depth"], 0);
    let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("no {words}"));
    assert!(at("release check --tag") < at("release push-charts"));
    assert!(at("docker manifest inspect") < at("release push-charts"));
    assert!(charts["on"]["workflow_dispatch"].is_object() || text.contains("workflow_dispatch:"));
}

/// A release is begun by tags that are versions, and by no others.
#[test]
fn tags_that_are_versions_begin_a_release() {
    for path in [
        ".github/workflows/release.yml",
        "charts/.github/workflows/release.yml",
    ] {
        let on = &workflow(path)["on"];
        let tags = ["[0-9]+.[0-9]+.[0-9]+", "[0-9]+.[0-9]+.[0-9]+-*"];
        assert_eq!(on["push"], json!({ "tags": tags }), "{path}");
    }
}

#[test]
fn jobs_of_a_pull_request_run_only_for_what_they_test() {
    let ci = workflow(".github/workflows/ci.yml");
    let jobs = &ci["jobs"];
    let is_needed = |output: &str| format!("needs.changes.outputs.{output} == 'true'");
    for (job, condition) in [
        ("changes", None),
        ("checks", None),
        (
            "test",
            Some(format!("{} || {}", is_needed("code"), is_needed("charts"))),
        ),
        ("charts", Some(is_needed("charts"))),
        ("release", Some(is_needed("release"))),
        ("packages", Some(is_needed("release"))),
    ] {
        let found = jobs[job]["if"].as_str().map(str::to_owned);
        assert_eq!(found, condition, "{job}");
    }
    let changes = &jobs["changes"];
    for output in ["code", "charts", "release"] {
        let expected = format!("${{{{ steps.jobs.outputs.{output} }}}}");
        assert_eq!(changes["outputs"][output], expected);
    }
    assert_eq!(changes["steps"][0]["with"]["fetch-depth"], 0);
    assert_eq!(jobs["charts"]["uses"], "./.github/workflows/charts.yml");
    assert_eq!(jobs["packages"]["uses"], "./.github/workflows/packages.yml");
    assert_eq!(jobs["packages"]["needs"], json!(["changes", "release"]));
    for path in ["charts", "packages"] {
        let called = workflow(&format!(".github/workflows/{path}.yml"));
        let events = called["on"].as_object().unwrap();
        assert!(events.contains_key("workflow_call"), "{path}");
        assert!(!events.contains_key("pull_request"), "{path}");
    }
    let steps = |job: &Value| job["steps"].as_array().unwrap().clone();
    let has = |job: &Value, command: &str| steps(job).iter().any(|step| step["run"] == command);
    let charts = workflow(".github/workflows/charts.yml");
    let install = &charts["jobs"]["install"];
    assert!(has(install, "cargo xtask generate --check"));
    let release = &jobs["release"];
    assert!(has(release, "cargo xtask release check --release-commit"));
    let packages = workflow(".github/workflows/packages.yml");
    let package = &packages["jobs"]["package"];
    assert!(has(
        package,
        "cargo xtask release package --output packages"
    ));
}

/// The label decides, so the job runs again when labels change.
#[test]
fn a_pull_request_needs_a_changelog_fragment_or_a_label() {
    let changelog = workflow(".github/workflows/changelog.yml");
    let types = words(&changelog["on"]["pull_request"]["types"]);
    for needed in ["opened", "synchronize", "labeled", "unlabeled"] {
        assert!(types.iter().any(|event| event == needed), "{needed}");
    }
    let steps = changelog["jobs"]["fragment"]["steps"].as_array().unwrap();
    assert_eq!(steps[0]["with"]["fetch-depth"], 0);
    let command = r#"cargo xtask changes fragment --base "$BASE" --labels "$LABELS""#;
    let step = steps.iter().find(|step| step["run"] == command).unwrap();
    let labels = "${{ toJSON(github.event.pull_request.labels.*.name) }}";
    assert_eq!(step["env"]["LABELS"], labels);
}

/// The workflow has rights in the repository of charts, so it must not run anything of the pull request.
#[test]
fn the_repository_of_charts_refuses_pull_requests() {
    let workflow = workflow("charts/.github/workflows/pull-requests.yml");
    let events = workflow["on"].as_object().unwrap();
    assert_eq!(events.keys().collect::<Vec<_>>(), ["pull_request_target"]);
    assert_eq!(workflow["permissions"], json!({"pull-requests": "write"}));
    let steps = workflow["jobs"]["refuse"]["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 1);
    let machine = Machine::new();
    machine.fake_program("gh", "");
    let (script, mut variables) = step(&workflow, "refuse", "Close with a comment");
    variables.push(("NUMBER".to_owned(), "7".to_owned()));
    machine.run(&machine.path("work"), &script, &variables);
    let calls = machine.calls();
    let [call] = calls.as_slice() else {
        panic!("{calls:?}");
    };
    let text = call.strip_prefix("gh pr close 7 --comment ").unwrap();
    let repository = "https://github.com/standin/standin";
    assert!(text.contains(repository), "{text}");
    assert!(read("charts/README.md").contains(repository));
}

/// Input of the user who starts a workflow must never be executed as shell.
#[test]
fn no_input_is_a_part_of_a_script() {
    for path in all_workflows() {
        for (name, job) in workflow(&path)["jobs"].as_object().unwrap() {
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
fn each_image_of_all_machines_has_one_name() {
    let machine = Machine::new();
    machine.fake_program("cargo", "echo \"a.b/$4:1.2.3\"");
    machine.fake_program("docker", "");
    let work = machine.path("work");
    for (folder, kind) in [("packages-1", "x86_64"), ("packages-2", "aarch64")] {
        let folder = work.join("packages").join(folder);
        fs::create_dir_all(&folder).unwrap();
        for image in ["standind", "standind-hub"] {
            fs::write(folder.join(format!("{image}-1.2.3-linux-{kind}.tar")), "").unwrap();
        }
    }
    let (script, variables) = step(
        &workflow(".github/workflows/release.yml"),
        "image",
        "Push the images",
    );
    machine.run(&work, &script, &variables);
    let calls = machine.calls();
    let pushed: Vec<&String> = calls.iter().filter(|call| call.contains("push")).collect();
    assert_eq!(
        pushed,
        [
            "docker push a.b/standind:1.2.3-x86_64",
            "docker push a.b/standind:1.2.3-aarch64",
            "docker manifest push a.b/standind:1.2.3",
            "docker push a.b/standind-hub:1.2.3-x86_64",
            "docker push a.b/standind-hub:1.2.3-aarch64",
            "docker manifest push a.b/standind-hub:1.2.3"
        ]
    );
    for name in ["a.b/standind:1.2.3", "a.b/standind-hub:1.2.3"] {
        let joined = format!("docker manifest create {name} {name}-x86_64 {name}-aarch64");
        assert!(calls.contains(&joined), "{calls:?}");
    }
}

#[test]
fn a_release_is_hidden_until_it_is_complete() {
    let hidden = "gh release edit 1.2.3 --prerelease";
    let created = "gh release create 1.2.3 --verify-tag --draft --title 1.2.3 --notes-file downloads/notes/notes.md";
    for (exists, expected) in [("exit 0", hidden), ("[ \"$2\" != view ]", created)] {
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
        let upload =
            "gh release upload 1.2.3 files/SHA256SUMS files/one.tgz files/two.tgz --clobber";
        assert_eq!(machine.calls(), ["gh release view 1.2.3", expected, upload]);
        let sums = fs::read_to_string(work.join("files/SHA256SUMS")).unwrap();
        assert_eq!(sums.lines().count(), 2, "{sums}");
    }
}

#[test]
fn only_a_final_version_becomes_the_latest() {
    for (version, expected) in [
        ("1.2.3", "--draft=false --prerelease=false --latest"),
        ("1.2.3-rc.1", "--draft=false --prerelease"),
    ] {
        let machine = Machine::new();
        machine.fake_program("gh", "");
        let release = workflow(".github/workflows/release.yml");
        let (script, mut variables) = step(&release, "latest", "Publish the notes");
        variables.push(("GITHUB_REF_NAME".to_owned(), version.to_owned()));
        machine.run(&machine.path("work"), &script, &variables);
        let call = format!("gh release edit {version} {expected}");
        assert_eq!(machine.calls(), [call]);
    }
}

#[test]
fn the_published_images_are_pulled_for_every_machine() {
    let machine = Machine::new();
    machine.fake_program("cargo", "echo \"a.b/$4:1.2.3\"");
    machine.fake_program("docker", "");
    let release = workflow(".github/workflows/release.yml");
    let (script, variables) = step(&release, "available", "Pull the images");
    machine.run(&machine.path("work"), &script, &variables);
    let calls = machine.calls();
    let pulls = calls.iter().filter(|call| call.starts_with("docker"));
    assert_eq!(
        pulls.collect::<Vec<_>>(),
        [
            "docker pull --platform linux/amd64 a.b/standind:1.2.3",
            "docker pull --platform linux/arm64 a.b/standind:1.2.3",
            "docker pull --platform linux/amd64 a.b/standind-hub:1.2.3",
            "docker pull --platform linux/arm64 a.b/standind-hub:1.2.3"
        ]
    );
}

/// A chart that is not there yet is waited for; one with other content fails the job.
#[test]
fn the_published_charts_are_those_of_the_release_commit() {
    let release = workflow(".github/workflows/release.yml");
    let name = "Pull the charts, and compare them with this commit";
    let (script, variables) = step(&release, "available", name);
    // The third attempt finds the chart.
    let pull = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n; [ $n -ge 2 ] || exit 1\n\
        mkdir -p pulled; cp -r published pulled/operator";
    for (published, is_right) in [("a: 1\n", true), ("a: 2\n", false)] {
        let machine = Machine::new();
        machine.fake_program("cargo", "echo https://charts.example.com");
        machine.fake_program("sleep", "");
        machine.fake_program("helm", pull);
        let work = machine.path("work");
        for (folder, values, chart) in [
            ("charts/operator", "a: 1\n", "version: 1.2.3\n"),
            ("published", published, "# Helm's form\nversion: 1.2.3\n"),
        ] {
            fs::create_dir_all(work.join(folder)).unwrap();
            fs::write(work.join(folder).join("values.yaml"), values).unwrap();
            fs::write(work.join(folder).join("Chart.yaml"), chart).unwrap();
        }
        assert_eq!(
            machine.try_run(&work, &script, &variables).is_ok(),
            is_right
        );
        let calls = machine.calls();
        let pulls = calls.iter().filter(|call| call.starts_with("helm"));
        let expected = "helm pull operator --repo https://charts.example.com --version 1.2.3 --untar --untardir pulled";
        assert_eq!(pulls.collect::<Vec<_>>(), [expected; 3]);
    }
}
