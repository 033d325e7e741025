//! Processes that wait for the target: they do not block others, and they can be killed.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{read_all, test_env};
use crate::environment::wait_until;

#[test]
#[ignore = "needs root"]
fn waiting_processes_do_not_block_others_and_can_be_killed() {
    let env = test_env();
    env.write("slow", vec![b's'; 1 << 20]);
    env.write("cached", "cached");
    let mut cached = env.open("cached", libc::O_RDONLY).unwrap();
    assert_eq!(read_all(&mut cached), "cached");
    let slow: Vec<File> = (0..8)
        .map(|_| env.open("slow", libc::O_RDONLY).unwrap())
        .collect();
    let flags = libc::O_WRONLY | libc::O_APPEND;
    let appended = env.open("cached", flags).unwrap();
    let stalled = &env.traffic.stalled;
    stalled.store(true, Ordering::SeqCst);
    // They read behind the prefetched bytes.
    let mut readers: Vec<_> = slow
        .into_iter()
        .map(|slow| {
            Command::new("tail")
                .args(["-c", "1000"])
                .stdin(slow)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    // A process that waits for a write is not interruptible.
    let writer = Command::new("sh")
        .args(["-c", "echo more"])
        .stdout(appended)
        .spawn();
    readers.push(writer.unwrap());
    wait_until("all processes wait", || {
        readers.iter().all(|reader| waits(reader.id()))
    });
    cached.rewind().unwrap();
    let mut bytes = [0; 6];
    // It is in the page cache, so no request is sent.
    cached.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"cached");
    for reader in &mut readers {
        reader.kill().unwrap();
        reader.wait().unwrap();
    }
    assert!(
        stalled.swap(false, Ordering::SeqCst),
        "it was stalled until here"
    );
}

#[test]
#[ignore = "needs root"]
fn nonfatal_signals_do_not_interrupt_file_operations() {
    let env = test_env();
    let script = "$SIG{USR1} = sub {}; defined syswrite(STDOUT, \"once\\n\") or exit 3";
    let open = |name: &str| {
        let flags = libc::O_WRONLY | libc::O_CREAT;
        env.open_with_mode(name, flags, 0o600).unwrap()
    };
    let start = |file: File| {
        let mut command = Command::new("perl");
        command.args(["-e", script]).stdout(file).spawn().unwrap()
    };
    let signal = |process: &Child, signal: Signal| {
        kill(Pid::from_raw(process.id().cast_signed()), signal).unwrap();
    };
    let stall = |stalled| env.traffic.stalled.store(stalled, Ordering::SeqCst);
    let waits = |process: &Child| {
        let wait = std::fs::read_to_string(format!("/proc/{}/wchan", process.id()));
        wait.is_ok_and(|wait| wait.contains("request_wait"))
    };
    let files = (open("survivor"), open("killed"));
    stall(true);
    let (mut survivor, mut killed) = (start(files.0), start(files.1));
    wait_until("both write", || waits(&survivor) && waits(&killed));
    signal(&survivor, Signal::SIGUSR1);
    // A process that is killed exits although the target is stalled, even after a nonfatal signal.
    signal(&killed, Signal::SIGUSR1);
    signal(&killed, Signal::SIGTERM);
    let end = killed.wait().unwrap().signal();
    let still_writes = survivor.try_wait().unwrap().is_none();
    stall(false);
    assert_eq!(end, Some(libc::SIGTERM));
    assert!(still_writes, "{:?}", survivor.wait());
    assert!(survivor.wait().unwrap().success());
    assert_eq!(env.read("survivor"), "once\n");
}

/// Whether a process waits for a file.
fn waits(process: u32) -> bool {
    let wait = std::fs::read_to_string(format!("/proc/{process}/wchan"));
    wait.is_ok_and(|wait| wait.contains("request_wait") || wait.contains("folio"))
}
