//! Build tools in a working directory of the target.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use crate::support::{ProcessOutput, Standin};

/// A target with directories of its own in `/srv`. It ends with the test.
struct MountedTarget(Child);

impl MountedTarget {
    fn new() -> Self {
        let script = "mount -t tmpfs tmpfs /srv && mkdir /srv/both /srv/only && cd /srv && touch both/of-target only/of-target \
             && echo '$(info $(CURDIR) $(wildcard of-*))all:' >only/Makefile && echo ready && exec cat";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        MountedTarget(child)
    }

    /// Runs a script in a session, on a machine that has one of the two directories.
    fn run(&self, standin: &Standin, script: &str) -> ProcessOutput {
        let machine = "mount -t tmpfs tmpfs /srv && mkdir /srv/both && touch /srv/both/of-machine \
             && printf '$(info $(CURDIR) $(wildcard of-*))\\nall:\\n\\t@echo below $$(pwd -P) of-*\\n' >/srv/both/Makefile \
             && exec \"$0\" \"$@\"";
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "sh",
            "-c",
            machine,
            env!("CARGO_BIN_EXE_standin"),
        ]);
        command.args(["exec", "--quiet", "-t", &format!("process/{}", self.0.id())]);
        command.args(["--", "bash", "-c", script]);
        standin.configure(&mut command);
        ProcessOutput::from(command.output().unwrap())
    }
}

impl Drop for MountedTarget {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs root"]
fn a_build_tool_runs_in_the_same_directory_of_this_machine() {
    let target = MountedTarget::new();
    let ended = target.run(&Standin::new(), "cd /srv/both && echo of-* && make -s");
    ended.expect(0);
    // The tool sees this machine, and what it starts is in the session again.
    assert_eq!(
        ended.stdout,
        "of-target\n/srv/both of-machine\nbelow /srv/both of-target\n"
    );
}

#[test]
#[ignore = "needs root"]
fn a_build_tool_without_a_directory_on_this_machine_is_not_started() {
    let target = MountedTarget::new();
    let ended = target.run(
        &Standin::new(),
        "cd /srv/only && make -s; echo $?; echo of-*",
    );
    ended.expect(0).expect_stderr(&[
        "/make was not started: it runs outside of the session (`skip_build_tools`), and its working directory /srv/only is \
         the target's; this machine has no such directory. Change to a directory of this machine first, or set \
         `skip_build_tools` to `false`\n",
    ]);
    assert_eq!(ended.stdout, "126\nof-target\n");

    // The message names what helps.
    let inside = Standin::new().with("STANDIN_SKIP_BUILD_TOOLS", "false");
    let ended = target.run(&inside, "cd /srv/only && make -s");
    assert_eq!(ended.expect(0).stdout, "/srv/only of-target\n");
    let ended = target.run(
        &Standin::new(),
        "cd /srv/only && cd /srv/both && make -s -C .",
    );
    let stdout = &ended.expect(0).stdout;
    assert!(stdout.starts_with("/srv/both of-machine\n"), "{stdout}");

    let listed = Standin::new().with("STANDIN_SKIP_PROCESSES", "ls");
    let ended = target.run(&listed, "cd /srv/only && ls; echo $?");
    ended.expect(0).expect_stderr(&[
        "/ls was not started: it runs outside of the session (`skip_processes`)",
        "or remove it from `skip_processes`\n",
    ]);
    assert_eq!(ended.stdout, "126\n");
}
