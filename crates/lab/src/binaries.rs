//! Kubernetes, etcd, CoreDNS and Helm, built from one pinned Go module and kept by the hash of what they are built
//! from.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest as _, Sha256};

use crate::command::run;
use crate::error::{Doing as _, Error, Result};
use crate::paths::Paths;
use crate::progress::Progress;

/// The sources, part of this program so that they need not be found.
const SOURCES: [(&str, &str); 5] = [
    ("go.mod", include_str!("../kubernetes/go.mod")),
    ("go.sum", include_str!("../kubernetes/go.sum")),
    ("tools.go", include_str!("../kubernetes/tools.go")),
    ("hyper/main.go", include_str!("../kubernetes/hyper/main.go")),
    (
        "coredns/main.go",
        include_str!("../kubernetes/coredns/main.go"),
    ),
];

const PACKAGES: [&str; 3] = ["./hyper", "./coredns", "helm.sh/helm/v3/cmd/helm"];

/// Without symbols: half the size.
const LINKER_FLAGS: [&str; 2] = ["-s", "-w"];

/// The names under which the multi-call program `hyper` is started.
const CALLS: [&str; 7] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
];

/// A folder with every program that the lab brings itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    directory: PathBuf,
}

impl Binaries {
    /// The programs, when they are already built.
    pub fn find(paths: &Paths) -> Option<Self> {
        let directory = paths.binaries().join(key());
        directory.is_dir().then_some(Binaries { directory })
    }

    /// The programs; builds them first when need be.
    pub fn ensure(paths: &Paths, progress: &Progress) -> Result<Self> {
        if let Some(found) = Binaries::find(paths) {
            return Ok(found);
        }
        let version = kubernetes_version();
        progress.step(format!(
            "building Kubernetes {version}, etcd, CoreDNS and Helm from Go modules; once, about 8 minutes on 2 cores"
        ));
        let directory = paths.binaries().join(key());
        remove_old(&paths.binaries());
        let unfinished = paths
            .binaries()
            .join(format!("{}.{}", key(), std::process::id()));
        let sources = unfinished.join("source");
        for (name, text) in SOURCES {
            let file = sources.join(name);
            let folder = file.parent().unwrap_or(&sources);
            fs::create_dir_all(folder)
                .and_then(|()| fs::write(&file, text))
                .doing(|| format!("write {}", file.display()))?;
        }
        let result = build(&sources, &unfinished, &version);
        let _ = fs::remove_dir_all(&sources);
        if let Err(error) = result {
            let _ = fs::remove_dir_all(&unfinished);
            return Err(error);
        }
        for call in CALLS {
            symlink("hyper", unfinished.join(call)).doing(|| format!("link {call}"))?;
        }
        if let Err(error) = fs::rename(&unfinished, &directory) {
            let _ = fs::remove_dir_all(&unfinished);
            // Another process may have been faster; its result is as good.
            if !directory.is_dir() {
                return Err(error).doing(|| format!("rename to {}", directory.display()));
            }
        }
        progress.step("Kubernetes is built");
        Ok(Binaries { directory })
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn program(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// The version of Kubernetes in the pinned module.
pub fn kubernetes_version() -> String {
    SOURCES[0]
        .1
        .lines()
        .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes v"))
        .unwrap_or("unknown")
        .to_owned()
}

/// Asks Go's module proxy for the one module that everything else comes with. Go's cache answers when it can.
pub(crate) fn check_modules() -> Result<(), String> {
    let module = format!("k8s.io/kubernetes@v{}", kubernetes_version());
    let mut command = Command::new("go");
    // Outside of any module, so that nothing but the question matters.
    command
        .current_dir("/")
        .env("GOFLAGS", "-mod=mod")
        .args(["list", "-m", &module]);
    match run(&mut command) {
        Ok(_) => Ok(()),
        Err(Error::Command { output, .. }) => Err(output),
        Err(error) => Err(error.to_string()),
    }
}

fn build(sources: &Path, output: &Path, version: &str) -> Result<()> {
    let component = "k8s.io/component-base/version";
    let client = "k8s.io/client-go/pkg/version";
    let mut numbers = version.split('.');
    let (major, minor) = (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    );
    let mut flags = LINKER_FLAGS.join(" ");
    for module in [component, client] {
        flags += &format!(
            " -X {module}.gitVersion=v{version} -X {module}.gitMajor={major} -X {module}.gitMinor={minor}"
        );
    }
    run(Command::new("go")
        .current_dir(sources)
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .env("GOFLAGS", "-buildvcs=false -mod=readonly")
        .args(["build", "-trimpath", "-ldflags", &flags, "-o"])
        .arg(format!("{}/", output.display()))
        .args(PACKAGES))
    .map(drop)
}

/// Removes what builds that were killed have left, and all but the newest of the others, which a lab may be running.
fn remove_old(folder: &Path) {
    let mut complete = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        match name.split_once('.') {
            Some((_, builder)) if !Path::new("/proc").join(builder).exists() => {
                let _ = fs::remove_dir_all(entry.path());
            }
            Some(_) => {}
            None => complete.push((
                entry.metadata().and_then(|data| data.modified()).ok(),
                entry.path(),
            )),
        }
    }
    complete.sort();
    complete.pop();
    for (_, old) in complete {
        let _ = fs::remove_dir_all(old);
    }
}

/// Changes with everything that changes the programs.
fn key() -> String {
    let mut hash = Sha256::new();
    for (name, text) in SOURCES {
        hash.update(name);
        hash.update([0]);
        hash.update(text);
        hash.update([0]);
    }
    for word in PACKAGES.iter().chain(&CALLS).chain(&LINKER_FLAGS) {
        hash.update(word);
        hash.update([0]);
    }
    hash.finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_comes_from_the_pinned_module() {
        assert!(
            kubernetes_version().starts_with("1."),
            "{}",
            kubernetes_version()
        );
    }

    #[test]
    fn of_old_builds_only_the_newest_stays() {
        let folder = tempfile::tempdir().unwrap();
        for (name, age) in [("aaaa", 3), ("bbbb", 1), ("cccc", 2), ("dddd.999999999", 0)] {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            let time = std::time::SystemTime::now() - std::time::Duration::from_secs(age);
            fs::File::open(&path).unwrap().set_modified(time).unwrap();
        }
        remove_old(folder.path());
        let left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["bbbb"]);
    }

    #[test]
    fn programs_that_are_not_built_are_not_found() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Binaries::find(&Paths::at(folder.path())), None);
    }
}
