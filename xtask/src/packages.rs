//! The Debian packages that the commands need, and the installation of missing ones.

use anyhow::{Context, Result};
use lab::host_checks::{self, Requirement};

use crate::{environment, privilege, process};

/// Interpreters of the sample services.
pub(crate) const SHOP: [Requirement; 2] = [
    Requirement {
        program: "node",
        package: "nodejs",
        purpose: "runs the sample storefront",
    },
    Requirement {
        program: "python3",
        package: "python3",
        purpose: "runs the sample pricing service",
    },
];

/// Programs for the tests of sessions on one machine.
pub(crate) const SESSION: [Requirement; 11] = [
    Requirement {
        program: "gdb",
        package: "gdb",
        purpose: "debugs programs in sessions",
    },
    Requirement {
        program: "strace",
        package: "strace",
        purpose: "traces programs in sessions",
    },
    Requirement {
        program: "podman",
        package: "podman",
        purpose: "runs containers that are targets of sessions",
    },
    Requirement {
        program: "gcc",
        package: "gcc",
        purpose: "compiles C programs for sessions",
    },
    Requirement {
        program: "musl-gcc",
        package: "musl-tools",
        purpose: "compiles C programs with musl for sessions",
    },
    Requirement {
        program: "javac",
        package: "default-jdk-headless",
        purpose: "compiles and runs a Java program in sessions",
    },
    Requirement {
        program: "perl",
        package: "perl",
        purpose: "runs a Perl program in sessions",
    },
    Requirement {
        program: "curl",
        package: "curl",
        purpose: "makes requests in a script in sessions",
    },
    Requirement {
        program: "gunicorn",
        package: "gunicorn",
        purpose: "runs a Python server with several workers in sessions",
    },
    Requirement {
        program: "nginx",
        package: "nginx-light",
        purpose: "runs as a server in sessions",
    },
    Requirement {
        program: "prlimit",
        package: "util-linux",
        purpose: "limits the descriptors of programs",
    },
];

/// For the build of the page of `standin ui`.
pub(crate) const PAGE: [Requirement; 1] = [Requirement {
    program: "npm",
    package: "npm",
    purpose: "fetches the packages of the page of `standin ui`",
}];

/// For the tests of the page.
pub(crate) const BROWSER: [Requirement; 1] = [Requirement {
    program: "chromium",
    package: "chromium",
    purpose: "is the browser for the tests of the page",
}];

/// Installs programs from the Python package index that distributions lack or have only in an old version.
pub(crate) const PYTHON_PACKAGE_INSTALLER: [Requirement; 1] = [Requirement {
    program: "pip3",
    package: "python3-pip",
    purpose: "fetches the AWS CLI, and Node where this release has an old one",
}];

/// Installs the packages of the programs that are missing, and prints them before. Returns their names.
pub(crate) fn install_missing(requirements: &[Requirement]) -> Result<Vec<&'static str>> {
    let missing = host_checks::missing(requirements);
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    eprintln!("About to install these Debian packages with apt-get:");
    for requirement in &missing {
        eprintln!("    {:<28} {}", requirement.package, requirement.purpose);
    }
    let names: Vec<&str> = missing
        .iter()
        .map(|requirement| requirement.package)
        .collect();
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
