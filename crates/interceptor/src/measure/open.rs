//! How long `open` and `close` of a local path take.

use std::fmt;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Comparison, PrefixHost, Samples, failed, intercept_all};
use crate::launch::start;
use crate::notification::errno_of;
use crate::supervisor::Supervisor;
use crate::sys::spawn::{self, ProcessBody};
use crate::{Error, Host};

/// The kinds of paths.
const CASES: [&str; 4] = ["absolute", "relative", "link", "missing"];
/// How often each case is measured per round, after as many warm-up calls.
const TIMES: usize = 1000;
const ROUNDS: usize = 5;

/// The overhead for paths that stay local.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenLocal {
    /// An absolute path.
    pub absolute: Comparison,
    /// A path below the working directory.
    pub relative: Comparison,
    /// A path through a symbolic link.
    pub link: Comparison,
    /// A path that does not exist.
    pub missing: Comparison,
}

impl fmt::Display for OpenLocal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [self.absolute, self.relative, self.link, self.missing];
        for (name, row) in CASES.iter().zip(rows) {
            writeln!(formatter, "{name}: {row}")?;
        }
        Ok(())
    }
}

/// Measures with a host that has a few remote paths. Each sample is the median of a round.
///
/// # Errors
/// When this machine does not allow supervision.
pub fn open_local() -> Result<OpenLocal, Error> {
    open_local_with(&(Arc::new(PrefixHost) as Arc<dyn Host>))
}

/// Like [`open_local`], with a host for which `/tmp` is local.
///
/// # Errors
/// Like [`open_local`].
pub fn open_local_with(host: &Arc<dyn Host>) -> Result<OpenLocal, Error> {
    let _folder = Folder::new()?;
    let (mut bare, mut supervised) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(run(None)?);
        supervised.push(run(Some(host))?);
    }
    let case = |index: usize| {
        let samples = |rounds: &[Vec<Duration>]| {
            let of_case = rounds.iter().filter_map(|round| round.get(index));
            Samples::of(of_case.copied().collect())
        };
        Comparison {
            bare: samples(&bare),
            supervised: samples(&supervised),
        }
    };
    Ok(OpenLocal {
        absolute: case(0),
        relative: case(1),
        link: case(2),
        missing: case(3),
    })
}

/// The opened files. Their path is constant, because the measured process must not allocate.
struct Folder;

const FOLDER: &str = "/tmp/standin-measure";

impl Folder {
    fn new() -> Result<Self, Error> {
        let failed =
            |error: std::io::Error| failed("make a folder in /tmp to measure in")(errno_of(&error));
        let folder = Path::new(FOLDER);
        std::fs::create_dir_all(folder).map_err(failed)?;
        std::fs::write(folder.join("file"), "content").map_err(failed)?;
        match std::os::unix::fs::symlink("file", folder.join("link")) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(failed(error)),
            _ => Ok(Self),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(FOLDER);
    }
}

/// The median duration of each case.
fn run(host: Option<&Arc<dyn Host>>) -> Result<Vec<Duration>, Error> {
    let (mut ours, theirs) =
        UnixStream::pair().map_err(|error| failed("make a pair of sockets")(errno_of(&error)))?;
    let running = match host {
        Some(host) => {
            let supervisor = Supervisor::new(Arc::clone(host), intercept_all());
            Some(start(
                &ProcessBody::Run(measured, theirs.into()),
                supervisor,
            )?)
        }
        None => {
            spawn::run_bare(measured, theirs.as_fd()).map_err(failed("start a process"))?;
            None
        }
    };
    let mut medians = vec![Duration::ZERO; CASES.len()];
    for median in &mut medians {
        let mut nanoseconds = [0; 8];
        ours.read_exact(&mut nanoseconds)
            .map_err(|error| failed("read the measurements")(errno_of(&error)))?;
        *median = Duration::from_nanos(u64::from_ne_bytes(nanoseconds));
    }
    drop(running);
    Ok(medians)
}

/// The body of the measured process. It only makes system calls; see [`ProcessBody::Run`].
fn measured(result: BorrowedFd<'_>) {
    let paths = [
        c"/tmp/standin-measure/file",
        c"file",
        c"/tmp/standin-measure/link",
        c"/tmp/standin-measure/missing",
    ];
    let _ = nix::unistd::chdir(c"/tmp/standin-measure");
    for path in paths {
        let mut durations = [0_u64; TIMES];
        for round in 0..2 {
            for duration in &mut durations {
                let before = Instant::now();
                crate::sys::files::open_and_close(path);
                let after = before.elapsed();
                if round == 1 {
                    *duration = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
                }
            }
        }
        durations.sort_unstable();
        let median = durations.get(TIMES / 2).copied().unwrap_or_default();
        let _ = nix::unistd::write(result.as_fd(), &median.to_ne_bytes());
    }
}
