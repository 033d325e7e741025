//! The release artifacts: the programs, the image, the charts, and a list of their checksums.
//!
//! Builds are reproducible: packages and images have no date and no owner, and programs no path of the machine that built
//! them. So anyone can rebuild a release and compare it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use lab::binaries::Binaries;
use lab::standind::{self, Profile};
use lab::{Paths, Progress};
use semver::Version;

use super::{ReleasedImage, image_name, versions};
use crate::workspace::{self, Source};
use crate::{process, web};

const CHECKSUMS: &str = "SHA256SUMS";

/// The default output folder of a version.
pub(crate) fn folder(version: &Version) -> Result<PathBuf> {
    Ok(workspace::target()?
        .join("releases")
        .join(version.to_string()))
}

/// Builds all release artifacts from the repository in `root`.
pub(crate) fn make(
    root: &Path,
    sources: &[Source],
    output: &Path,
    with_programs: bool,
) -> Result<()> {
    if output.exists() {
        fs::remove_dir_all(output).with_context(|| format!("removing {}", output.display()))?;
    }
    fs::create_dir_all(output).with_context(|| format!("making {}", output.display()))?;
    let output = output
        .canonicalize()
        .with_context(|| format!("finding {}", output.display()))?;
    let version = versions::current(sources)?;
    for chart in charts(sources) {
        package_chart(&root.join(chart), &version, &output)?;
    }
    if with_programs {
        make_programs(root, sources, &version, &output)?;
    }
    checksums(&output)?;
    for entry in sorted_names(&output)? {
        println!("{}", output.join(entry).display());
    }
    Ok(())
}

/// The folders of all charts.
fn charts(sources: &[Source]) -> Vec<&Path> {
    sources
        .iter()
        .filter(|source| versions::is_chart(&source.path))
        .filter_map(|source| source.path.parent())
        .collect()
}

/// Packages a chart like `helm package`, but without the current time, which would make each package different.
fn package_chart(chart: &Path, version: &Version, output: &Path) -> Result<()> {
    let name = chart.file_name().context("a chart without a name")?;
    let name = name.to_string_lossy();
    let helm = helm()?;
    process::run(
        Command::new(&helm)
            .args(["lint", "--strict", "--quiet"])
            .arg(chart),
    )?;
    let package = output.join(format!("{name}-{version}.tgz"));
    archive(chart, &package)?;
    let shown = process::output(Command::new(&helm).args(["show", "chart"]).arg(&package))?;
    ensure!(
        shown
            .lines()
            .any(|line| line == format!("version: {version}")),
        "{} does not have the version {version}:\n{shown}",
        package.display()
    );
    Ok(())
}

/// Packs a folder into a compressed tar file: sorted, owned by root, and with a constant time.
fn archive(folder: &Path, package: &Path) -> Result<()> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        anyhow::bail!("{} cannot be packed", folder.display());
    };
    process::run(
        Command::new("tar")
            .args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0"])
            .args(["--numeric-owner", "--format=ustar", "--mode=u=rwX,go=rX"])
            .arg("--use-compress-program=gzip --no-name --best")
            .arg("--create")
            .arg("--file")
            .arg(package)
            .arg("--directory")
            .arg(parent)
            .arg(name),
    )
}

fn make_programs(root: &Path, sources: &[Source], version: &Version, output: &Path) -> Result<()> {
    let progress = Progress::to_stderr();
    let target = workspace::image_target()?;
    let machine = env::consts::ARCH;
    progress.step("building the page of `standin ui`, which the program embeds");
    web::install_and_build(root)?;
    progress.step("building the programs, linked statically");
    let profile = Profile::Distribution;
    standind::build_static(root, &target, profile, &["cli", "server"])?;
    let standin = standind::built(&target, profile, "standin");
    ensure_has_page(&standin, &root.join(web::BUILT))?;
    let program = standind::built(&target, profile, "standind");
    let folder = tempfile::tempdir().context("making a folder for the programs")?;
    let programs = folder
        .path()
        .join(format!("standin-{version}-linux-{machine}"));
    fs::create_dir(&programs)?;
    for (path, name) in [(&standin, "standin"), (&program, "standind")] {
        fs::copy(path, programs.join(name))
            .with_context(|| format!("copying {}", path.display()))?;
    }
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        fs::copy(root.join(licence), programs.join(licence))
            .with_context(|| format!("copying {licence}"))?;
    }
    archive(
        &programs,
        &output.join(format!("standin-{version}-linux-{machine}.tgz")),
    )?;
    let name = |image| image_name(sources, image);
    for (program, image) in [
        (
            "standind",
            standind::image(&name(ReleasedImage::Standind)?, &program),
        ),
        (
            "standind-hub",
            standind::hub_image(&name(ReleasedImage::StandindHub)?, &program),
        ),
    ] {
        let archive = output.join(format!("{program}-{version}-linux-{machine}.tar"));
        let image = image.write(&archive)?;
        eprintln!("{} is {}", image.reference(), image.id());
    }
    Ok(())
}

