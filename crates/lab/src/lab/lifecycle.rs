//! The lifecycle of a lab's daemon: starting it, finding it, shutting it down, and cleaning up after one that was
//! killed. Also the record through which other processes find a lab.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::command::tail;
use crate::control;
use crate::daemon::{self, ROLE};
use crate::error::{Error, ErrorContext as _, Result};
use crate::paths::LabPaths;
use crate::plan::{ClusterPlan, Network};
use crate::progress::Progress;
use crate::role::{self, Role};

const START_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Long enough for a busy machine with many pods.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(120);

/// The state file of a lab, through which other processes find its parts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LabRecord {
    pub(crate) network: Network,
    pub(crate) clusters: Vec<ClusterPlan>,
}

impl LabRecord {
    pub(crate) fn write(&self, paths: &LabPaths) -> Result<()> {
        write_json(&paths.record(), self)
    }

    fn read(paths: &LabPaths) -> Result<Self> {
        let file = paths.record();
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        serde_json::from_str(&text).map_err(|source| Error::Json {
            what: file.display().to_string(),
            source,
        })
    }
}

/// Starts a daemon, which creates the lab's network. The lab runs as long as the returned pipe is open, or until it is
/// taken down once it has been released.
pub(super) fn start_daemon(
    paths: &LabPaths,
    progress: &Progress,
) -> Result<(LabRecord, Option<ChildStdin>)> {
    // Only root may read this directory: it has keys, kubeconfigs and control sockets.
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&paths.directory)
        .with_context(|| format!("create {}", paths.directory.display()))?;
    let log = paths.daemon_log();
    let output = File::create(&log).with_context(|| format!("write {}", log.display()))?;
    let errors = output
        .try_clone()
        .with_context(|| format!("write {}", log.display()))?;
    let mut child = role::command(Role::Daemon, &paths.directory)?
        .stdin(Stdio::piped())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .with_context(|| "start the lab's daemon".to_owned())?;
    let input = child.stdin.take();
    let deadline = Instant::now() + START_TIMEOUT;
    while !is_alive(paths) {
        let exited = child
            .try_wait()
            .with_context(|| "wait for the lab's daemon".to_owned())?;
        if exited.is_some() || Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            let text = fs::read_to_string(&log).unwrap_or_default();
            clean_up(paths)?;
            return Err(Error::Refused(format!(
                "the lab's daemon did not start; its log:\n{}",
                tail(&text, 15)
            )));
        }
        thread::sleep(POLL_INTERVAL);
    }
    // Reaped by a thread, so that a process that outlives its lab has no zombie child.
    thread::spawn(move || child.wait());
    let record = LabRecord::read(paths)?;
    progress.step(format!("network {} created", record.network.subnet()));
    Ok((record, input))
}

/// The record of a running lab. It is only read, so no lock is needed.
pub(super) fn find(paths: &LabPaths) -> Result<Option<LabRecord>> {
    if is_alive(paths) {
        LabRecord::read(paths).map(Some)
    } else {
        Ok(None)
    }
}

/// Like [`find`], under the lock: waits for a lab that is shutting down, and cleans up after one that was killed.
pub(super) fn find_or_clean_up(paths: &LabPaths) -> Result<Option<LabRecord>> {
    if !is_alive(paths) {
        clean_up(paths)?;
        return Ok(None);
    }
    let status: daemon::Status =
        control::call(ROLE, &paths.daemon_socket(), &daemon::Request::Status)?;
    if status.shutting_down {
        wait_for_shutdown(paths)?;
        return Ok(None);
    }
    find(paths)
}

/// Shuts the daemon down and waits until it has exited.
pub(super) fn shut_down(paths: &LabPaths) -> Result<()> {
    if is_alive(paths) {
        // The daemon may exit before its response is sent. Only its exit matters.
        let _ = control::call::<_, daemon::Status>(
            ROLE,
            &paths.daemon_socket(),
            &daemon::Request::Down,
        );
    }
    wait_for_shutdown(paths)
}

fn wait_for_shutdown(paths: &LabPaths) -> Result<()> {
    let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
    while is_alive(paths) {
        if Instant::now() > deadline {
            return Err(Error::Refused(format!(
                "the lab's daemon does not exit; its log is {}",
                paths.daemon_log().display()
            )));
        }
        thread::sleep(POLL_INTERVAL);
    }
    clean_up(paths)
}

/// Whether a daemon listens. A socket without a listener was left by a daemon that was killed.
fn is_alive(paths: &LabPaths) -> bool {
    UnixStream::connect(paths.daemon_socket()).is_ok()
}

/// Removes what the kernel does not release when a daemon is killed: control groups and files.
fn clean_up(paths: &LabPaths) -> Result<()> {
    if let Ok(record) = LabRecord::read(paths) {
        let group = daemon::lab_group(record.network)?;
        // A paused node has not noticed that its daemon is gone.
        group.kill_processes();
        group.remove()?;
    }
    match fs::remove_dir_all(&paths.directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", paths.directory.display()))
        }
        _ => Ok(()),
    }
}

/// Serializes commands that change the same lab. The holder of the lock may remove the lock file, so a lock is valid only
/// if the path still names the locked file.
pub(super) fn lock(paths: &LabPaths) -> Result<Flock<File>> {
    if let Some(folder) = paths.lock.parent() {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    let locking = || format!("lock {}", paths.lock.display());
    loop {
        let file = File::create(&paths.lock).with_context(locking)?;
        let lock_file = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, error)| error)
            .with_context(locking)?;
        let inode = lock_file.metadata().with_context(locking)?.ino();
        if fs::metadata(&paths.lock).is_ok_and(|named| named.ino() == inode) {
            return Ok(lock_file);
        }
    }
}

/// Writes to a temporary file and renames it, so that readers never see a partial file.
pub(super) fn write_json(file: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|source| Error::Json {
        what: file.display().to_string(),
        source,
    })?;
    let unfinished = file.with_extension("new");
    fs::write(&unfinished, text)
        .and_then(|()| fs::rename(&unfinished, file))
        .with_context(|| format!("write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::paths::Paths;

    #[test]
    fn commands_on_one_lab_are_serialized() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::at(folder.path()).lab("busy").unwrap();
        let lock_file = lock(&paths).unwrap();
        assert!(is_locked(&paths));
        drop(lock_file);
        assert!(!is_locked(&paths));
    }

    #[test]
    fn a_removed_lock_file_is_locked_anew() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::at(folder.path()).lab("gone").unwrap();
        let first = lock(&paths).unwrap();
        let waiting = thread::spawn({
            let paths = paths.clone();
            move || lock(&paths).map(|lock_file| lock_file.metadata().unwrap().ino())
        });
        fs::remove_file(&paths.lock).unwrap();
        drop(first);
        waiting.join().unwrap().unwrap();
        assert!(paths.lock.exists());
    }

    #[test]
    fn finding_a_lab_never_removes_it() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::at(folder.path()).lab("starting").unwrap();
        fs::create_dir_all(&paths.directory).unwrap();
        assert!(find(&paths).unwrap().is_none());
        assert!(paths.directory.exists());
        // A daemon listens but has not written its record: an error, and still nothing is removed.
        let _listener = UnixListener::bind(paths.daemon_socket()).unwrap();
        assert!(find(&paths).is_err());
        assert!(paths.directory.exists());
    }

    /// Whether another command holds the lock of this lab.
    fn is_locked(paths: &LabPaths) -> bool {
        File::create(&paths.lock)
            .is_ok_and(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err())
    }
}
