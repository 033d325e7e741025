//! Root filesystems from the packages of the machine's own Debian or Ubuntu release.
//!
//! The packages are not installed: apt resolves them against an empty list of installed packages, in folders of our own,
//! and their files are unpacked into a folder. The machine's packages and apt's state are not changed; only the package
//! lists of the last `apt-get update` are read. Maintainer scripts do not run. The parts of their work that images need are
//! done here instead: the links of merged `/usr`, the alternatives, a few files in `/etc`.
//!
//! A root filesystem is identified by a hash over the exact packages and everything else that determines its files. As
//! long as the hash stays the same, the folder in the cache is reused.

mod packages;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use self::packages::{Package, Repository};
use crate::image::{Cache, Fingerprint, ImageError, output_of, pipe};

/// Incremented whenever the code below produces different files, so that caches do not keep the old ones.
const RECIPE_VERSION: u64 = 1;

/// The section of a [`Cache`] for root filesystems.
const ROOTS: &str = "roots";

/// Packages ship `/bin` either as a folder or as a link into `/usr`. The links are created before anything is unpacked, so
/// that the files of both kinds are in `/usr`.
const MERGED_USR_LINKS: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// Paths that no image of the lab needs, as patterns for tar in which `*` also matches `/`.
const EXCLUDED_PATHS: [&str; 31] = [
    "./boot",
    "./etc/apt",
    "./etc/cron.*",
    "./etc/init.d",
    "./etc/logrotate.d",
    "./etc/skel",
    "./etc/systemd",
    "./lib/systemd/*.d",
    "./lib/systemd/system",
    "./lib/udev",
    "./usr/games",
    "./usr/lib/*/gconv",
    "./usr/lib/systemd",
    "./usr/lib/udev",
    "./usr/share/applications",
    "./usr/share/apport",
    "./usr/share/bash-completion",
    "./usr/share/bug",
    "./usr/share/doc",
    "./usr/share/doc-base",
    "./usr/share/fish",
    "./usr/share/i18n",
    "./usr/share/info",
    "./usr/share/lintian",
    "./usr/share/locale",
    "./usr/share/man",
    "./usr/share/menu",
    "./usr/share/pixmaps",
    "./usr/share/zsh",
    "./var/cache",
    "./var/lib/dpkg",
];

/// Dependencies of packages whose only purpose is to be used by maintainer scripts.
const ONLY_FOR_MAINTAINER_SCRIPTS: [&str; 8] = [
    "adduser",
    "debconf",
    "debianutils",
    "dpkg",
    "init-system-helpers",
    "passwd",
    "sensible-utils",
    "tar",
];

/// Links that maintainer scripts create: to the first of the programs that exists, unless a package ships the name itself.
const ALTERNATIVES: [(&str, &[&str]); 12] = [
    ("usr/bin/awk", &["mawk", "gawk"]),
    ("usr/bin/nc", &["nc.openbsd", "nc.traditional"]),
    ("usr/bin/sh", &["dash", "bash"]),
    ("usr/bin/which", &["which.debianutils"]),
    ("usr/sbin/arptables", &["arptables-nft"]),
    ("usr/sbin/ebtables", &["ebtables-nft"]),
    ("usr/sbin/ip6tables", &["ip6tables-nft"]),
    ("usr/sbin/ip6tables-restore", &["ip6tables-nft-restore"]),
    ("usr/sbin/ip6tables-save", &["ip6tables-nft-save"]),
    ("usr/sbin/iptables", &["iptables-nft"]),
    ("usr/sbin/iptables-restore", &["iptables-nft-restore"]),
    ("usr/sbin/iptables-save", &["iptables-nft-save"]),
];

/// Enough for programs to look up users and to resolve host names.
const FILES_IN_ETC: [(&str, &str); 3] = [
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\n\
         postgres:x:999:999:postgres:/var/lib/postgresql:/bin/sh\n\
         app:x:1000:1000:app:/tmp:/bin/sh\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    (
        "etc/group",
        "root:x:0:\npostgres:x:999:\napp:x:1000:\nnogroup:x:65534:\n",
    ),
    (
        "etc/nsswitch.conf",
        "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    ),
];

const FOLDERS: [(&str, u32); 9] = [
    ("dev", 0o755),
    ("etc", 0o755),
    ("proc", 0o755),
    ("root", 0o700),
    ("run", 0o755),
    ("sys", 0o755),
    ("tmp", 0o1777),
    ("var", 0o755),
    ("var/tmp", 0o1777),
];

/// The description of a root filesystem.
#[derive(Debug, Clone)]
pub struct RootFilesystem {
    packages: Vec<String>,
    excluded_packages: Vec<String>,
    excluded_paths: Vec<String>,
    commands_inside: Vec<Vec<String>>,
}

/// A complete root filesystem, in a folder of the cache that must not be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltRootFilesystem {
    path: PathBuf,
    key: String,
}

