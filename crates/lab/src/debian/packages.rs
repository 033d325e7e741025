//! Finds and downloads packages with apt, without touching the machine's own state.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::image::{Cache, Fingerprint, ImageError, output_of};

/// The section of a [`Cache`] for downloaded packages. Images share most of their packages.
const PACKAGES: &str = "packages";

/// The section of a [`Cache`] for apt's own files.
const APT: &str = "apt";

/// The section of a [`Cache`] for the package lists that apt resolved.
const RESOLUTIONS: &str = "resolutions";

/// Everything that the resolution depends on: apt's lists, which `apt-get update` replaces, and its configuration.
const APT_INPUTS: [&str; 6] = [
    "/etc/apt",
    "/etc/apt/apt.conf.d",
    "/etc/apt/preferences.d",
    "/etc/apt/sources.list.d",
    "/var/lib/apt/lists",
    "/usr/lib/os-release",
];

/// One package in the version that apt chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) architecture: String,
    /// The name of the file that apt downloads.
    pub(super) file_name: String,
    pub(super) size: u64,
    pub(super) checksum: String,
}

/// The packages of the machine's apt sources, resolved as if nothing were installed.
#[derive(Debug)]
pub(super) struct Repository {
    cache: Cache,
    apt_folder: PathBuf,
    packages_folder: PathBuf,
}

impl Repository {
    pub(super) fn open(cache: &Cache) -> Result<Self, ImageError> {
        let repository = Self {
            cache: cache.clone(),
            apt_folder: cache.section(APT)?,
            packages_folder: cache.section(PACKAGES)?,
        };
        let partial = repository.apt_folder.join("archives/partial");
        fs::create_dir_all(&partial).map_err(ImageError::file("create", &partial))?;
        let status = repository.status_file();
        fs::write(&status, "").map_err(ImageError::file("write", &status))?;
        Ok(repository)
    }

    /// The packages and their dependencies, sorted by name.
    pub(super) fn resolve(&self, names: &[String]) -> Result<Vec<Package>, ImageError> {
        let key = resolution_key(names)?;
        let resolution = self.cache.entry(RESOLUTIONS, &key[..16], |path| {
            let lines = self.resolve_with_apt(names)?;
            fs::write(path, lines).map_err(ImageError::file("write", path))
        })?;
        let lines =
            fs::read_to_string(&resolution).map_err(ImageError::file("read", &resolution))?;
        let mut packages = lines
            .lines()
            .map(parse_line)
            .collect::<Result<Vec<_>, _>>()?;
        packages.sort_by(|one, other| one.file_name.cmp(&other.file_name));
        Ok(packages)
    }

    fn resolve_with_apt(&self, names: &[String]) -> Result<String, ImageError> {
        let mut command = self.apt_get();
        command
            // Without this option apt prints a kind of checksum that not every repository has.
            .arg("--option=Acquire::ForceHash=SHA256")
            .args(["--yes", "--no-install-recommends", "--print-uris"])
            .arg("install")
            .args(names);
        output_of(&mut command).map_err(|source| ImageError::PackagesUnresolved {
            packages: names.to_vec(),
            source: Box::new(source),
        })
    }

    /// The files of the packages. Missing files are downloaded; apt verifies them against its signed lists.
    pub(super) fn download(
        &self,
        packages: &[Package],
        progress: &dyn Fn(&str),
    ) -> Result<Vec<PathBuf>, ImageError> {
        let missing: Vec<&Package> = packages
            .iter()
            .filter(|package| !self.has(package))
            .collect();
        if !missing.is_empty() {
            let bytes: u64 = missing.iter().map(|package| package.size).sum();
            progress(&format!(
                "downloading {} packages, {:.1} MB",
                missing.len(),
                bytes as f64 / 1e6
            ));
            self.download_missing(&missing)?;
        }
        Ok(packages
            .iter()
            .map(|package| self.path_of(package))
            .collect())
    }

