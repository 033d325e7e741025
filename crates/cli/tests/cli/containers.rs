//! Podman containers as targets.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{
    ProcessOutput, RunningSession, Standin, Target, UNPRIVILEGED_UID, agent_program,
};

/// Podman with its own storage and one container. All of it is removed with the test.
struct Podman {
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl Podman {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let program = folder.path().join("podman");
        let script = format!(
            "#!/bin/sh\nexec podman --root {} --runroot {} --tmpdir {} --storage-driver vfs --events-backend none \
             --cgroup-manager cgroupfs \"$@\"\n",
            path("storage"),
            path("run"),
            path("temporary"),
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let root = folder.path().join("root");
        for name in ["etc", "usr", "proc", "sys", "dev", "tmp"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        for name in ["bin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), root.join(name)).unwrap();
        }
        fs::write(root.join("etc/standin-words"), "the container's words\n").unwrap();
        Podman { program, folder }
    }

    fn run(&self, arguments: &[&str]) -> ProcessOutput {
        ProcessOutput::from(
            Command::new(&self.program)
                .args(arguments)
                .output()
                .unwrap(),
        )
    }

    /// The container uses the programs of this machine, so that no image is needed. Limits are lowered because a container
    /// cannot raise them if the tests themselves are limited.
    fn start(&self, name: &str) {
        let root = self.folder.path().join("root").display().to_string();
        let options = [
            "--network",
            "none",
            "--volume",
            "/usr:/usr:ro",
            "--ulimit",
            "nofile=1024:1024",
            "--ulimit",
            "nproc=1024:1024",
        ];
        let rest = [
            "--hostname",
            "of-the-container",
            "-e",
            "OF=container",
            "--rootfs",
            &root,
            "/bin/sleep",
            "3600",
        ];
        let all: Vec<&str> = ["run", "--detach", "--name", name]
            .into_iter()
            .chain(options)
            .chain(rest)
            .collect();
        self.run(&all).expect(0);
    }

    fn standin(&self) -> Standin {
        Standin::new().with("STANDIN_PODMAN", &self.program)
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let home = self.folder.path();
        if fs::metadata(home).is_ok_and(|home| home.uid() == UNPRIVILEGED_UID) {
            // Also ends the process that holds the user namespace.
            let end = "./podman rm --all --force --time 0; ./podman system migrate";
            run_unprivileged(home, end);
        } else {
            self.run(&["rm", "--all", "--force", "--time", "0"]);
        }
    }
}

#[test]
#[ignore = "needs root"]
fn a_program_stands_in_for_a_container_also_after_its_restart() {
    let podman = Podman::new();
    podman.start("checkout");
    let standin = podman.standin();
    let script = "echo $OF; hostname; cat /etc/standin-words";
    let ended = ProcessOutput::from(
        standin
            .session("container/checkout", &[], script)
            .output()
            .unwrap(),
    );
    ended
        .expect(0)
        .expect_stderr(&["standing in for container/checkout"]);
    assert_eq!(
        ended.stdout,
        "container\nof-the-container\nthe container's words\n"
    );
    let id = podman
        .run(&["inspect", "--format", "{{.Id}}", "checkout"])
        .stdout;
    let by_id = format!("container/{}", &id[..12]);
    ProcessOutput::from(
        standin
            .session(&by_id, &[], "test $OF = container")
            .output()
            .unwrap(),
    )
    .expect(0);

    let script = "while ! test -e done; do cat /etc/standin-words >&2; sleep 0.05; done";
    let mut session = RunningSession::start(standin.session("container/checkout", &[], script));
    session.wait_for_output("the container's words");
    podman
        .run(&["restart", "--time", "0", "checkout"])
        .expect(0);
    session.wait_for_output("standin: the target has ended");
    session.wait_for_output("standin: the target has restarted");
    session.wait_for_output("standin: the session continues");
    session.wait_for_output("the container's words");
    standin.write("done", "");
    session.wait().expect(0);
}

#[test]
#[ignore = "needs root"]
fn errors_about_stopped_containers_name_the_next_step() {
    let podman = Podman::new();
    let standin = podman.standin();
    let run = |name: &str| standin.run(["exec", "-t", &format!("container/{name}"), "--", "true"]);
    run("nothing")
        .expect(125)
        .expect_stderr(&["podman knows no container nothing", "podman ps"]);
    podman.start("checkout");
    podman.run(&["stop", "--time", "0", "checkout"]).expect(0);
    run("checkout").expect(125).expect_stderr(&[
        "container/checkout does not run: it ended with code",
        "podman start checkout",
    ]);
}

/// Runs a script as an unprivileged user with this home folder.
fn run_unprivileged(home: &Path, script: &str) -> ProcessOutput {
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .uid(UNPRIVILEGED_UID)
        .gid(UNPRIVILEGED_UID)
        .current_dir(home)
        .env("HOME", home)
        .env("XDG_RUNTIME_DIR", home);
    ProcessOutput::from(command.output().unwrap())
}

#[test]
#[ignore = "needs root"]
fn a_users_own_container_needs_no_root() {
    let podman = Podman::new();
    let home = podman.folder.path();
    fs::set_permissions(home, fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_standin"), home.join("standin")).unwrap();
    fs::copy(agent_program(), home.join("standind")).unwrap();
    for path in [home.to_path_buf(), home.join("root"), home.join("root/etc")] {
        chown(path, Some(UNPRIVILEGED_UID), Some(UNPRIVILEGED_UID)).unwrap();
    }
    let start = "./podman run --detach --name checkout --network none --volume /usr:/usr:ro --ulimit nofile=1024:1024 \
                 --ulimit nproc=1024:1024 --rootfs ./root /bin/sleep 3600";
    run_unprivileged(
        home,
        &start.replace("./root", &home.join("root").display().to_string()),
    )
    .expect(0);
    let ended = run_unprivileged(
        home,
        "STANDIN_PODMAN=./podman ./standin exec -t container/checkout -- cat /etc/standin-words",
    );
    ended.expect(0);
    assert_eq!(ended.stdout, "the container's words\n");
}

#[test]
fn the_error_without_podman_names_an_alternative() {
    let standin = Standin::new().with("STANDIN_PODMAN", "/nowhere/podman");
    let ended = standin.run(["exec", "-t", "container/checkout", "--", "true"]);
    ended
        .expect(125)
        .expect_stderr(&["there is no podman on this machine", "process/<pid>"]);
    // Other targets do not need podman.
    let target = Target::new();
    standin
        .run(["exec", "-t", &target.name(), "--", "true"])
        .expect(0);
}
