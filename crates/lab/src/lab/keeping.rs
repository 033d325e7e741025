//! The keeper of a lab as others see it: started, found, and swept away when it was killed. And what a lab writes down.

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
use crate::error::{Doing as _, Error, Result};
use crate::keeper::{self, ROLE};
use crate::paths::LabPaths;
use crate::plan::{ClusterPlan, Network};
use crate::progress::Progress;
use crate::role::{self, Role};

const PATIENCE: Duration = Duration::from_secs(30);
/// What an end may take on a busy machine with many pods.
const PATIENCE_WITH_THE_END: Duration = Duration::from_secs(120);

/// What a lab writes down so that other processes find its parts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) network: Network,
    pub(crate) clusters: Vec<ClusterPlan>,
}

impl Record {
    pub(crate) fn write(&self, paths: &LabPaths) -> Result<()> {
        write_json(&paths.record(), self)
    }

    fn read(paths: &LabPaths) -> Result<Self> {
        let file = paths.record();
        let text = fs::read_to_string(&file).doing(|| format!("read {}", file.display()))?;
        serde_json::from_str(&text).map_err(|source| Error::Json {
            what: file.display().to_string(),
            source,
        })
    }
}

/// Starts a keeper, which makes the lab's network. The lab lives while the returned input is open, until it is released.
pub(super) fn start_keeper(
    paths: &LabPaths,
    progress: &Progress,
) -> Result<(Record, Option<ChildStdin>)> {
    // What is below is root's alone: keys, kubeconfigs and sockets that take commands.
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&paths.directory)
        .doing(|| format!("make {}", paths.directory.display()))?;
    let log = paths.keeper_log();
    let output = File::create(&log).doing(|| format!("write {}", log.display()))?;
    let errors = output
        .try_clone()
        .doing(|| format!("write {}", log.display()))?;
    let mut child = role::command(Role::Keeper, &paths.directory)?
        .stdin(Stdio::piped())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .doing(|| "start the lab's keeper".to_owned())?;
    let input = child.stdin.take();
    let deadline = Instant::now() + PATIENCE;
    while !is_alive(paths) {
        let exited = child
            .try_wait()
            .doing(|| "wait for the lab's keeper".to_owned())?;
        if exited.is_some() || Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            let text = fs::read_to_string(&log).unwrap_or_default();
            sweep(paths)?;
            return Err(Error::Refused(format!(
                "the lab's keeper did not start; it said:\n{}",
                tail(&text, 15)
            )));
        }
        thread::sleep(Duration::from_millis(10));
    }
    // Reaped here, so that a process that outlives its lab has no dead child.
    thread::spawn(move || child.wait());
    let record = Record::read(paths)?;
    progress.step(format!("network {} made", record.network.subnet()));
    Ok((record, input))
}

/// The record of a lab that runs. Changes nothing, so it needs no lock.
pub(super) fn find(paths: &LabPaths) -> Result<Option<Record>> {
    if is_alive(paths) {
        Record::read(paths).map(Some)
    } else {
        Ok(None)
    }
}

/// Like [`find`], under the lock: waits for a lab that is ending, and removes what a killed one left behind.
pub(super) fn find_or_sweep(paths: &LabPaths) -> Result<Option<Record>> {
    if !is_alive(paths) {
        sweep(paths)?;
        return Ok(None);
    }
    let status: keeper::Status =
        control::call(ROLE, &paths.keeper_socket(), &keeper::Request::Status)?;
    if status.ending {
        wait_for_the_end(paths)?;
        return Ok(None);
    }
    find(paths)
}

/// Asks the keeper to end, and waits until it has.
pub(super) fn end(paths: &LabPaths) -> Result<()> {
    if is_alive(paths) {
        // The keeper may be gone before its answer has left. What counts is that it is gone.
        let _ = control::call::<_, keeper::Status>(
            ROLE,
            &paths.keeper_socket(),
            &keeper::Request::Down,
        );
    }
    wait_for_the_end(paths)
}

fn wait_for_the_end(paths: &LabPaths) -> Result<()> {
    let deadline = Instant::now() + PATIENCE_WITH_THE_END;
    while is_alive(paths) {
        if Instant::now() > deadline {
            return Err(Error::Refused(format!(
                "the lab's keeper does not end; its log is {}",
                paths.keeper_log().display()
            )));
        }
        thread::sleep(Duration::from_millis(10));
    }
    sweep(paths)
}

/// Whether a keeper listens. A socket that nobody listens on was left by one that was killed.
fn is_alive(paths: &LabPaths) -> bool {
    UnixStream::connect(paths.keeper_socket()).is_ok()
}

/// Removes what the kernel did not take with a killed keeper.
fn sweep(paths: &LabPaths) -> Result<()> {
    if let Ok(record) = Record::read(paths) {
        let group = keeper::lab_group(record.network)?;
        // A paused node has not noticed that its keeper is gone.
        group.end_processes();
        group.remove()?;
    }
    match fs::remove_dir_all(&paths.directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).doing(|| format!("remove {}", paths.directory.display()))
        }
        _ => Ok(()),
    }
}

/// Commands that change the same lab take turns. The file may be removed by whoever holds it, so a lock counts only
/// when the file is still the one of that name.
pub(super) fn lock(paths: &LabPaths) -> Result<Flock<File>> {
    if let Some(folder) = paths.lock.parent() {
        fs::create_dir_all(folder).doing(|| format!("make {}", folder.display()))?;
    }
    let locking = || format!("lock {}", paths.lock.display());
    loop {
        let file = File::create(&paths.lock).doing(locking)?;
        let held = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, error)| error)
            .doing(locking)?;
        let inode = held.metadata().doing(locking)?.ino();
        if fs::metadata(&paths.lock).is_ok_and(|named| named.ino() == inode) {
            return Ok(held);
        }
    }
}

/// Written beside its place and renamed, so that nobody reads half of it.
pub(super) fn write_json(file: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|source| Error::Json {
        what: file.display().to_string(),
        source,
    })?;
    let unfinished = file.with_extension("new");
    fs::write(&unfinished, text)
        .and_then(|()| fs::rename(&unfinished, file))
        .doing(|| format!("write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::paths::Paths;

    #[test]
    fn commands_on_one_lab_take_turns() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::at(folder.path()).lab("busy").unwrap();
        let held = lock(&paths).unwrap();
        assert!(is_locked(&paths));
        drop(held);
        assert!(!is_locked(&paths));
    }

    #[test]
    fn a_lock_file_that_was_removed_locks_nobody_out_and_nobody_in() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::at(folder.path()).lab("gone").unwrap();
        let first = lock(&paths).unwrap();
        let waiting = thread::spawn({
            let paths = paths.clone();
            move || lock(&paths).map(|held| held.metadata().unwrap().ino())
        });
        fs::remove_file(&paths.lock).unwrap();
        drop(first);
        waiting.join().unwrap().unwrap();
        assert!(paths.lock.exists());
    }

    #[test]
    fn looking_at_a_lab_never_removes_it() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::at(folder.path()).lab("starting").unwrap();
        fs::create_dir_all(&paths.directory).unwrap();
        assert!(find(&paths).unwrap().is_none());
        assert!(paths.directory.exists());
        // Somebody listens but has not written anything: an error, and still nothing removed.
        let _listener = UnixListener::bind(paths.keeper_socket()).unwrap();
        assert!(find(&paths).is_err());
        assert!(paths.directory.exists());
    }

    /// Whether another command changes this lab now.
    fn is_locked(paths: &LabPaths) -> bool {
        File::create(&paths.lock)
            .is_ok_and(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err())
    }
}
