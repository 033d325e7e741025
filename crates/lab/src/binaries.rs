//! Kubernetes, etcd, CoreDNS and Helm, built from one pinned Go module and cached by the hash of their sources.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest as _, Sha256};

use crate::command::run;
use crate::error::{Error, ErrorContext as _, Result};
use crate::paths::Paths;
use crate::progress::Progress;

/// The sources, embedded so that they need not be found at run time.
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

/// Strips symbols, which halves the size.
const LINKER_FLAGS: [&str; 2] = ["-s", "-w"];

/// The names under which the multi-call program `hyper` is started.
const APPLETS: [&str; 7] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
];

/// A folder with all programs that the lab builds itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    directory: PathBuf,
}

impl Binaries {
    /// The programs, if they are already built.
    pub fn find(paths: &Paths) -> Option<Self> {
        let directory = paths.binaries().join(key());
        directory.is_dir().then_some(Binaries { directory })
    }

    /// The programs, which are built first if necessary.
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
                .with_context(|| format!("write {}", file.display()))?;
        }
        let result = build(&sources, &unfinished, &version);
        let _ = fs::remove_dir_all(&sources);
        if let Err(error) = result {
            let _ = fs::remove_dir_all(&unfinished);
            return Err(error);
        }
        for applet in APPLETS {
            symlink("hyper", unfinished.join(applet)).with_context(|| format!("link {applet}"))?;
        }
        if let Err(error) = fs::rename(&unfinished, &directory) {
            let _ = fs::remove_dir_all(&unfinished);
            // Another process may have built them at the same time; its result is identical.
            if !directory.is_dir() {
                return Err(error).with_context(|| format!("rename to {}", directory.display()));
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

/// Checks that Go can fetch the Kubernetes module, from its cache or from the module proxy.
pub(crate) fn check_modules() -> Result<(), String> {
    let module = format!("k8s.io/kubernetes@v{}", kubernetes_version());
    let mut command = Command::new("go");
    // Outside of any module, so that no other module affects the result.
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

/// Removes the folders of killed builds, and all complete ones except the newest, which a running lab may use.
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

/// A hash of everything that determines the programs.
fn key() -> String {
    let mut hash = Sha256::new();
    for (name, text) in SOURCES {
        hash.update(name);
        hash.update([0]);
        hash.update(text);
        hash.update([0]);
    }
    for word in PACKAGES.iter().chain(&APPLETS).chain(&LINKER_FLAGS) {
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
    fn only_the_newest_old_build_is_kept() {
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
