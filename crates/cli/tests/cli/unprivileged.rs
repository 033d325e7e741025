//! An unprivileged user, and a target in a user namespace of that user.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{ProcessOutput, UNPRIVILEGED_UID, agent_program};

/// Runs in new namespaces, with a folder that only the target has. It ends with its standard input.
const TARGET: &str = "mount -t tmpfs tmpfs /srv; echo words > /srv/file; hostname of-the-target; \
                      read -r pid rest < /proc/self/stat; echo $pid; exec cat";

/// Uses files in ways that need a real descriptor. The change in place is possible only with FUSE.
const PROGRAM: &str = "\
import errno, mmap, os, socket, threading
file = open('/srv/file', 'rb')
print(socket.gethostname(), file.read(), os.fstat(file.fileno()).st_size, os.listdir('/srv'))
print(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[:])
with open('/srv/new', 'w') as new:
    new.write('written')
print(os.stat('/srv/new').st_size, open('/srv/new').read())
try:
    open('/srv/file', 'r+').close()
    print('changed in place', flush=True)
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
# The last write must not be lost, even if another thread of the program is blocked.
waiting = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
waiting.bind(('127.0.0.1', 0))
threading.Thread(target=lambda: waiting.recvfrom(1), daemon=True).start()
open('/srv/last', 'wb').write(b'x' * 30_000_000)
os._exit(0)
";

/// Links a program into the user's folder. Debug builds are large, so it is copied only if it cannot be linked.
fn install(program: &Path, to: &Path) {
    fs::hard_link(program, to)
        .or_else(|_| fs::copy(program, to).map(drop))
        .unwrap();
}

/// Runs the program in a session as an unprivileged user.
fn run_session(device: &Path) -> ProcessOutput {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    fs::set_permissions(home, fs::Permissions::from_mode(0o755)).unwrap();
    chown(home, Some(UNPRIVILEGED_UID), Some(UNPRIVILEGED_UID)).unwrap();
    install(
        Path::new(env!("CARGO_BIN_EXE_standin")),
        &home.join("standin"),
    );
    install(agent_program(), &home.join("standind"));
    fs::write(home.join("program.py"), PROGRAM).unwrap();
    fs::write(home.join("target.sh"), TARGET).unwrap();
    // The shell holds the target's standard input open, so the target ends with the shell.
    let script = "set -e; cd \"$1\"; mkfifo hold; \
         unshare --user --map-root-user --mount --net --uts --pid --fork --kill-child sh target.sh < hold > pid & \
         exec 3> hold; until test -s pid; do sleep 0.02; done; \
         ./standin exec --quiet --fs-mode write -t process/$(head -n 1 pid) -- python3 program.py; \
         stat --format %s /proc/$(head -n 1 pid)/root/srv/last";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c"])
        .arg(format!(
            "mount --bind '{}' /dev/fuse && exec setpriv --reuid {UNPRIVILEGED_UID} --regid {UNPRIVILEGED_UID} --clear-groups \
             env --unset=STANDIN_PROGRAMS HOME=\"$1\" bash -c \"$0\" bash \"$1\"",
            device.display()
        ))
        .arg(script)
        .arg(home)
        .stdin(Stdio::null());
    ProcessOutput::from(command.output().unwrap())
}

#[track_caller]
fn check(ended: &ProcessOutput, last: &str) {
    let expected = "of-the-target b'words\\n' 6 ['file']\nb'words\\n'\n7 written\n";
    let stdout = &ended.expect(0).stdout;
    assert_eq!(
        *stdout,
        format!("{expected}{last}\n30000000\n"),
        "{ended:?}"
    );
}

#[test]
#[ignore = "needs root"]
fn files_are_served_through_fuse() {
    let folder = tempfile::tempdir().unwrap();
    let device = folder.path().join("fuse");
    let status = Command::new("mknod")
        .args(["--mode=666"])
        .arg(&device)
        .args(["c", "10", "229"])
        .status();
    assert!(status.unwrap().success());
    check(&run_session(&device), "changed in place");
}

#[test]
#[ignore = "needs root"]
fn without_fuse_files_are_served_from_memory() {
    let ended = run_session(Path::new("/dev/null"));
    check(&ended, "ENOTSUP");
    ended.expect_stderr(&["/srv/file has content at the target, and without FUSE"]);
}
