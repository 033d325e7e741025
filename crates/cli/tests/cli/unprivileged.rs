//! A user without any rights, and a target in a user namespace of that user.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::world::{Ended, NOBODY, agent_program};

/// In namespaces that are already made: a folder that only the target has. It ends with its standard input.
const TARGET: &str = "mount -t tmpfs tmpfs /srv; echo words > /srv/file; hostname of-the-target; \
                      read -r pid rest < /proc/self/stat; echo $pid; exec cat";

/// Does what needs a real descriptor. The last is possible only through FUSE.
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
# What is written last must not be lost, whatever else the program still waits for.
waiting = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
waiting.bind(('127.0.0.1', 0))
threading.Thread(target=lambda: waiting.recvfrom(1), daemon=True).start()
open('/srv/last', 'wb').write(b'x' * 30_000_000)
os._exit(0)
";

/// Puts a program where the user finds it. Unoptimised programs are large, so it is copied only where it must be.
fn place(program: &Path, to: &Path) {
    fs::hard_link(program, to)
        .or_else(|_| fs::copy(program, to).map(drop))
        .unwrap();
}

/// Runs the program in a session, all of it as a user without rights, and answers what it said.
fn stand_in(device: &Path) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    fs::set_permissions(home, fs::Permissions::from_mode(0o755)).unwrap();
    chown(home, Some(NOBODY), Some(NOBODY)).unwrap();
    place(
        Path::new(env!("CARGO_BIN_EXE_standin")),
        &home.join("standin"),
    );
    place(agent_program(), &home.join("standind"));
    fs::write(home.join("program.py"), PROGRAM).unwrap();
    fs::write(home.join("target.sh"), TARGET).unwrap();
    // The shell holds the target's standard input, so the target ends with it.
    let script = "set -e; cd \"$1\"; mkfifo hold; \
         unshare --user --map-root-user --mount --net --uts --pid --fork --kill-child sh target.sh < hold > pid & \
         exec 3> hold; until test -s pid; do sleep 0.02; done; \
         ./standin exec --quiet --fs-mode write -t process/$(head -n 1 pid) -- python3 program.py; \
         stat --format %s /proc/$(head -n 1 pid)/root/srv/last";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c"])
        .arg(format!(
            "mount --bind '{}' /dev/fuse && exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups \
             env --unset=STANDIN_PROGRAMS HOME=\"$1\" bash -c \"$0\" bash \"$1\"",
            device.display()
        ))
        .arg(script)
        .arg(home)
        .stdin(Stdio::null());
    Ended::from(command.output().unwrap())
}

#[track_caller]
fn check(ended: &Ended, last: &str) {
    let expected = "of-the-target b'words\\n' 6 ['file']\nb'words\\n'\n7 written\n";
    let said = &ended.expect(0).stdout;
    assert_eq!(*said, format!("{expected}{last}\n30000000\n"), "{ended:?}");
}

#[test]
#[ignore = "needs root"]
fn files_come_through_fuse() {
    let folder = tempfile::tempdir().unwrap();
    let device = folder.path().join("fuse");
    let made = Command::new("mknod")
        .args(["--mode=666"])
        .arg(&device)
        .args(["c", "10", "229"])
        .status();
    assert!(made.unwrap().success());
    check(&stand_in(&device), "changed in place");
}

#[test]
#[ignore = "needs root"]
fn where_fuse_is_forbidden_files_come_through_memory() {
    let ended = stand_in(Path::new("/dev/null"));
    check(&ended, "ENOTSUP");
    ended.says(&["/srv/file has content at the target, and without FUSE"]);
}
