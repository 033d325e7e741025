//! The target's files, as descriptors of this machine.
//!
//! | module | what it does |
//! |---|---|
//! | [`names`] | what is asked and done by name: `stat`, `mkdir`, `rename`, … |
//! | [`starting`] | the most frequent questions, asked without a thread that waits |
//! | [`cache`] | what was answered a moment ago |
//! | [`fuse`] | descriptors that the kernel serves: lazy, cached, writable |
//! | [`memory`] | descriptors without FUSE: whole files in memory, with limits |
//! | [`served`] | files whose content is ours |
//! | [`calls`], [`closer`] | the agent's questions; handles that are not needed any more |
//! | [`convert`], [`inodes`] | words and numbers of both sides |

mod cache;
mod calls;
mod closer;
mod convert;
mod fuse;
mod inodes;
mod memory;
mod names;
mod served;
mod starting;

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use config::FileRules;
use interceptor::{Answer, Errno, OpenOptions};
use protocol::rpc;

use self::cache::{Cache, Question};
use self::calls::Calls;
use self::fuse::Fuse;
use self::inodes::Inodes;
use self::memory::Memory;
use self::served::Served;
use crate::agent::Agent;
use crate::error::Error;
use crate::event::FileProblem;

pub(crate) use self::served::is_served;

/// What an open brings along: a small file is then read without asking again.
const FIRST_BYTES: u32 = 128 * 1024;

/// How the target's files become descriptors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FilesThrough {
    /// Through FUSE where this machine lets us, else through memory.
    #[default]
    Best,
    /// Served by the kernel as they are read and written.
    Fuse,
    /// Brought whole into memory when they are opened. Only files that are new or emptied can be written.
    Memory,
}

#[derive(Debug)]
pub(crate) struct TargetFiles {
    calls: Calls,
    rules: FileRules,
    cache: Arc<Cache>,
    inodes: Arc<Inodes>,
    served: Served,
    through: Through,
    /// For what goes on after the question was asked.
    this: Weak<Self>,
    asked: Asked,
}

/// Paths about which the target was asked already, and not any number of them.
#[derive(Debug, Default)]
struct Asked(Mutex<HashSet<PathBuf>>);

impl Asked {
    fn is_new(&self, path: &Path) -> bool {
        const MOST: usize = 4096;
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !asked.contains(path) && asked.len() < MOST && asked.insert(path.to_path_buf())
    }
}

#[derive(Debug)]
enum Through {
    Fuse(Fuse),
    Memory(Box<Memory>),
}

impl TargetFiles {
    pub(crate) fn new(
        agent: Agent,
        rules: FileRules,
        through: FilesThrough,
    ) -> Result<Arc<Self>, Error> {
        let calls = Calls::new(agent);
        let cache = Arc::new(Cache::new(fuse::FRESH));
        let inodes = Arc::new(Inodes::default());
        let memory =
            || Memory::start(calls.clone()).map(|memory| Through::Memory(Box::new(memory)));
        let fuse = || Fuse::start(calls.clone(), inodes.clone(), cache.clone()).map(Through::Fuse);
        let through = match through {
            FilesThrough::Fuse => fuse(),
            FilesThrough::Memory => memory(),
            FilesThrough::Best => fuse().or_else(|errno| {
                tracing::warn!(%errno, "no FUSE on this machine: files are brought whole into memory");
                memory()
            }),
        };
        let through = through.map_err(Error::Files)?;
        let served = Served::new().map_err(|error| Error::Files(errno_of(&error)))?;
        Ok(Arc::new_cyclic(|this| Self {
            calls,
            rules,
            cache,
            inodes,
            served,
            through,
            asked: Asked::default(),
            this: Weak::clone(this),
        }))
    }

