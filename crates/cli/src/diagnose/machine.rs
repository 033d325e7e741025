//! Checks of the machine that need no session.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::resource::{Resource, getrlimit};

use super::{Check, State};
use crate::exec::agent_program;
use crate::exec::podman::Podman;

/// Capabilities that an agent needs for a target of another user or in other namespaces.
const CAPABILITIES: &[(u32, &str)] = &[
    (6, "SETGID"),
    (7, "SETUID"),
    (19, "SYS_PTRACE"),
    (21, "SYS_ADMIN"),
];
const SYS_ADMIN: u32 = 21;
/// With fewer descriptors, a program with a thousand connections runs out of them.
const MIN_DESCRIPTORS: u64 = 4096;

pub(super) fn all() -> Vec<Check> {
    let capabilities = capabilities();
    let namespaces = user_namespaces();
    let can_mount = capabilities & (1 << SYS_ADMIN) != 0 || namespaces.state == State::Ok;
    vec![
        rights(capabilities),
        agent(),
        files(can_mount),
        namespaces,
        podman(),
        descriptors(),
    ]
}

pub(super) fn kernel() -> Check {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy().into_owned();
    Check::ok("kernel", format!("Linux {release}"))
}

fn rights(capabilities: u64) -> Check {
    let name = "rights";
    let missing = missing_rights(capabilities);
    if missing.is_empty() {
        return Check::ok(name, "any process of this machine can be a target");
    }
    let remedy = if is_root() {
        "Give this container or service these capabilities"
    } else {
        "Use sudo for other processes"
    };
    let found = format!(
        "only processes of your own user and namespaces can be targets; without {}",
        missing.join(", ")
    );
    Check::failed(State::Limited, name, found, remedy)
}

fn missing_rights(capabilities: u64) -> Vec<&'static str> {
    let missing = CAPABILITIES
        .iter()
        .filter(|(number, _)| capabilities & (1 << number) == 0);
    missing.map(|(_, name)| *name).collect()
}

fn capabilities() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective_in(&status)
}

fn effective_in(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .unwrap_or(0)
}

fn agent() -> Check {
    let name = "agent";
    let program = match agent_program() {
        Ok(program) => program,
        Err(error) => {
            let remedy = "Install standind beside standin";
            return Check::failed(State::Missing, name, error.to_string(), remedy);
        }
    };
    let ours = concat!("standind ", env!("CARGO_PKG_VERSION"));
    let shown = program.display();
    match version_of(&mut Command::new(&program)) {
        Some(version) if version == ours => Check::ok(name, format!("{shown}, {version}")),
        Some(version) => Check::failed(
            State::Limited,
            name,
            format!("{shown} is {}, not {ours}", version.escape_debug()),
            "Install the same release of both",
        ),
        None => Check::failed(
            State::Missing,
            name,
            format!("{shown} does not run"),
            "Install standind beside standin",
        ),
    }
}

fn files(can_mount: bool) -> Check {
    let name = "files through FUSE";
    let device = "/dev/fuse";
    let open = OpenOptions::new().read(true).write(true).open(device);
    let helper = ["/usr/bin/fusermount3", "/bin/fusermount3"]
        .iter()
        .any(|path| Path::new(path).exists());
    match open {
        Ok(_) if can_mount || helper => Check::ok(name, "possible"),
        Ok(_) => Check::failed(
            State::Limited,
            name,
            "it cannot be mounted",
            "Install fuse3, or allow user namespaces, or use sudo",
        ),
        Err(error) => Check::failed(
            State::Limited,
            name,
            format!(
                "{device} cannot be opened ({error}): files of the target are copied here as a whole"
            ),
            "`modprobe fuse` creates it; a container needs --device /dev/fuse",
        ),
    }
}

fn user_namespaces() -> Check {
    let name = "user namespaces";
    let works = Command::new("unshare")
        .args(["--user", "--map-root-user", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match works {
        Ok(status) if status.success() => Check::ok(name, "can be created"),
        Ok(_) => Check::failed(
            State::Limited,
            name,
            "cannot be created",
            "Check the sysctls user.max_user_namespaces, kernel.unprivileged_userns_clone and \
             kernel.apparmor_restrict_unprivileged_userns; root does not need them",
        ),
        Err(_) => Check::failed(
            State::Limited,
            name,
            "unknown, because the program unshare is missing",
            "Install util-linux",
        ),
    }
}

fn podman() -> Check {
    let name = "podman";
    let podman = Podman::find();
    match version_of(&mut podman.command()) {
        Some(version) => Check::ok(name, version),
        None if starts(&mut podman.command()) => Check::failed(
            State::Limited,
            name,
            "it fails, so there are no targets container/<name>",
            "`podman --version` shows why",
        ),
        None => Check::failed(
            State::Limited,
            name,
            "it is not installed, so there are no targets container/<name>",
            "Install podman, or name a container's process as process/<pid>",
        ),
    }
}

fn descriptors() -> Check {
    let name = "open files";
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(_, hard)| hard);
    if limit >= MIN_DESCRIPTORS {
        Check::ok(name, format!("up to {limit}"))
    } else {
        let found = format!("only {limit}: each connection through the target needs two");
        Check::failed(
            State::Limited,
            name,
            found,
            "Raise the hard limit: `ulimit -Hn`",
        )
    }
}

fn version_of(command: &mut Command) -> Option<String> {
    let output = command
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next()?.to_owned();
    output.status.success().then_some(line)
}

/// Whether a program can be started, regardless of its exit status.
fn starts(command: &mut Command) -> bool {
    let quiet = command.arg("--version").stdin(Stdio::null());
    quiet
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        let check = |status: &str, expected: &[&str]| {
            assert_eq!(missing_rights(effective_in(status)), expected, "{status}");
        };
        check("Name:\tx\nCapEff:\t000001ffffffffff\n", &[]);
        check(
            "CapEff:\t0000000000000000\n",
            &["SETGID", "SETUID", "SYS_PTRACE", "SYS_ADMIN"],
        );
        check("CapEff:\t00000000000800c0\n", &["SYS_ADMIN"]);
        check("nothing", &["SETGID", "SETUID", "SYS_PTRACE", "SYS_ADMIN"]);
    }
}
