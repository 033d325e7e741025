//! Environments of the supervisor: unprivileged users, restrictions, and the errors that report them.

use std::path::Path;
use std::process::{Command, Stdio};

use interceptor::Launch;

use crate::programs;
use crate::target::{Target, environment, run};

/// This test binary as a separate program: a supervisor that can be killed, run as another user, or in another
/// environment.
#[test]
#[ignore = "a program that other tests start"]
fn helper_process_supervisor() {
    let script = std::env::var("SUPERVISED_SCRIPT").expect("another test starts it");
    if let Err(error) = interceptor::check() {
        println!("check: {error:?}");
    }
    let target = Target::new();
    let result = Launch::new("bash")
        .arguments(["-c", &script])
        .environment(environment())
        .start(std::sync::Arc::clone(&target) as _);
    match result {
        Ok(mut supervised) => println!("ended: {:?}", supervised.wait().unwrap().code()),
        Err(error) => {
            assert!(!error.hint().is_empty());
            println!("error: {error:?}");
        }
    }
    for notice in target.notices.lock().unwrap().iter() {
        println!("notice: {notice:?}");
    }
}

const SUPERVISOR: [&str; 4] = [
    "--ignored",
    "--exact",
    "--nocapture",
    "environments::helper_process_supervisor",
];

/// A command that runs [`helper_process_supervisor`] with this script.
pub(crate) fn supervisor_command(binary: &Path, script: &str) -> Command {
    let mut command = Command::new(binary);
    command
        .args(SUPERVISOR)
        .env("SUPERVISED_SCRIPT", script)
        .stdin(Stdio::null());
    command
}

/// Runs [`helper_process_supervisor`] below another program with these arguments.
pub(crate) fn supervise_below(program: &Path, arguments: &[&str], script: &str) -> String {
    let output = Command::new(program)
        .args(arguments)
        .arg(std::env::current_exe().unwrap())
        .args(SUPERVISOR)
        .env("SUPERVISED_SCRIPT", script)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn nested_supervision_is_refused() {
    let binary = std::env::current_exe().unwrap();
    let script = format!(
        "SUPERVISED_SCRIPT=true '{}' {}",
        binary.display(),
        SUPERVISOR.join(" ")
    );
    let output = run(&Target::new(), &script).output();
    assert!(output.contains("check: Nested"), "{output}");
    assert!(output.contains("error: Nested"), "{output}");
}

#[test]
fn forbidden_calls_are_reported() {
    let forbid = programs::c("forbid");
    let table = [
        ("seccomp", "Forbidden { source: EPERM }"),
        ("no-seccomp", "NoUserNotification"),
        ("process_vm_readv", "Unreadable { source: EPERM }"),
        (
            "pidfd_open",
            "System { what: \"open our own process\", source: EPERM }",
        ),
    ];
    for (forbidden, expected) in table {
        let output = supervise_below(&forbid, &[forbidden], "echo ran");
        assert!(
            output.contains(&format!("error: {expected}")),
            "{forbidden}: {output}"
        );
        assert!(!output.contains("\nran"), "{forbidden}: {output}");
        assert!(
            output.contains(&format!("check: {expected}")),
            "{forbidden}: {output}"
        );
    }
    // An unrelated filter does not prevent supervision.
    let output = supervise_below(&forbid, &["nothing"], "echo ran");
    assert!(output.contains("\nran\nended: Some(0)\n"), "{output}");
    assert!(!output.contains("check:"), "{output}");
}

#[test]
fn missing_proc_is_reported() {
    let script = "mount -t tmpfs none /proc && exec \"$0\" \"$@\"";
    let unshare = Path::new("unshare");
    programs::require("unshare");
    let output = supervise_below(
        unshare,
        &["--user", "--map-root-user", "--mount", "sh", "-c", script],
        "true",
    );
    if !output.contains("running 1 test") {
        println!("skipped: private mounts are not permitted on this machine: {output}");
        return;
    }
    assert!(
        output.contains("error: NoProc { source: ENOENT }"),
        "{output}"
    );
}

/// Runs a copy of this test binary as an unprivileged user. Only root can switch users.
fn as_unprivileged_user(arguments: &[&str], script: &str) -> String {
    let is_root = std::fs::read_to_string("/proc/self/status")
        .unwrap()
        .lines()
        .any(|line| line.starts_with("Uid:\t0\t0"));
    assert!(is_root, "needs root: run with sudo, or leave it ignored");
    programs::require("setpriv");
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let binary = folder.path().join("tests");
    let temporary = folder.path().join("temporary");
    std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    std::fs::create_dir(&temporary).unwrap();
    let mode = |mode: &str, path: &Path| {
        let status = Command::new("chmod").arg(mode).arg(path).status();
        assert!(status.unwrap().success());
    };
    mode("755", folder.path());
    mode("755", &binary);
    mode("1777", &temporary);
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&binary)
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("TMPDIR", &temporary)
        .env("HOME", &temporary)
        .env("SUPERVISED_SCRIPT", script)
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
#[ignore = "needs root"]
fn unprivileged_user_can_supervise() {
    let script = "id -u; hostname; sh -c 'exit 3'; echo $?; grep NoNewPrivs /proc/self/status; /usr/bin/su --version >/dev/null";
    let output = as_unprivileged_user(&SUPERVISOR, script);
    assert!(
        output.contains("65534\ncheckout-7d9f\n3\nNoNewPrivs:\t1\n"),
        "{output}"
    );
    assert!(output.contains("ended: Some(0)"), "{output}");
    assert!(
        output.contains("notice: NoPrivileges { path: \"/usr/bin/su\" }"),
        "{output}"
    );
}

#[test]
#[ignore = "needs root"]
fn unreadable_memory_is_reported() {
    let program = programs::c("hidden");
    // In a directory that all users can access.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let copy = folder.path().join("hidden");
    std::fs::copy(program, &copy).unwrap();
    let script = format!("{}; echo $?", copy.display());
    Command::new("chmod")
        .arg("755")
        .arg(folder.path())
        .status()
        .unwrap();
    let output = as_unprivileged_user(&SUPERVISOR, &script);
    assert!(
        output.contains("No such file or directory\n0\n"),
        "{output}"
    );
    assert!(
        output.contains("notice: UnreadableMemory { process: "),
        "{output}"
    );
}

/// An unprivileged user has other capabilities than root, so most tests also run as one.
#[test]
#[ignore = "needs root"]
fn most_tests_pass_for_unprivileged_user() {
    let readable = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .args(["head", "-c1"])
        .arg(programs::source("files.c"))
        .output();
    if !readable.is_ok_and(|output| output.status.success()) {
        println!("skipped: other users cannot read these sources");
        return;
    }
    let modules = [
        "files::",
        "hostname::",
        "processes::",
        "outgoing::",
        "incoming::",
        "signals::on_old",
        // Not on the path of every user.
        "--skip=servers::go_net_http",
        "--skip=servers::nginx",
    ];
    let output = as_unprivileged_user(&modules, "");
    assert!(output.contains("test result: ok. "), "{output}");
    let passed = output.matches(" ... ok").count();
    assert!(passed > 50, "{passed}: {output}");
}

#[test]
fn diagnosis_succeeds() {
    let diagnosis = interceptor::diagnose();
    assert!(diagnosis.user_notification.is_ok(), "{diagnosis:?}");
    assert!(
        diagnosis.read_memory && diagnosis.copy_descriptors,
        "{diagnosis:?}"
    );
    println!("{diagnosis:?}");
    interceptor::check().unwrap();
}
