//! Compiles everything that the tests run, once: every crate with one set of features, for one target.
//!
//! Cargo compiles a crate again whenever the set of selected packages changes the features of its dependencies. So there
//! is one build of the whole workspace, and all phases take their programs from it: tests as the caller, tests as root,
//! the tests on clusters, and the images. The programs are static, so that an image needs no other file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{process, workspace};

/// Programs that images are made of. They are stripped: a debug build is ten times as large as what runs.
const IMAGE_PROGRAMS: [&str; 4] = [
    "standind",
    "standind-operator",
    "standind-hub",
    "standind-tunnel-agent",
];

/// What was compiled.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) tests: Vec<TestExecutable>,
    /// The directory of `standin` and `standind`.
    pub(crate) programs: PathBuf,
    /// `standind` for images.
    pub(crate) image_program: PathBuf,
    /// The sample shop's Rust service, for its image.
    pub(crate) shop_checkout: PathBuf,
}

/// A program that contains tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestExecutable {
    /// The directory of its crate, which has the crate's name.
    pub(crate) package: String,
    /// The library, the program or the file under `tests` that it was made from.
    pub(crate) target: String,
    pub(crate) path: PathBuf,
    /// Where `cargo test` would run it.
    pub(crate) directory: PathBuf,
}

impl TestExecutable {
    /// `agent`, or `agent::incoming` for tests that are not part of the library.
    pub(crate) fn label(&self) -> String {
        if self.target == self.package {
            self.package.clone()
        } else {
            format!("{}::{}", self.package, self.target)
        }
    }
}

/// Compiles the workspace with all its tests.
pub(crate) fn build(root: &Path) -> Result<Built> {
    let target = workspace::target()?;
    let mut cargo = lab::cargo(root);
    cargo
        .env("RUSTFLAGS", lab::standind::STATIC_FLAGS)
        .args(["build", "--locked", "--workspace"])
        .args(["--lib", "--bins", "--tests"])
        .args(["--target", &lab::standind::host_triple()])
        .arg("--message-format=json-render-diagnostics");
    eprintln!("==> {}", process::shown(&cargo));
    let tests = test_executables(&process::output(&mut cargo)?);
    ensure!(!tests.is_empty(), "cargo built no test executable");
    let programs = target.join(lab::standind::host_triple()).join("debug");
    let image = target.join("image-programs");
    fs::create_dir_all(&image).with_context(|| format!("cannot make {}", image.display()))?;
    for program in IMAGE_PROGRAMS {
        strip(&programs.join(program), &image.join(program))?;
    }
    let shop_checkout = image.join("shop-checkout");
    strip(&programs.join("shop-checkout"), &shop_checkout)?;
    Ok(Built {
        tests,
        programs,
        image_program: image.join("standind"),
        shop_checkout,
    })
}

/// Writes the program without symbols. A file with the same content keeps its time, so that images are not made again.
fn strip(program: &Path, stripped: &Path) -> Result<()> {
    process::output(
        Command::new("strip")
            .args(["--strip-all", "-o"])
            .args([stripped, program]),
    )?;
    Ok(())
}

/// The test executables among the messages that cargo prints, one JSON object per line.
fn test_executables(build_messages: &str) -> Vec<TestExecutable> {
    build_messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| {
            message["reason"] == "compiler-artifact" && message["profile"]["test"] == true
        })
        .filter_map(|message| {
            let directory = Path::new(message["manifest_path"].as_str()?).parent()?;
            Some(TestExecutable {
                package: directory.file_name()?.to_string_lossy().into_owned(),
                target: message["target"]["name"].as_str()?.to_owned(),
                path: message["executable"].as_str()?.into(),
                directory: directory.to_owned(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_executables_are_run() {
        let messages = r#"
{"reason":"compiler-artifact","manifest_path":"/r/crates/lab/Cargo.toml","target":{"name":"lab"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/r/crates/cli/Cargo.toml","target":{"name":"standin"},"profile":{"test":false},"executable":"/t/standin"}
{"reason":"compiler-artifact","manifest_path":"/r/crates/lab/Cargo.toml","target":{"name":"lab"},"profile":{"test":true},"executable":"/t/deps/lab-1"}
{"reason":"compiler-artifact","manifest_path":"/r/crates/agent/Cargo.toml","target":{"name":"target"},"profile":{"test":true},"executable":"/t/deps/target-1"}
not json
{"reason":"build-finished","success":true}
"#;
        let found = test_executables(messages);
        let labels: Vec<String> = found.iter().map(TestExecutable::label).collect();
        assert_eq!(labels, ["lab", "agent::target"]);
        assert_eq!(found[1].path, Path::new("/t/deps/target-1"));
        assert_eq!(found[1].directory, Path::new("/r/crates/agent"));
    }
}