/// The program is also built without its page. This check prevents releasing it so.
fn ensure_has_page(program: &Path, page: &Path) -> Result<()> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("reading {}", path.display()));
    let (program_bytes, page_bytes) = (read(program)?, read(&page.join("index.html"))?);
    ensure!(
        !page_bytes.is_empty() && memchr::memmem::find(&program_bytes, &page_bytes).is_some(),
        "the page of {} is not in {}",
        page.display(),
        program.display()
    );
    Ok(())
}

/// The list that `sha256sum --check` takes.
fn checksums(output: &Path) -> Result<()> {
    let names = sorted_names(output)?;
    let sums = process::output(
        Command::new("sha256sum")
            .current_dir(output)
            .arg("--")
            .args(names),
    )?;
    fs::write(output.join(CHECKSUMS), sums).context("writing the checksums")
}

fn sorted_names(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        names.push(PathBuf::from(entry?.file_name()));
    }
    names.sort();
    Ok(names)
}

/// The machine's Helm, or the lab's.
fn helm() -> Result<PathBuf> {
    match process::find_program("helm") {
        Some(helm) => Ok(helm),
        None => {
            let binaries = Binaries::ensure(&Paths::from_environment(), &Progress::to_stderr())?;
            Ok(binaries.program("helm"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::{Duration, SystemTime};

    use super::*;

    /// A chart in a folder of its own; how it was written must not matter.
    fn chart(folder: &Path, names: &[&str], mode: u32, age: u64) -> PathBuf {
        let chart = folder.join("operator");
        fs::create_dir(&chart).unwrap();
        for name in names {
            let path = chart.join(name);
            fs::write(&path, format!("content of {name}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let time = SystemTime::now() - Duration::from_secs(age);
            fs::File::open(&path).unwrap().set_modified(time).unwrap();
        }
        chart
    }

    #[test]
    fn the_same_content_is_the_same_package() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let charts = [
            chart(folders[0].path(), &["a", "b"], 0o644, 0),
            chart(folders[1].path(), &["b", "a"], 0o600, 5000),
        ];
        let mut packages = Vec::new();
        for (folder, chart) in folders.iter().zip(&charts) {
            let package = folder.path().join("package.tgz");
            archive(chart, &package).unwrap();
            packages.push(fs::read(&package).unwrap());
        }
        assert_eq!(packages[0], packages[1]);
    }

    #[test]
    fn a_program_without_the_page_is_not_released() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("standin");
        fs::write(&program, b"\x7fELF code").unwrap();
        ensure_has_page(&program, folder.path()).unwrap_err();
        fs::write(folder.path().join("index.html"), "<html>").unwrap();
        let error = ensure_has_page(&program, folder.path()).unwrap_err();
        assert!(error.to_string().contains("is not in"), "{error}");
        fs::write(&program, b"\x7fELF code <html> more").unwrap();
        ensure_has_page(&program, folder.path()).unwrap();
    }

    #[test]
    fn checksums_can_be_checked() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("one"), "1").unwrap();
        checksums(folder.path()).unwrap();
        let check = || {
            process::output(
                Command::new("sha256sum")
                    .current_dir(folder.path())
                    .args(["--check", "--status", CHECKSUMS]),
            )
        };
        check().unwrap();
        fs::write(folder.path().join("one"), "2").unwrap();
        assert!(check().is_err());
    }
}
