//! Rows by path, and which operations were already emitted as events.
//!
//! Rows are bounded for each side, so that a program that uses thousands of files of this machine does not hide the few
//! that it reads at the target. Events do not depend on rows.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use interceptor::Errno;
use monitor::{Event, FileRow, Omitted, Side};

use super::super::files::Operation;
use super::super::microseconds;
use super::errno_name;

/// The maximum number of rows of each side. Problems of a session with more are visible in the first ones, too.
pub(in crate::monitor) const MAX_ROWS: usize = 8192;
/// After this many different events the first ones are forgotten, and may be emitted again.
const MAX_EMITTED: usize = 65_536;

/// An operation on a path, and its outcome.
pub(in crate::monitor) struct FileOperation<'path> {
    pub(in crate::monitor) path: &'path Path,
    pub(in crate::monitor) operation: Operation,
    pub(in crate::monitor) side: Side,
    pub(in crate::monitor) errno: Option<Errno>,
    pub(in crate::monitor) latency: Option<Duration>,
}

#[derive(Debug, Default)]
pub(super) struct FileTable {
    remote: Rows,
    local: Rows,
    refused: Rows,
    /// Fingerprints of the emitted events.
    emitted: HashSet<u64>,
    fingerprints: RandomState,
}

#[derive(Debug, Default)]
struct Rows {
    rows: HashMap<PathBuf, FileStats>,
    /// Operations on paths without a row.
    omitted: u64,
}

#[derive(Debug, Default)]
struct FileStats {
    operations: u64,
    failed: u64,
    last_errno: Option<Errno>,
    bytes: u64,
    latency_us: u64,
}

impl FileTable {
    /// Counts an operation. Returns an event if it is the first one of its kind on this path that succeeded or failed.
    pub(super) fn record(&mut self, performed: &FileOperation<'_>) -> Option<Event> {
        let latency_us = performed.latency.map(microseconds);
        let mut bytes = 0;
        if let Some(row) = self.rows(performed.side).row(performed.path) {
            row.operations += 1;
            row.latency_us += latency_us.unwrap_or(0);
            if performed.errno.is_some() {
                row.failed += 1;
                row.last_errno = performed.errno;
            }
            bytes = row.bytes;
        }
        // Programs load their own code all the time, so local operations are only counted.
        if performed.side == Side::Local || !self.is_first(performed) {
            return None;
        }
        Some(Event::FileOp {
            path: performed.path.display().to_string(),
            operation: performed.operation.name().into(),
            side: performed.side,
            errno: performed.errno.map(errno_name),
            latency_us,
            bytes: Some(bytes).filter(|bytes| *bytes > 0 && performed.operation == Operation::Read),
        })
    }

    /// Counts bytes of a file of the target that were read when it was opened.
    pub(super) fn prefetched(&mut self, path: &Path, bytes: usize) {
        // The operation itself is recorded separately.
        let rows = &mut self.remote;
        let omitted = rows.omitted;
        if let Some(row) = rows.row(path) {
            row.bytes += bytes as u64;
        }
        rows.omitted = omitted;
    }

    pub(super) fn list(&self) -> Vec<FileRow> {
        let sides = [
            (Side::Remote, &self.remote),
            (Side::Local, &self.local),
            (Side::Refused, &self.refused),
        ];
        let rows = sides.into_iter().flat_map(|(side, rows)| rows.list(side));
        let mut rows: Vec<FileRow> = rows.collect();
        rows.sort_by(|one, other| one.path.cmp(&other.path));
        rows
    }

    pub(super) fn count_omitted(&self, omitted: &mut Omitted) {
        omitted.remote_files = self.remote.omitted;
        omitted.local_files = self.local.omitted;
        omitted.refused_files = self.refused.omitted;
    }

    fn rows(&mut self, side: Side) -> &mut Rows {
        match side {
            Side::Remote => &mut self.remote,
            Side::Local => &mut self.local,
            Side::Refused => &mut self.refused,
        }
    }

    fn is_first(&mut self, performed: &FileOperation<'_>) -> bool {
        let kind = (performed.operation as u8, performed.side);
        let event = (performed.path, kind, performed.errno.is_some());
        let fingerprint = self.fingerprints.hash_one(event);
        if self.emitted.len() >= MAX_EMITTED {
            self.emitted.clear();
        }
        self.emitted.insert(fingerprint)
    }
}

impl Rows {
    /// The row of a path. `None` if it has none and there are too many.
    fn row(&mut self, path: &Path) -> Option<&mut FileStats> {
        if !self.rows.contains_key(path) {
            if self.rows.len() >= MAX_ROWS {
                self.omitted += 1;
                return None;
            }
            self.rows.insert(path.to_path_buf(), FileStats::default());
        }
        self.rows.get_mut(path)
    }

    fn list(&self, side: Side) -> impl Iterator<Item = FileRow> {
        self.rows.iter().map(move |(path, file)| FileRow {
            path: String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned(),
            side,
            operations: file.operations,
            failed: file.failed,
            last_errno: file.last_errno.map(errno_name),
            bytes: file.bytes,
            latency_us: file.latency_us,
        })
    }
}