impl BuiltRootFilesystem {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same key means the same files.
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl RootFilesystem {
    /// The packages with their dependencies, without recommended packages.
    pub fn new<Name: Into<String>>(packages: impl IntoIterator<Item = Name>) -> Self {
        Self {
            packages: packages.into_iter().map(Into::into).collect(),
            excluded_packages: ONLY_FOR_MAINTAINER_SCRIPTS.map(Into::into).to_vec(),
            excluded_paths: EXCLUDED_PATHS.map(Into::into).to_vec(),
            commands_inside: Vec::new(),
        }
    }

    /// Adds packages.
    pub fn and_packages<Name: Into<String>>(
        mut self,
        names: impl IntoIterator<Item = Name>,
    ) -> Self {
        self.packages.extend(names.into_iter().map(Into::into));
        self
    }

    /// Excludes dependencies that the image does not need. A `*` at the end of a name matches any ending.
    pub fn without_packages<Name: Into<String>>(
        mut self,
        names: impl IntoIterator<Item = Name>,
    ) -> Self {
        self.excluded_packages
            .extend(names.into_iter().map(Into::into));
        self
    }

    /// Excludes files and folders, by patterns such as `./usr/lib/*/gconv` in which `*` also matches `/`. They are
    /// compared with the paths as the packages have them, before `/bin` and `/lib` are merged into `/usr`.
    pub fn without_paths<Pattern: Into<String>>(
        mut self,
        patterns: impl IntoIterator<Item = Pattern>,
    ) -> Self {
        self.excluded_paths
            .extend(patterns.into_iter().map(Into::into));
        self
    }

    /// Runs a program of the root filesystem in a chroot, after everything else is complete. It has no `/proc` and no
    /// devices.
    pub fn run_inside<Word: Into<String>>(
        mut self,
        command: impl IntoIterator<Item = Word>,
    ) -> Self {
        self.commands_inside
            .push(command.into_iter().map(Into::into).collect());
        self
    }

    /// The folder in the cache. It is built if it does not exist or if `apt-get update` has listed newer packages.
    ///
    /// If the package lists of this machine are out of date or missing, they are updated once.
    pub fn build(
        &self,
        cache: &Cache,
        progress: &dyn Fn(&str),
    ) -> Result<BuiltRootFilesystem, ImageError> {
        match self.build_from_lists(cache, progress) {
            Err(
                ImageError::PackagesUnresolved { .. } | ImageError::PackagesNotDownloaded { .. },
            ) => {
                progress("the package lists of this machine are old: running `apt-get update`");
                output_of(Command::new("apt-get").args(["update", "--quiet=2"]))?;
                self.build_from_lists(cache, progress)
            }
            result => result,
        }
    }

    fn build_from_lists(
        &self,
        cache: &Cache,
        progress: &dyn Fn(&str),
    ) -> Result<BuiltRootFilesystem, ImageError> {
        let repository = Repository::open(cache)?;
        let mut packages = repository.resolve(&self.packages)?;
        packages.retain(|package| !self.is_excluded(package));
        let key = self.key(&packages);
        let path = cache.entry(ROOTS, &key[..16], |root| {
            let archives = repository.download(&packages, progress)?;
            progress(&format!("unpacking {} packages", archives.len()));
            self.unpack(&archives, root)?;
            complete(root)?;
            self.commands_inside.iter().try_for_each(|command| {
                if let Some(program) = command.first() {
                    progress(&format!("running {program}"));
                }
                run_inside(root, command)
            })
        })?;
        Ok(BuiltRootFilesystem { path, key })
    }

    fn is_excluded(&self, package: &Package) -> bool {
        // A package that was requested by name is kept, even if others use it only for maintainer scripts.
        !self.packages.contains(&package.name)
            && self
                .excluded_packages
                .iter()
                .any(|pattern| match pattern.strip_suffix('*') {
                    Some(beginning) => package.name.starts_with(beginning),
                    None => package.name == *pattern,
                })
    }

    fn key(&self, packages: &[Package]) -> String {
        let mut fingerprint = Fingerprint::new("root filesystem");
        fingerprint.number(RECIPE_VERSION);
        fingerprint.number(packages.len() as u64);
        for package in packages {
            fingerprint.text(&package.file_name);
            fingerprint.text(&package.checksum);
        }
        fingerprint.number(self.excluded_paths.len() as u64);
        for pattern in &self.excluded_paths {
            fingerprint.text(pattern);
        }
        fingerprint.number(self.commands_inside.len() as u64);
        for command in &self.commands_inside {
            fingerprint.text(&command.join("\0"));
        }
        for (link, programs) in ALTERNATIVES {
            fingerprint.text(link);
            fingerprint.text(&programs.join(" "));
        }
        for (path, content) in FILES_IN_ETC {
            fingerprint.text(path);
            fingerprint.text(content);
        }
        for (path, mode) in FOLDERS {
            fingerprint.text(path);
            fingerprint.number(u64::from(mode));
        }
        fingerprint.finish()
    }

    fn unpack(&self, archives: &[PathBuf], root: &Path) -> Result<(), ImageError> {
        create_folder(&root.join("usr"), 0o755)?;
        for name in MERGED_USR_LINKS {
            create_folder(&root.join("usr").join(name), 0o755)?;
            create_link(&Path::new("usr").join(name), &root.join(name))?;
        }
        for archive in archives {
            let mut reader = Command::new("dpkg-deb");
            reader.arg("--fsys-tarfile").arg(archive);
            let mut writer = Command::new("tar");
            writer
                .args(["--extract", "--file=-", "--directory"])
                .arg(root)
                .args(["--keep-directory-symlink", "--preserve-permissions"])
                .args(["--no-same-owner", "--anchored", "--wildcards"]);
            for pattern in &self.excluded_paths {
                writer.arg(format!("--exclude={pattern}"));
            }
            pipe(&mut reader, &mut writer)?;
        }
        Ok(())
    }
}

/// Does the necessary parts of the maintainer scripts' work. Packages may already contain some of it.
fn complete(root: &Path) -> Result<(), ImageError> {
    for (path, mode) in FOLDERS {
        create_folder(&root.join(path), mode)?;
    }
    for (path, content) in FILES_IN_ETC {
        let path = root.join(path);
        fs::write(&path, content)
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o644)))
            .map_err(ImageError::file("write", &path))?;
    }
    for (link, programs) in ALTERNATIVES {
        let link = root.join(link);
        let available = |program: &&&str| link.with_file_name(program).exists();
        if let Some(program) = programs.iter().find(available) {
            create_link(Path::new(program), &link)?;
        }
    }
    let var_run = root.join("var/run");
    create_link(Path::new("/run"), &var_run)
}

