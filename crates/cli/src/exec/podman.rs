//! Finds podman containers on this machine.

use std::env;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use tokio::process::Command;

use crate::environment::{PODMAN, SUDO_USER};

/// The program `podman`. Its storage is read only through it.
#[derive(Debug, Clone)]
pub(crate) struct Podman(PathBuf);

/// The part of the output of `podman inspect` that is used here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Container {
    state: State,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    #[serde(default)]
    status: String,
    #[serde(default)]
    pid: u32,
    #[serde(default)]
    exit_code: i32,
}

impl Podman {
    pub(crate) fn find() -> Self {
        Podman(env::var_os(PODMAN).map_or_else(|| PathBuf::from("podman"), PathBuf::from))
    }

    pub(crate) fn command(&self) -> std::process::Command {
        std::process::Command::new(&self.0)
    }

    /// The first process of a container, by its name or id.
    pub(crate) async fn process_of(&self, name: &str) -> Result<u32> {
        let output = Command::from(self.command())
            .args(["container", "inspect", "--", name])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .process_group(0)
            .output()
            .await
            .map_err(|error| self.cannot_start(error))?;
        if output.status.success() {
            return process_in(&output.stdout, name);
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        if is_unknown(&errors) {
            bail!(unknown(name, rustix::process::geteuid().is_root()));
        }
        bail!(
            "podman cannot inspect container/{name}: {}. Check whether `podman container inspect {name}` works",
            errors.trim()
        )
    }

    fn cannot_start(&self, error: std::io::Error) -> anyhow::Error {
        if error.kind() == ErrorKind::NotFound {
            return anyhow!(
                "there is no podman on this machine ({}), and container/… is a container of podman: install podman, or \
                 name the container's process as process/<pid>",
                self.0.display()
            );
        }
        anyhow::Error::new(error).context(format!("cannot run {}", self.0.display()))
    }
}

fn is_unknown(errors: &str) -> bool {
    [
        "no such container",
        "no such object",
        "no container with name or ID",
    ]
    .iter()
    .any(|text| errors.contains(text))
}

fn unknown(name: &str, root: bool) -> String {
    let owner_hint = if root {
        let user = env::var(SUDO_USER).unwrap_or_else(|_| "another user".to_owned());
        format!(
            "These are root's containers; for one of {user}, name its process, which `podman inspect -f \
             '{{{{.State.Pid}}}}' {name}` prints for them: -t process/<pid>"
        )
    } else {
        "These are your own containers; those of root need sudo".to_owned()
    };
    format!("podman knows no container {name}; `podman ps` lists those that run. {owner_hint}")
}

fn process_in(json: &[u8], name: &str) -> Result<u32> {
    let containers: Vec<Container> = serde_json::from_slice(json)
        .with_context(|| format!("podman describes container/{name} in an unknown format"))?;
    let container = containers
        .into_iter()
        .next()
        .with_context(|| format!("podman describes no container {name}"))?;
    let State {
        status,
        pid,
        exit_code,
    } = container.state;
    match status.as_str() {
        "running" | "paused" if pid > 0 => Ok(pid),
        "exited" | "stopped" => bail!(
            "container/{name} does not run: it ended with code {exit_code}. Start it with `podman start {name}`; `podman logs {name}` shows its output"
        ),
        "created" | "configured" | "initialized" => {
            bail!("container/{name} has not been started: `podman start {name}` does")
        }
        other => bail!("container/{name} does not run: it is {other}. See `podman ps --all`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_container_has_a_process_and_errors_name_the_next_step() {
        let check = |state: &str, expected: Result<u32, &str>| {
            let json = format!(r#"[{{"Id": "ab", "State": {{{state}, "Paused": false}}}}]"#);
            let found = process_in(json.as_bytes(), "checkout").map_err(|error| error.to_string());
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
        };
        check(r#""Status": "running", "Pid": 12"#, Ok(12));
        check(r#""Status": "paused", "Pid": 12"#, Ok(12));
        check(r#""Status": "exited", "ExitCode": 3"#, Err("code 3"));
        check(r#""Status": "created""#, Err("`podman start checkout`"));
        check(r#""Status": "removing""#, Err("it is removing"));
        check(r#""Status": "running", "Pid": 0"#, Err("it is running"));
        assert!(process_in(b"[]", "checkout").is_err());
        assert!(process_in(b"nonsense", "checkout").is_err());
    }

    #[test]
    fn messages_about_unknown_containers_are_recognized() {
        for message in [
            "Error: inspecting object: no such container nothing",
            "Error: no such container \"nothing\"",
        ] {
            assert!(is_unknown(message), "{message}");
        }
        assert!(!is_unknown("Error: cannot connect"));
        assert!(
            unknown("x", true).contains("{{.State.Pid}}"),
            "{}",
            unknown("x", true)
        );
        assert!(unknown("x", false).contains("sudo"));
    }
}
