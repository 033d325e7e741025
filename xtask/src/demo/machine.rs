//! The demo on this machine alone: one program that runs outside and inside a session, and one that serves requests.
//!
//! A sample service is started in its own namespaces, so that it has a host name, files and a network that nothing else
//! on the machine has. Then a small program inspects its environment, first without a session and then as the service's
//! stand-in. Finally a new version of the service serves some of its requests.

mod traffic;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use lab::host_checks::Requirement;
use nix::unistd::geteuid;

use crate::{environment, packages, process, workspace};

/// The programs that isolate the sample service.
const REQUIREMENTS: [Requirement; 3] = [
    Requirement {
        program: "unshare",
        package: "util-linux",
        purpose: "puts the sample service into namespaces of its own",
    },
    Requirement {
        program: "nsenter",
        package: "util-linux",
        purpose: "makes requests from the sample service's network",
    },
    Requirement {
        program: "ip",
        package: "iproute2",
        purpose: "gives the sample service its addresses",
    },
];

/// What the program finds in a session, and only there.
const ONLY_INSIDE: [&str; 5] = [
    "checkout-1",
    "EUR",
    "hello from checkout",
    "10.77.0.2",
    "7 of book",
];

/// Runs the demo with the `standin` and `standind` of a directory, or else with those that it builds.
pub(crate) fn run(programs: Option<&Path>) -> Result<ExitCode> {
    let root = workspace::root()?;
    packages::install_missing(&REQUIREMENTS)?;
    let programs = match programs {
        Some(directory) => Programs::build_with(&root, directory)?,
        None => Programs::build(&root)?,
    };
    let service = Service::start(&root.join("xtask/demo/service.sh"), &programs)?;

    println!(
        "
A sample service, `checkout`, runs as process {pid} in namespaces of its own: a host name, a folder /etc and a network
that nothing else on this machine has. `inspect` is a program that a developer works on: static Go, without any knowledge of
Standin.

Run as it is:

$ inspect",
        pid = service.pid
    );
    let outside = process::output(&mut Command::new(&programs.inspect))?;
    print!("{outside}");
    println!("\nRun as the stand-in for the service:\n");
    println!("$ standin exec -t process/{} -- inspect", service.pid);
    let inside = process::output(
        Command::new(&programs.standin)
            .args(["exec", "-t", &format!("process/{}", service.pid), "--"])
            .arg(&programs.inspect),
    )?;
    print!("{inside}");
    println!(
        "
The same program, on this machine, with the service's host name, environment, files, DNS names and network. Nothing was
rebuilt or deployed, and the service was not touched."
    );
    verify(&outside, &inside)?;
    traffic::show(&programs, &service)?;
    println!(
        "
Try it yourself: `standin exec --help`, at
{}",
        programs.standin.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Fails if the demo did not show what it should.
fn verify(outside: &str, inside: &str) -> Result<()> {
    for expected in ONLY_INSIDE {
        if outside.contains(expected) {
            bail!(
                "{expected:?} was found without a session: the demo shows nothing on this machine"
            );
        }
        if !inside.contains(expected) {
            bail!(
                "{expected:?} was not found in the session. `standin diagnose` reports what is missing here"
            );
        }
    }
    Ok(())
}

/// Everything that the demo runs.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) standin: PathBuf,
    pub(super) inspect: PathBuf,
    inventory: PathBuf,
    pub(super) checkout: PathBuf,
    pub(super) call: PathBuf,
}

impl Programs {
    pub(super) fn build(root: &Path) -> Result<Self> {
        process::run(lab::cargo(root).args([
            "build",
            "--locked",
            "--package=cli",
            "--package=server",
        ]))?;
        Self::build_with(root, &workspace::target()?.join("debug"))
    }

    /// Builds the sample programs, for a `standin` that was built already.
    fn build_with(root: &Path, standin: &Path) -> Result<Self> {
        let folder = workspace::target()?.join("demo");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        process::run(
            Command::new("go")
                .args(["build", "-o"])
                .arg(&folder)
                .args(["./inspect", "./inventory", "./checkout", "./call"])
                .env(environment::CGO_ENABLED, "0")
                .current_dir(root.join("xtask/demo")),
        )?;
        Self::in_folder(standin)
    }

    /// The programs of an earlier build.
    pub(super) fn built() -> Result<Self> {
        Self::in_folder(&workspace::target()?.join("debug"))
    }

    fn in_folder(standin: &Path) -> Result<Self> {
        let folder = workspace::target()?.join("demo");
        Ok(Programs {
            standin: standin.join("standin"),
            inspect: folder.join("inspect"),
            inventory: folder.join("inventory"),
            checkout: folder.join("checkout"),
            call: folder.join("call"),
        })
    }
}

/// The sample service. It ends when this is dropped, or with us, however we end.
#[derive(Debug)]
struct Service {
    namespaces: Child,
    pid: u32,
}

impl Service {
    fn start(script: &Path, programs: &Programs) -> Result<Self> {
        let mut command = Command::new("unshare");
        if !geteuid().is_root() {
            // In a user namespace every user may create the others.
            command.args(["--user", "--map-root-user"]);
        }
        command
            .args([
                "--mount",
                "--net",
                "--uts",
                "--pid",
                "--fork",
                "--kill-child",
            ])
            .arg("sh")
            .args([script, &programs.inventory])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut namespaces = command.spawn().context("cannot start `unshare`")?;
        let output = namespaces.stdout.take().context("it has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        match line.trim().parse() {
            Ok(pid) => Ok(Service { namespaces, pid }),
            Err(_) => {
                let _ = namespaces.kill();
                let _ = namespaces.wait();
                bail!(
                    "the sample service did not start; see its output above. Where user namespaces are forbidden \
                     (see `sysctl user.max_user_namespaces kernel.unprivileged_userns_clone \
                     kernel.apparmor_restrict_unprivileged_userns`), run the demo as root"
                )
            }
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.namespaces.kill();
        let _ = self.namespaces.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demo_that_shows_nothing_fails() {
        let everything = ONLY_INSIDE.join(" ");
        assert!(verify("- not set", &everything).is_ok());
        assert!(verify("- not set", "- not set").is_err());
        assert!(verify(&everything, &everything).is_err());
    }
}