    async fn open_at_target(&self, path: &Path, options: &OpenOptions) -> Result<Opened, Errno> {
        let flags = options.flags;
        let creates = flags & libc::O_CREAT != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE;
        let changes = creates || flags & libc::O_TRUNC != 0;
        let may_write = self.rules.may_write(convert::bytes(path).as_ref());
        if !may_write && (changes || flags & libc::O_ACCMODE != libc::O_RDONLY) {
            return Err(Errno::EROFS);
        }
        // These make a promise about the way, which the target's side of it cannot keep.
        if options.resolve & (libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_XDEV) != 0 {
            return Err(Errno::ENOSYS);
        }
        let question = Question::Metadata {
            follow: flags & libc::O_NOFOLLOW == 0,
        };
        let asked = match self.cache.get(path, &question) {
            Ok(cache::Answer::Failed(errno)) if !creates => return Err(errno),
            Ok(_) => None,
            Err(asked) => Some(asked),
        };
        let request = convert::open(path, options, FIRST_BYTES);
        let asked_to_open = Instant::now();
        let opened = self
            .calls
            .answer(|mut files| async move { files.open(request).await })
            .await;
        if let Ok(opened) = &opened {
            self.calls.came(path, opened.first_bytes.len());
        }
        if changes {
            self.changed();
        }
        if let (Some(asked), Ok(opened)) = (asked, &opened)
            && let Some(metadata) = opened.metadata
            && flags & libc::O_TMPFILE != libc::O_TMPFILE
        {
            let answer = cache::Answer::Metadata(metadata);
            self.cache.put(path, question, answer, asked);
        }
        Ok(Opened {
            response: opened?,
            read_only: !may_write,
            asked: asked_to_open,
        })
    }

    /// Waits for the kernel, and without FUSE for the target.
    fn descriptor(
        &self,
        path: &Path,
        opened: Opened,
        options: &OpenOptions,
    ) -> Result<OwnedFd, Errno> {
        let Opened {
            response: opened,
            read_only,
            asked,
        } = opened;
        let mode = opened.metadata.as_ref().map_or(0, |metadata| metadata.mode);
        if !matches!(mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFDIR) {
            self.calls.close(opened.handle);
            self.calls.say(path, FileProblem::Special);
            return Err(Errno::EOPNOTSUPP);
        }
        match &self.through {
            Through::Fuse(fuse) => fuse.open((path, options), opened, read_only, asked),
            Through::Memory(memory) => memory.open(path, &opened, options.flags),
        }
    }

    /// Tells, once, that a program opens a file of this machine, with this path, in place of one that the target has. Does
    /// not wait.
    pub(crate) fn tell_if_there(&self, path: &Path, target: &Path) {
        if !self.asked.is_new(path) {
            return;
        }
        let (calls, path) = (self.calls.clone(), path.to_path_buf());
        let place = convert::place(target, true);
        self.calls.spawn(async move {
            let found = calls.stat(place).await;
            if found.is_ok_and(|found| found.mode & libc::S_IFMT == libc::S_IFREG) {
                calls.say(&path, FileProblem::OtherContent);
            }
        });
    }

    /// Something was changed by name.
    fn changed(&self) {
        self.cache.forget();
        if let Through::Fuse(fuse) = &self.through {
            fuse.forget_metadata();
        }
    }

    /// What was written and closed is at the target.
    pub(crate) fn settle(&self) {
        if let Through::Memory(memory) = &self.through {
            memory.settle();
        }
    }

    /// Whether it was opened a moment ago and need not be asked for. Does not wait.
    fn has_recent(&self, path: &Path, options: &OpenOptions) -> bool {
        match &self.through {
            Through::Fuse(fuse) => fuse.find_recent(path, options).is_some(),
            Through::Memory(_) => false,
        }
    }

    /// Waits for the kernel.
    fn open_again(&self, path: &Path, options: &OpenOptions) -> Option<OwnedFd> {
        let Through::Fuse(fuse) = &self.through else {
            return None;
        };
        let recent = fuse.find_recent(path, options)?;
        // Whatever goes wrong, the target can be asked.
        fuse.open_again(&recent, options.flags).ok()
    }

    fn open(&self, path: &Path, options: &OpenOptions) -> Answer<OwnedFd> {
        if let Some(served) = self.served.find(path) {
            return served.open(options.flags);
        }
        if let Some(descriptor) = self.open_again(path, options) {
            return Ok(descriptor);
        }
        self.settle();
        let opened = self.calls.wait(self.open_at_target(path, options))?;
        Ok(self.descriptor(path, opened, options)?)
    }
}

/// What the target has opened, and the kernel here has not yet.
struct Opened {
    response: rpc::OpenResponse,
    read_only: bool,
    /// When the target was asked.
    asked: Instant,
}

fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
