//! How long a local `open` takes, bare and supervised. The measured program is a process of ours that does nothing else.

use std::fmt;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::filter::Catch;
use crate::host::{Host, Intent, PathChoice};
use crate::launch::{first_datagram_descriptor, start};
use crate::notification::errno_of;
use crate::supervisor::Supervisor;
use crate::sys::spawn::Body;
use crate::{Errno, Error};

/// How a file is named.
const CASES: [&str; 4] = ["absolute", "relative", "link", "missing"];
/// How often each case is measured, after as many tries that are not.
const TIMES: usize = 2000;

/// Durations of one `open` and `close`, medians.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Median {
    pub bare: Duration,
    pub supervised: Duration,
}

impl Median {
    /// What supervision adds.
    #[must_use]
    pub fn added(&self) -> Duration {
        self.supervised.saturating_sub(self.bare)
    }
}

/// What supervision costs for paths that stay local.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenLocal {
    /// An absolute path.
    pub absolute: Median,
    /// A path below the working directory.
    pub relative: Median,
    /// A path through a symbolic link.
    pub link: Median,
    /// A path that does not exist.
    pub missing: Median,
}

impl fmt::Display for OpenLocal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [self.absolute, self.relative, self.link, self.missing];
        for (name, row) in CASES.iter().zip(rows) {
            let (bare, supervised, added) = (row.bare, row.supervised, row.added());
            writeln!(
                formatter,
                "{name}: bare {bare:?}, supervised {supervised:?}, added {added:?}"
            )?;
        }
        Ok(())
    }
}

/// Measures with a host that decides by a few prefixes, as a real one would.
///
/// # Errors
/// When this machine does not allow supervision.
pub fn open_local() -> Result<OpenLocal, Error> {
    let folder = Folder::new()?;
    let bare = run(&folder, false)?;
    let supervised = run(&folder, true)?;
    let median = |case: usize| Median {
        bare: bare.get(case).copied().unwrap_or_default(),
        supervised: supervised.get(case).copied().unwrap_or_default(),
    };
    Ok(OpenLocal {
        absolute: median(0),
        relative: median(1),
        link: median(2),
        missing: median(3),
    })
}

/// A host with something remote.
#[derive(Debug)]
struct Prefixes;

impl Host for Prefixes {
    fn choose_path(&self, path: &Path, _: Intent) -> PathChoice {
        let remote = ["/etc/app", "/var/run/secrets", "/mnt/config"];
        if remote.iter().any(|prefix| path.starts_with(prefix)) {
            PathChoice::Remote(path.to_path_buf())
        } else {
            PathChoice::Local
        }
    }
}

/// What is opened. Its place is the same for every process, because the measured one may not allocate.
struct Folder;

const FOLDER: &str = "/tmp/standin-measure";

impl Folder {
    fn new() -> Result<Self, Error> {
        let failed = |error: std::io::Error| Error::System {
            what: "make a folder in /tmp to measure in",
            source: errno_of(&error),
        };
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

/// One duration for each case.
fn run(_: &Folder, files: bool) -> Result<Vec<Duration>, Error> {
    let failed = |what| move |source: Errno| Error::System { what, source };
    let (mut ours, theirs) =
        UnixStream::pair().map_err(|error| failed("make a pair of sockets")(errno_of(&error)))?;
    let catch = Catch {
        files,
        outgoing: false,
        hostname: false,
        refuse_io_uring: true,
        first_datagram_descriptor: first_datagram_descriptor(),
        let_signals_wait: true,
    };
    let supervisor = Supervisor::new(Arc::new(Prefixes), catch);
    let mut supervised = start(&Body::Run(measured, theirs.into()), supervisor)?;
    let mut medians = vec![Duration::ZERO; CASES.len()];
    for median in &mut medians {
        let mut nanoseconds = [0; 8];
        ours.read_exact(&mut nanoseconds)
            .map_err(|error| failed("read the measurements")(errno_of(&error)))?;
        *median = Duration::from_nanos(u64::from_ne_bytes(nanoseconds));
    }
    supervised.wait()?;
    Ok(medians)
}

/// The body of the measured process. It makes system calls only; see [`Body::Run`].
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
