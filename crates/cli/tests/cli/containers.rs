//! Containers of podman as targets.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::world::{Ended, NOBODY, Running, Standin, Target, agent_program};

/// Podman with a storage of its own, and in it one container. All of it is gone with the test.
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

    fn run(&self, arguments: &[&str]) -> Ended {
        Ended::from(
            Command::new(&self.program)
                .args(arguments)
                .output()
                .unwrap(),
        )
    }

    /// Its programs are this machine's, so that no image is needed. Limits are lowered because a container may not raise
    /// them where the tests themselves are limited.
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
        if fs::metadata(home).is_ok_and(|home| home.uid() == NOBODY) {
            // Also ends the process that keeps the user namespace.
            let end = "./podman rm --all --force --time 0; ./podman system migrate";
            as_nobody(home, end);
        } else {
            self.run(&["rm", "--all", "--force", "--time", "0"]);
        }
    }
}

#[test]
#[ignore = "needs root"]
fn a_program_stands_in_for_a_container_and_for_its_successor() {
    let podman = Podman::new();
    podman.start("checkout");
    let standin = podman.standin();
    let script = "echo $OF; hostname; cat /etc/standin-words";
    let ended = Ended::from(
        standin
            .session("container/checkout", &[], script)
            .output()
            .unwrap(),
    );
    ended
        .expect(0)
        .says(&["standing in for container/checkout"]);
    assert_eq!(
        ended.stdout,
        "container\nof-the-container\nthe container's words\n"
    );
    let id = podman
        .run(&["inspect", "--format", "{{.Id}}", "checkout"])
        .stdout;
    let by_id = format!("container/{}", &id[..12]);
    Ended::from(
        standin
            .session(&by_id, &[], "test $OF = container")
            .output()
            .unwrap(),
    )
    .expect(0);

    let script = "while ! test -e done; do cat /etc/standin-words >&2; sleep 0.05; done";
    let mut session = Running::start(standin.session("container/checkout", &[], script));
    session.until_said("the container's words");
    podman
        .run(&["restart", "--time", "0", "checkout"])
        .expect(0);
    session.until_said("standin: the target has ended");
    session.until_said("standin: the target is back");
    session.until_said("standin: the session goes on");
    session.until_said("the container's words");
    standin.write("done", "");
    session.wait().expect(0);
}

#[test]
#[ignore = "needs root"]
fn containers_that_do_not_run_say_what_to_do() {
    let podman = Podman::new();
    let standin = podman.standin();
    let run = |name: &str| standin.run(["exec", "-t", &format!("container/{name}"), "--", "true"]);
    run("nothing")
        .expect(125)
        .says(&["podman knows no container nothing", "podman ps"]);
    podman.start("checkout");
    podman.run(&["stop", "--time", "0", "checkout"]).expect(0);
    run("checkout").expect(125).says(&[
        "container/checkout does not run: it ended with code",
        "podman start checkout",
    ]);
}

/// Runs a script as a user without any rights, whose home is the given folder.
fn as_nobody(home: &Path, script: &str) -> Ended {
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir(home)
        .env("HOME", home)
        .env("XDG_RUNTIME_DIR", home);
    Ended::from(command.output().unwrap())
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
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let start = "./podman run --detach --name checkout --network none --volume /usr:/usr:ro --ulimit nofile=1024:1024 \
                 --ulimit nproc=1024:1024 --rootfs ./root /bin/sleep 3600";
    as_nobody(
        home,
        &start.replace("./root", &home.join("root").display().to_string()),
    )
    .expect(0);
    let ended = as_nobody(
        home,
        "STANDIN_PODMAN=./podman ./standin exec -t container/checkout -- cat /etc/standin-words",
    );
    ended.expect(0);
    assert_eq!(ended.stdout, "the container's words\n");
}

#[test]
fn without_podman_the_way_around_is_said() {
    let standin = Standin::new().with("STANDIN_PODMAN", "/nowhere/podman");
    let ended = standin.run(["exec", "-t", "container/checkout", "--", "true"]);
    ended
        .expect(125)
        .says(&["there is no podman on this machine", "process/<pid>"]);
    // Other targets need none.
    let target = Target::new();
    standin
        .run(["exec", "-t", &target.name(), "--", "true"])
        .expect(0);
}
