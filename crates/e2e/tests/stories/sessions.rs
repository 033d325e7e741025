//! Sessions on this machine: a program as the stand-in for a process in namespaces of its own.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, anyhow, ensure};
use e2e::{LaterWorld, Needs, Story, environment, tell, until};
use libtest_mimic::Trial;

/// What the target is: files, a name and a server that exist only for it.
const TARGET: &str = include_str!("../../fixtures/target.sh");

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![
        tell(
            world,
            "a_program_stands_in_for_a_process",
            Needs::Clusters,
            a_program_stands_in_for_a_process,
        ),
        tell(
            world,
            "programs_of_many_languages_stand_in",
            Needs::Clusters,
            programs_of_many_languages_stand_in,
        ),
        tell(
            world,
            "a_killed_session_ends_its_program_and_agent",
            Needs::Clusters,
            a_killed_session_ends_everything,
        ),
        tell(
            world,
            "a_session_that_cannot_be_says_why",
            Needs::Clusters,
            a_session_that_cannot_be_says_why,
        ),
    ]
}

async fn a_program_stands_in_for_a_process(_: &Story<'_>) -> Result<()> {
    let target = Target::start().await?;
    let script = "echo env=$SECRET_OF_TARGET; cat /etc/standin-words; echo host=$(hostname); getent hosts only-here; \
                  ls /etc/standin-folder; curl -sS -m 20 http://only-here:8080/; cat /etc/nowhere; exit 7";
    let output = target.stand_in(&["bash", "-c", script])?;
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    for expected in [
        "env=yes",
        "the target's words",
        "host=target-host",
        "10.77.0.1",
        "one\ntwo\n",
        "served by the target",
    ] {
        ensure!(
            stdout.contains(expected),
            "{expected:?} is missing in: {stdout}\n{stderr}"
        );
    }
    ensure!(stderr.contains("/etc/nowhere: No such file"), "{stderr}");
    ensure!(
        output.status.code() == Some(7),
        "it ended with {}",
        output.status
    );
    // The same without a session sees none of it.
    let plain = Command::new("bash")
        .args(["-c", "cat /etc/standin-words"])
        .output()?;
    ensure!(!plain.status.success(), "the file is on this machine");
    Ok(())
}

async fn programs_of_many_languages_stand_in(_: &Story<'_>) -> Result<()> {
    let target = Target::start().await?;
    let python = "import socket, urllib.request as u; print(open('/etc/standin-words').read(), socket.gethostname(), \
                  u.urlopen('http://only-here:8080/', timeout=20).read())";
    let node = "const fs=require('fs'),os=require('os'); console.log(fs.readFileSync('/etc/standin-words','utf8'), \
                os.hostname()); require('http').get('http://only-here:8080/', r => r.pipe(process.stdout))";
    let perl = "use Sys::Hostname; use IO::Socket; open F, '/etc/standin-words'; print <F>, hostname, \"\\n\"; my $s = \
                IO::Socket::INET->new('10.77.0.1:8080'); print $s \"GET / HTTP/1.0\\r\\n\\r\\n\"; print <$s>";
    for command in [
        ["python3", "-c", python],
        ["node", "-e", node],
        ["perl", "-e", perl],
    ] {
        let output = target.stand_in(&command)?;
        let said = text(&output.stdout);
        for expected in ["the target's words", "target-host", "served by the target"] {
            ensure!(
                said.contains(expected),
                "{}: {expected:?} is missing in {said}\n{}",
                command[0],
                text(&output.stderr)
            );
        }
    }
    Ok(())
}

async fn a_killed_session_ends_everything(_: &Story<'_>) -> Result<()> {
    let target = Target::start().await?;
    // An argument that nothing else on the machine has.
    let unique = format!("1{}", target.process.id());
    let mut session = target
        .command(&["sleep", &unique])?
        .stderr(Stdio::null())
        .spawn()?;
    let running = |pattern: &str| {
        let found = Command::new("pgrep")
            .args(["-f", pattern])
            .stdout(Stdio::null())
            .status();
        found.is_ok_and(|status| status.success())
    };
    let (program, agent) = (
        format!("^sleep {unique}"),
        format!("[-]-process {}$", target.pid),
    );
    until("the program to run", async || {
        Ok(running(&program).then_some(()))
    })
    .await?;
    ensure!(running(&agent), "there is no agent");
    session.kill()?;
    session.wait()?;
    until("the program to end", async || {
        Ok((!running(&program)).then_some(()))
    })
    .await?;
    until("the agent to end", async || {
        Ok((!running(&agent)).then_some(()))
    })
    .await
}

async fn a_session_that_cannot_be_says_why(_: &Story<'_>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let wrong = folder.path().join("standin.yaml");
    fs::write(&wrong, "feature:\n  env:\n    inclde: A\n")?;
    let wrong = wrong.to_str().context("the path")?;
    for (arguments, expected) in [
        (
            vec!["exec", "-t", "process/4194303", "--", "true"],
            "there is no process 4194303",
        ),
        (
            vec!["exec", "-t", "nonsense", "--", "true"],
            "process/<pid>",
        ),
        (vec!["exec", "--", "true"], "name a target"),
        (
            vec!["exec", "-f", wrong, "-t", "process/1", "--", "true"],
            "include",
        ),
        (vec!["verify-config", wrong], "include"),
    ] {
        let output = Command::new(programs()?.join("standin"))
            .args(&arguments)
            .output()?;
        let said = text(&output.stdout) + &text(&output.stderr);
        ensure!(!output.status.success(), "{arguments:?} succeeded: {said}");
        ensure!(
            said.contains(expected),
            "{arguments:?} does not say {expected:?}: {said}"
        );
    }
    Ok(())
}

/// A process with files, a host name and a network of its own.
struct Target {
    process: Child,
    pid: u32,
    _folder: tempfile::TempDir,
}

impl Target {
    async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let ready = folder.path().join("pid");
        let process = Command::new("unshare")
            .args([
                "--net",
                "--mount",
                "--uts",
                "--pid",
                "--fork",
                "--kill-child",
                "--",
                "bash",
                "-c",
                TARGET,
                "target",
            ])
            .arg(&ready)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start unshare")?;
        let mut target = Target {
            process,
            pid: 0,
            _folder: folder,
        };
        target.pid = until("the target to serve", async || {
            Ok(fs::read_to_string(&ready)
                .ok()
                .and_then(|pid| pid.trim().parse().ok()))
        })
        .await?;
        Ok(target)
    }

    fn command(&self, command: &[&str]) -> Result<Command> {
        let mut standin = Command::new(programs()?.join("standin"));
        standin
            .args(["exec", "-t", &format!("process/{}", self.pid), "--"])
            .args(command);
        Ok(standin)
    }

    fn stand_in(&self, command: &[&str]) -> Result<Output> {
        Ok(self.command(command)?.stdin(Stdio::null()).output()?)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The folder with `standin` and `standind`, built once when nobody has.
fn programs() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || -> Result<PathBuf> {
        if let Some(folder) = env::var_os(environment::PROGRAMS) {
            return Ok(PathBuf::from(folder));
        }
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("..");
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("CARGO_TARGET_DIR", &target);
        lab::output_of(cargo.args([
            "build",
            "--locked",
            "--package",
            "cli",
            "--package",
            "server",
        ]))?;
        Ok(target.join("debug"))
    };
    BUILT
        .get_or_init(|| build().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|error| anyhow!(error))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
