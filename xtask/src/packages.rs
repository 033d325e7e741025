//! The Debian packages that the commands need, and installing those that are missing.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::{environment, privilege, process};

/// One package and what it is for.
#[derive(Debug)]
pub(crate) struct Package {
    name: &'static str,
    /// Packages from other sources that bring the same programs. Installing ours beside them would remove them, and
    /// with them, say, the Docker of this machine.
    instead: &'static [&'static str],
    purpose: &'static str,
}

/// What the lab's clusters are made of, apart from what is built from source.
pub(crate) const LAB: &[Package] = &[
    Package {
        name: "containerd",
        instead: &["containerd.io", "moby-containerd"],
        purpose: "runs the containers of a cluster",
    },
    Package {
        name: "runc",
        instead: &["containerd.io", "moby-runc"],
        purpose: "starts one container",
    },
    package("containernetworking-plugins", "gives pods their addresses"),
    package("iptables", "Services, through kube-proxy"),
    package("nftables", "traffic rules"),
    package("conntrack", "forgets connections of Services that changed"),
    package("iproute2", "joins clusters with a bridge"),
    package("ethtool", "settings of virtual network devices"),
    package("socat", "used by port-forward of some container runtimes"),
];

/// What the sample services are written in, apart from Rust and Go.
pub(crate) const SHOP: &[Package] = &[
    package("nodejs", "runs the sample storefront"),
    package("python3", "runs the sample pricing service"),
];

/// Installs Node from the Python package index where the distribution's Node is too old.
pub(crate) const PYTHON_PACKAGE_INSTALLER: Package =
    package("python3-pip", "fetches a newer Node than this release has");

/// Installs the packages that are missing, and says so before it does. Returns their names.
pub(crate) fn install_missing(packages: &[&Package]) -> Result<Vec<&'static str>> {
    let missing = missing(packages, &installed(packages)?);
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    eprintln!("About to install these Debian packages with apt-get:");
    for package in &missing {
        eprintln!("    {:<28} {}", package.name, package.purpose);
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    privilege::check(&format!("installing {}", names.join(" ")))?;
    process::run(privilege::command("apt-get").args(["update", "--quiet=2"]))
        .context("the package lists could not be updated. Check the network and /etc/apt")?;
    process::run(
        privilege::command("apt-get")
            .env(environment::DEBIAN_FRONTEND, "noninteractive")
            .args(["install", "--yes", "--quiet=2", "--no-install-recommends"])
            .args(&names),
    )
    .context("packages could not be installed. Run the apt-get command above by hand to see why")?;
    Ok(names)
}

const fn package(name: &'static str, purpose: &'static str) -> Package {
    Package {
        name,
        instead: &[],
        purpose,
    }
}

/// Asks dpkg. It fails when one of the names is unknown to it, which is an answer as well.
fn installed(packages: &[&Package]) -> Result<String> {
    let names = packages
        .iter()
        .flat_map(|package| std::iter::once(&package.name).chain(package.instead));
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${Package} ${db:Status-Status}\\n"])
        .args(names)
        .stderr(Stdio::null())
        .output()
        .with_context(|| {
            format!(
                "asking dpkg-query what is installed. {}",
                process::remedy("dpkg-query")
            )
        })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn missing<'package>(packages: &[&'package Package], dpkg_output: &str) -> Vec<&'package Package> {
    let is_installed = |name: &str| {
        dpkg_output
            .lines()
            .any(|line| line.split_once(' ') == Some((name, "installed")))
    };
    packages
        .iter()
        .copied()
        .filter(|package| {
            !is_installed(package.name) && !package.instead.iter().any(|name| is_installed(name))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing_names(dpkg_output: &str) -> Vec<&'static str> {
        let packages: Vec<&Package> = LAB[..3].iter().collect();
        missing(&packages, dpkg_output)
            .iter()
            .map(|package| package.name)
            .collect()
    }

    #[test]
    fn only_what_is_not_installed_is_missing() {
        assert_eq!(
            missing_names("containerd installed\nrunc config-files\n"),
            ["runc", "containernetworking-plugins"]
        );
    }

    #[test]
    fn the_same_programs_from_elsewhere_are_enough() {
        assert_eq!(
            missing_names("containerd.io installed\n"),
            ["containernetworking-plugins"]
        );
    }

    #[test]
    fn a_similar_name_is_not_enough() {
        assert_eq!(
            missing_names(
                "containerd-doc installed\nrunc installed\ncontainernetworking-plugins installed\n"
            ),
            ["containerd"]
        );
    }
}
