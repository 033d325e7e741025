//! Runs steps that need root: directly as root, or each one through sudo.
//!
//! Only the step itself runs as root. Compilers never do: they would leave files of root in the caller's caches.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use nix::unistd::geteuid;

use crate::{environment, process};

/// How this process can run steps as root.
#[derive(Debug, PartialEq, Eq)]
enum RootAccess {
    Root,
    Sudo(PathBuf),
    None,
}

/// Fails if steps that need root cannot run. To be called before anything is changed.
pub(crate) fn check(purpose: &str) -> Result<()> {
    let RootAccess::Sudo(sudo) = root_access() else {
        return if root_access() == RootAccess::Root {
            Ok(())
        } else {
            bail!("needs root: {purpose}. Run as root or install sudo")
        };
    };
    let without_password = quiet(Command::new(&sudo).args(["--non-interactive", "true"]));
    if without_password {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        bail!(
            "needs root: {purpose}. sudo asks for a password and there is no terminal to type it. \
             Run as root, run `sudo --validate` first, or allow this user sudo without a password"
        );
    }
    eprintln!("needs root: {purpose}");
    if !Command::new(&sudo).arg("--validate").status()?.success() {
        bail!("needs root: {purpose}. sudo refused. Run as root or as a user who may use sudo");
    }
    Ok(())
}

/// Runs this same command once more as root when the caller is not, and returns its exit code. As root it
/// returns `None` and the caller continues. The variables are passed on and must be among those that sudo preserves.
pub(crate) fn continue_as_root(
    purpose: &str,
    variables: &[(&str, &OsStr)],
) -> Result<Option<ExitCode>> {
    if root_access() == RootAccess::Root {
        return Ok(None);
    }
    check(purpose)?;
    let program = env::current_exe().context("finding this program")?;
    let status = command(program)
        .args(env::args_os().skip(1))
        .envs(variables.iter().copied())
        .status()
        .context("running this command again through sudo")?;
    Ok(Some(process::exit_code(status)))
}

/// A command that runs with root's rights and the caller's `PATH`, `HOME` and other settings.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    match root_access() {
        RootAccess::Sudo(sudo) => through_sudo(
            &sudo,
            program.as_ref(),
            env::var_os(environment::PATH),
            env::var_os(environment::HOME),
        ),
        // Without sudo the command fails by itself; `check` has reported that before.
        RootAccess::Root | RootAccess::None => Command::new(program),
    }
}

pub(crate) fn is_root() -> bool {
    geteuid().is_root()
}

fn root_access() -> RootAccess {
    if geteuid().is_root() {
        return RootAccess::Root;
    }
    process::find_program("sudo").map_or(RootAccess::None, RootAccess::Sudo)
}

fn through_sudo(
    sudo: &Path,
    program: &OsStr,
    path: Option<OsString>,
    home: Option<OsString>,
) -> Command {
    let mut command = Command::new(sudo);
    command
        .arg(format!(
            "--preserve-env={}",
            environment::KEPT_BY_SUDO.join(",")
        ))
        .args(["--", "env"]);
    // The programs for administrators are not on every user's path, and dpkg refuses to work without them.
    let path = path.map(|mut path| {
        path.push(":/usr/local/sbin:/usr/sbin:/sbin");
        path
    });
    for (name, value) in [(environment::PATH, path), (environment::HOME, home)] {
        if let Some(value) = value {
            let mut assignment = OsString::from(format!("{name}="));
            assignment.push(value);
            command.arg(assignment);
        }
    }
    command.arg(program);
    command
}

fn quiet(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sudo_keeps_the_path_the_home_and_the_named_variables() {
        let mut command = through_sudo(
            Path::new("/usr/bin/sudo"),
            OsStr::new("apt-get"),
            Some("/opt/go/bin:/usr/bin".into()),
            Some("/somewhere".into()),
        );
        command.arg("update");
        let arguments: Vec<_> = command
            .get_args()
            .map(|argument| argument.to_string_lossy())
            .collect();
        assert!(
            arguments[0].starts_with("--preserve-env=STANDIN_CONTEXTS,"),
            "{arguments:?}"
        );
        assert_eq!(
            arguments[1..],
            [
                "--",
                "env",
                "PATH=/opt/go/bin:/usr/bin:/usr/local/sbin:/usr/sbin:/sbin",
                "HOME=/somewhere",
                "apt-get",
                "update"
            ]
        );
    }

    #[test]
    fn no_name_is_listed_that_sudo_replaces_anyway() {
        for name in [environment::PATH, environment::HOME] {
            assert!(!environment::KEPT_BY_SUDO.contains(&name));
        }
    }
}
