//! Calls that only read something from the target. The thread that receives the call starts the request to the host,
//! and no worker thread blocks in the meantime.
//!
//! The host chooses the thread that completes the call. The proxy completes it on the receiving thread if the result is
//! cached. Otherwise it sends the request from a task of its runtime and completes the call on a thread of the
//! runtime's blocking pool, because writing into the application's memory may block.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use super::perform::{check_directory, open_modifies, open_options};
use super::request::{Operation, Request};
use super::resolve::ResolvedPath;
use super::write_structure;
use crate::host::{CallResult, Disposition, OpenOptions, RemoteFiles};
use crate::metadata::Metadata;
use crate::notification::Notification;
use crate::supervisor::Supervisor;

/// A request to the host.
#[derive(Debug)]
pub(super) struct HostQuery {
    /// The path as the application sees it.
    app_path: PathBuf,
    /// The path on the target.
    target: PathBuf,
    follow: bool,
    wants_directory: bool,
    kind: QueryKind,
}

#[derive(Debug, Clone, Copy)]
enum QueryKind {
    Open {
        options: OpenOptions,
        close_on_exec: bool,
    },
    Metadata {
        format: StatFormat,
        buffer: u64,
    },
    Access {
        mode: i32,
    },
}

#[derive(Debug, Clone, Copy)]
enum StatFormat {
    Stat,
    Statx,
}

impl HostQuery {
    /// Returns `None` for a call that takes more than one request, or that changes something.
    pub(super) fn from_request(request: &Request, paths: &[ResolvedPath]) -> Option<Self> {
        let [ResolvedPath::Remote { app_path, target }] = paths else {
            return None;
        };
        let wants_directory = request.path.wants_directory();
        let kind = match request.operation {
            Operation::Open { flags, .. } if !open_modifies(flags) => QueryKind::Open {
                options: open_options(request, 0)?,
                close_on_exec: flags & libc::O_CLOEXEC != 0,
            },
            Operation::Stat { buffer } => QueryKind::Metadata {
                format: StatFormat::Stat,
                buffer,
            },
            Operation::Statx { buffer } => QueryKind::Metadata {
                format: StatFormat::Statx,
                buffer,
            },
            Operation::Access { mode } if !wants_directory => QueryKind::Access { mode },
            _ => return None,
        };
        Some(Self {
            app_path: app_path.clone(),
            target: target.clone(),
            follow: request.path.follow || wants_directory,
            wants_directory,
            kind,
        })
    }

    /// Starts the request, and returns without waiting for the result.
    pub(super) fn start(self, supervisor: &Supervisor, call: Notification) {
        match self.kind {
            QueryKind::Open {
                options,
                close_on_exec,
            } => self.open(supervisor, call, options, close_on_exec),
            QueryKind::Metadata { format, buffer } => {
                self.describe(supervisor, call, format, buffer);
            }
            QueryKind::Access { mode } => self.access(supervisor, call, mode),
        }
    }

    fn open(
        self,
        supervisor: &Supervisor,
        call: Notification,
        options: OpenOptions,
        close_on_exec: bool,
    ) {
        let (files, app_path) = (Arc::clone(&supervisor.files), self.app_path);
        let then = move |result: CallResult<OwnedFd>| match result {
            Ok(descriptor) => {
                files.record_opened(&descriptor, &app_path);
                call.respond_with_descriptor(descriptor, close_on_exec);
            }
            Err(disposition) => apply_disposition(call, disposition),
        };
        let started = remote(supervisor).start_open(&self.target, &options, Box::new(then));
        if let Err(then) = started {
            run_blocking(supervisor, move |files| {
                then(files.open(&self.target, &options));
            });
        }
    }

    fn describe(
        self,
        supervisor: &Supervisor,
        call: Notification,
        format: StatFormat,
        buffer: u64,
    ) {
        let write = move |call: &Notification, metadata: &Metadata| -> CallResult<i64> {
            if self.wants_directory {
                check_directory(metadata)?;
            }
            Ok(match format {
                StatFormat::Stat => write_structure(call, buffer, &libc::stat::from(metadata)),
                StatFormat::Statx => write_structure(call, buffer, &libc::statx::from(metadata)),
            }?)
        };
        let then = move |result: CallResult<Metadata>| match result
            .and_then(|metadata| write(&call, &metadata))
        {
            Ok(value) => call.succeed(value),
            Err(disposition) => apply_disposition(call, disposition),
        };
        let started = remote(supervisor).start_metadata(&self.target, self.follow, Box::new(then));
        if let Err(then) = started {
            run_blocking(supervisor, move |files| {
                then(files.metadata(&self.target, self.follow));
            });
        }
    }

    fn access(self, supervisor: &Supervisor, call: Notification, mode: i32) {
        let then = move |result: CallResult<()>| match result {
            Ok(()) => call.succeed(0),
            Err(disposition) => apply_disposition(call, disposition),
        };
        let files = remote(supervisor);
        let started = files.start_access(&self.target, mode, self.follow, Box::new(then));
        if let Err(then) = started {
            run_blocking(supervisor, move |files| {
                then(files.access(&self.target, mode, self.follow));
            });
        }
    }
}

fn remote(supervisor: &Supervisor) -> &dyn RemoteFiles {
    supervisor.host.files()
}

/// Performs the request on a worker thread, for a host that would have to block.
fn run_blocking(supervisor: &Supervisor, query: impl FnOnce(&dyn RemoteFiles) + Send + 'static) {
    let host = Arc::clone(&supervisor.host);
    supervisor.workers.run(move || query(host.files()));
}

fn apply_disposition(call: Notification, disposition: Disposition) {
    match disposition {
        Disposition::Fail(errno) => call.fail(errno),
        Disposition::Local => call.pass(),
    }
}
