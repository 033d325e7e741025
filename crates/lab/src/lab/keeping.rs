//! The keeper of a lab as others see it: started, found, and swept away when it was killed. And what a lab writes down.

use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt as _;
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

/// What a lab writes down so that other processes find its parts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) network: Network,
    pub(super) clusters: Vec<ClusterPlan>,
}

impl Record {
    pub(super) fn write(&self, paths: &LabPaths) -> Result<()> {
        write_json(&paths.record(), self)
    }
}

/// Starts a keeper, which makes the lab's network. The lab lives while the returned input is open, until it is released.
pub(super) fn start_keeper(
    paths: &LabPaths,
    progress: &Progress,
) -> Result<(Record, Option<ChildStdin>)> {
    fs::create_dir_all(&paths.directory).doing(|| format!("make {}", paths.directory.display()))?;
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
    loop {
        let status = control::call::<_, keeper::Status>(
            ROLE,
            &paths.keeper_socket(),
            &keeper::Request::Status,
        );
        if let Ok(status) = status {
            // Reaped here, so that a process that outlives its lab has no dead child.
            thread::spawn(move || child.wait());
            progress.step(format!("network {} made", status.network.subnet()));
            return Ok((
                Record {
                    network: status.network,
                    clusters: Vec::new(),
                },
                input,
            ));
        }
        let exited = child
            .try_wait()
            .doing(|| "wait for the lab's keeper".to_owned())?;
        if exited.is_some() || Instant::now() > deadline {
            let _ = child.kill();
            let text = fs::read_to_string(&log).unwrap_or_default();
            let _ = fs::remove_dir_all(&paths.directory);
            return Err(Error::Component {
                node: "the lab's keeper".to_owned(),
                trouble: "did not start".to_owned(),
                tail: tail(&text, 15),
                log,
            });
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The record of a lab whose keeper answers. What a killed one left behind is removed.
pub(super) fn find(paths: &LabPaths) -> Result<Option<Record>> {
    if !paths.directory.exists() {
        return Ok(None);
    }
    let status =
        control::call::<_, keeper::Status>(ROLE, &paths.keeper_socket(), &keeper::Request::Status);
    if status.is_err() {
        sweep(paths)?;
        return Ok(None);
    }
    let file = paths.record();
    let text = fs::read_to_string(&file).doing(|| format!("read {}", file.display()))?;
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|source| Error::Json {
            what: file.display().to_string(),
            source,
        })
}

/// Removes what the kernel did not take with a killed keeper.
pub(super) fn sweep(paths: &LabPaths) -> Result<()> {
    let record: Option<Record> = fs::read_to_string(paths.record())
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok());
    if let Some(record) = record {
        keeper::lab_group(record.network)?.remove()?;
    }
    fs::remove_dir_all(&paths.directory).doing(|| format!("remove {}", paths.directory.display()))
}

/// Commands that change the same lab take turns.
pub(super) fn lock(paths: &LabPaths) -> Result<Flock<File>> {
    if let Some(folder) = paths.lock.parent() {
        // What runs below is root's alone: keys, kubeconfigs and sockets that take commands.
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .doing(|| format!("make {}", folder.display()))?;
    }
    let file = File::create(&paths.lock).doing(|| format!("open {}", paths.lock.display()))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .doing(|| format!("lock {}", paths.lock.display()))
}

pub(super) fn write_json(file: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|source| Error::Json {
        what: file.display().to_string(),
        source,
    })?;
    fs::write(file, text).doing(|| format!("write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Paths;

    #[test]
    fn commands_on_one_lab_take_turns() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::at(folder.path()).lab("busy");
        let held = lock(&paths).unwrap();
        assert!(is_locked(&paths));
        drop(held);
        assert!(!is_locked(&paths));
    }

    /// Whether another command changes this lab now.
    fn is_locked(paths: &LabPaths) -> bool {
        File::create(&paths.lock)
            .is_ok_and(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err())
    }
}