fn run_inside(root: &Path, command: &[String]) -> Result<(), ImageError> {
    // Independent of the caller's umask, every user of the image may read the files that the program writes.
    let mut inside = Command::new("sh");
    inside.args(["-c", "umask 022; exec chroot \"$@\"", "chroot"]);
    inside.arg(root).args(command).env_clear().envs([
        ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        ("LC_ALL", "C.UTF-8"),
        // Otherwise the order of Python's sets, and with it the compiled modules, would differ each time.
        ("PYTHONHASHSEED", "0"),
    ]);
    output_of(&mut inside).map(drop)
}

fn create_folder(path: &Path, mode: u32) -> Result<(), ImageError> {
    fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)))
        .map_err(ImageError::file("create", path))
}

/// Creates the link unless the path exists.
fn create_link(target: &Path, link: &Path) -> Result<(), ImageError> {
    match symlink(target, link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result.map_err(ImageError::file("create", link)),
    }
}

/// The first number of the version of a package that this release would install.
pub fn major_version(package: &str) -> Option<u32> {
    let policy = output_of(
        Command::new("apt-cache")
            .env("LC_ALL", "C")
            .args(["policy", package]),
    )
    .ok()?;
    major_of_candidate(&policy)
}

/// Reads the output of `apt-cache policy`, whose versions may begin with an epoch.
fn major_of_candidate(policy: &str) -> Option<u32> {
    let version = policy
        .lines()
        .find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    version
        .split(|character: char| !character.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests;