    /// Downloads into a temporary folder and moves complete files to the packages folder. The temporary folder has the
    /// process id in its name, so that two processes do not write to the same file.
    fn download_missing(&self, missing: &[&Package]) -> Result<(), ImageError> {
        let folder = self
            .apt_folder
            .join(format!("download-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(ImageError::file("create", &folder))?;
        let mut command = self.apt_get();
        command
            .arg("download")
            .args(missing.iter().map(|package| package.specifier()))
            .current_dir(&folder);
        let downloaded =
            output_of(&mut command).map_err(|source| ImageError::PackagesNotDownloaded {
                count: missing.len(),
                source: Box::new(source),
            });
        let moved = downloaded.and_then(|_| {
            missing.iter().try_for_each(|package| {
                let from = folder.join(&package.file_name);
                fs::rename(&from, self.path_of(package)).map_err(ImageError::file("rename", &from))
            })
        });
        fs::remove_dir_all(&folder).map_err(ImageError::file("remove", &folder))?;
        moved
    }

    fn has(&self, package: &Package) -> bool {
        fs::metadata(self.path_of(package)).is_ok_and(|metadata| metadata.len() == package.size)
    }

    fn path_of(&self, package: &Package) -> PathBuf {
        self.packages_folder.join(&package.file_name)
    }

    fn status_file(&self) -> PathBuf {
        self.apt_folder.join("status")
    }

    /// An apt command that reads the machine's sources and lists, and writes only to our folder.
    fn apt_get(&self) -> Command {
        let folder = &self.apt_folder;
        let option = |name: &str, path: &Path| format!("--option={name}={}", path.display());
        let mut command = Command::new("apt-get");
        command
            .env("LC_ALL", "C")
            .arg("-qq")
            .arg(option("Dir::State::status", &self.status_file()))
            .arg(option(
                "Dir::State::extended_states",
                &folder.join("extended_states"),
            ))
            .arg(option("Dir::Cache", folder))
            .arg(option("Dir::Cache::archives", &folder.join("archives")))
            // Some machines disable these caches; with them apt takes half the time.
            .arg("--option=Dir::Cache::pkgcache=pkgcache.bin")
            .arg("--option=Dir::Cache::srcpkgcache=srcpkgcache.bin")
            // No file of the machine is written, so no lock is needed.
            .arg("--option=Debug::NoLocking=1")
            // apt's own unprivileged user may not be able to write to our folder.
            .arg("--option=APT::Sandbox::User=root");
        command
    }
}

impl Package {
    /// The argument that makes apt select exactly this package.
    fn specifier(&self) -> String {
        match self.architecture.as_str() {
            "all" => format!("{}={}", self.name, self.version),
            architecture => format!("{}:{architecture}={}", self.name, self.version),
        }
    }
}

/// A hash that changes when the resolution could change. Running apt takes half a second or more of processor time, this
/// hash a millisecond.
fn resolution_key(names: &[String]) -> Result<String, ImageError> {
    let mut fingerprint = Fingerprint::new("packages");
    fingerprint.text(&names.join(" "));
    for folder in APT_INPUTS {
        for (path, metadata) in files_in(Path::new(folder))? {
            fingerprint.path(&path);
            fingerprint.number(metadata.len());
            fingerprint.text(&format!("{}.{}", metadata.mtime(), metadata.mtime_nsec()));
        }
    }
    Ok(fingerprint.finish())
}

/// The files directly in a folder, sorted; the path itself if it is a file. Empty if the path does not exist.
fn files_in(path: &Path) -> Result<BTreeMap<PathBuf, Metadata>, ImageError> {
    let mut paths = vec![path.to_path_buf()];
    if path.is_dir() {
        for item in fs::read_dir(path).map_err(ImageError::file("list", path))? {
            paths.push(item.map_err(ImageError::file("list", path))?.path());
        }
    }
    Ok(paths
        .into_iter()
        .filter_map(|path| fs::metadata(&path).ok().map(|metadata| (path, metadata)))
        .filter(|(_, metadata)| metadata.is_file())
        .collect())
}

/// Reads a line such as `'http://…/dash.deb' dash_0.5.12-2_amd64.deb 91848 SHA256:…`.
fn parse_line(line: &str) -> Result<Package, ImageError> {
    let invalid = || ImageError::PackageLine {
        line: line.to_owned(),
    };
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, file_name, size, checksum] = words[..] else {
        return Err(invalid());
    };
    let parts: Vec<&str> = file_name
        .strip_suffix(".deb")
        .ok_or_else(invalid)?
        .split('_')
        .collect();
    let [name, version, architecture] = parts[..] else {
        return Err(invalid());
    };
    Ok(Package {
        name: name.to_owned(),
        // The colon of an epoch is the only character of a version that apt escapes in file names.
        version: version.replace("%3a", ":"),
        architecture: architecture.to_owned(),
        file_name: file_name.to_owned(),
        size: size.parse().map_err(|_| invalid())?,
        checksum: checksum.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, specifier: &str) {
        assert_eq!(parse_line(line).unwrap().specifier(), specifier);
    }

    #[test]
    fn lines_of_apt_are_parsed() {
        check(
            "'http://mirror.example/pool/d/dash_0.5.12-2_amd64.deb' dash_0.5.12-2_amd64.deb 91848 SHA256:33",
            "dash:amd64=0.5.12-2",
        );
        check(
            "'http://mirror.example/z.deb' zlib1g_1%3a1.2.13.dfsg-1_arm64.deb 86684 SHA256:12",
            "zlib1g:arm64=1:1.2.13.dfsg-1",
        );
        check(
            "'http://mirror.example/t.deb' tzdata_2024a-0+deb12u1_all.deb 307832 SHA256:12",
            "tzdata=2024a-0+deb12u1",
        );
    }

    #[test]
    fn invalid_lines_are_rejected() {
        for line in [
            "",
            "E: nothing",
            "'x' dash.deb 1 SHA256:1",
            "'x' a_1_all.deb many SHA256:1",
        ] {
            assert!(matches!(
                parse_line(line),
                Err(ImageError::PackageLine { .. })
            ));
        }
    }
}
