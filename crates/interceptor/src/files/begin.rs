//! Calls that only ask for something at the target: the thread that receives them asks the host, and whichever thread has the
//! answer gives it to the caller. No thread of ours waits in between, so an answer costs no change of threads but the
//! network's own.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use super::perform::{check_directory, open_changes, open_options};
use super::request::{Operation, Request};
use super::resolve::Place;
use super::write_structure;
use crate::host::{Answer, Instead, OpenOptions, RemoteFiles};
use crate::metadata::Metadata;
use crate::notification::Notification;
use crate::supervisor::Supervisor;

/// What the host is asked.
#[derive(Debug)]
pub(super) struct Question {
    /// The path as the application sees it.
    seen: PathBuf,
    /// The path at the target.
    target: PathBuf,
    follow: bool,
    wants_directory: bool,
    what: What,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Open {
        options: OpenOptions,
        close_on_exec: bool,
    },
    Metadata {
        format: Format,
        buffer: u64,
    },
    Access {
        mode: i32,
    },
}

#[derive(Debug, Clone, Copy)]
enum Format {
    Stat,
    Statx,
}

impl Question {
    /// `None` if it takes more than one question, or changes something.
    pub(super) fn of(request: &Request, places: &[Place]) -> Option<Self> {
        let [Place::Remote { seen, target }] = places else {
            return None;
        };
        let wants_directory = request.path.wants_directory();
        let what = match request.operation {
            Operation::Open { flags, .. } if !open_changes(flags) => What::Open {
                options: open_options(request, 0)?,
                close_on_exec: flags & libc::O_CLOEXEC != 0,
            },
            Operation::Stat { buffer } => What::Metadata {
                format: Format::Stat,
                buffer,
            },
            Operation::Statx { buffer } => What::Metadata {
                format: Format::Statx,
                buffer,
            },
            Operation::Access { mode } if !wants_directory => What::Access { mode },
            _ => return None,
        };
        Some(Self {
            seen: seen.clone(),
            target: target.clone(),
            follow: request.path.follow || wants_directory,
            wants_directory,
            what,
        })
    }

    /// Asks the host, and returns at once.
    pub(super) fn ask(self, supervisor: &Supervisor, call: Notification) {
        match self.what {
            What::Open {
                options,
                close_on_exec,
            } => self.open(supervisor, call, options, close_on_exec),
            What::Metadata { format, buffer } => self.describe(supervisor, call, format, buffer),
            What::Access { mode } => self.access(supervisor, call, mode),
        }
    }

    fn open(
        self,
        supervisor: &Supervisor,
        call: Notification,
        options: OpenOptions,
        close_on_exec: bool,
    ) {
        let (files, seen) = (Arc::clone(&supervisor.files), self.seen);
        let then = move |answer: Answer<OwnedFd>| match answer {
            Ok(descriptor) => {
                files.remember(&descriptor, &seen);
                call.give(descriptor, close_on_exec);
            }
            Err(instead) => do_instead(call, instead),
        };
        let started = remote(supervisor).start_open(&self.target, &options, Box::new(then));
        if let Err(then) = started {
            ask_and_wait(supervisor, move |files| {
                then(files.open(&self.target, &options));
            });
        }
    }

    fn describe(self, supervisor: &Supervisor, call: Notification, format: Format, buffer: u64) {
        let write = move |call: &Notification, metadata: &Metadata| -> Answer<i64> {
            if self.wants_directory {
                check_directory(metadata)?;
            }
            Ok(match format {
                Format::Stat => write_structure(call, buffer, &libc::stat::from(metadata)),
                Format::Statx => write_structure(call, buffer, &libc::statx::from(metadata)),
            }?)
        };
        let then = move |answer: Answer<Metadata>| match answer
            .and_then(|metadata| write(&call, &metadata))
        {
            Ok(value) => call.succeed(value),
            Err(instead) => do_instead(call, instead),
        };
        let started = remote(supervisor).start_metadata(&self.target, self.follow, Box::new(then));
        if let Err(then) = started {
            ask_and_wait(supervisor, move |files| {
                then(files.metadata(&self.target, self.follow));
            });
        }
    }

    fn access(self, supervisor: &Supervisor, call: Notification, mode: i32) {
        let then = move |answer: Answer<()>| match answer {
            Ok(()) => call.succeed(0),
            Err(instead) => do_instead(call, instead),
        };
        let files = remote(supervisor);
        let started = files.start_access(&self.target, mode, self.follow, Box::new(then));
        if let Err(then) = started {
            ask_and_wait(supervisor, move |files| {
                then(files.access(&self.target, mode, self.follow));
            });
        }
    }
}

fn remote(supervisor: &Supervisor) -> &dyn RemoteFiles {
    supervisor.host.files()
}

/// A host that cannot answer later is asked by a thread that may wait.
fn ask_and_wait(supervisor: &Supervisor, question: impl FnOnce(&dyn RemoteFiles) + Send + 'static) {
    let host = Arc::clone(&supervisor.host);
    supervisor.workers.run(move || question(host.files()));
}

fn do_instead(call: Notification, instead: Instead) {
    match instead {
        Instead::Fail(errno) => call.fail(errno),
        Instead::Local => call.pass(),
    }
}
