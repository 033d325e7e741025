//! The way to the kernel and back.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use interceptor::Errno;

use super::wire;

/// `/dev/fuse`, opened for one mount.
#[derive(Debug, Clone)]
pub(super) struct Channel(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    device: File,
    /// The threads that wait for an answer, by the number of their request.
    waiting: Mutex<HashMap<u64, u32>>,
}

impl Channel {
    pub(super) fn new(device: OwnedFd) -> Self {
        Self(Arc::new(Shared {
            device: File::from(device),
            waiting: Mutex::default(),
        }))
    }

    /// The next request. `None` when the mount is gone.
    pub(super) fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
        loop {
            match (&self.0.device).read(buffer) {
                Ok(count) => return Ok(buffer.get(..count)),
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    // A request that was taken back meanwhile.
                    Some(Errno::EINTR | Errno::ENOENT | Errno::EAGAIN) => {}
                    Some(Errno::ENODEV) => return Ok(None),
                    _ => return Err(error),
                },
            }
        }
    }

    /// The answer to a request for which a thread waits.
    pub(super) fn reply(&self, unique: u64, thread: u32) -> Reply {
        self.waiting().insert(unique, thread);
        Reply {
            channel: self.clone(),
            unique: Some(unique),
        }
    }

    /// Who waits for the answer to a request; `None` when it is answered, and before it is known.
    pub(super) fn who_waits(&self, unique: u64) -> Option<u32> {
        self.waiting().get(&unique).copied()
    }

    /// Answers a request in place of the one who does it, who may go on.
    pub(super) fn give_up(&self, unique: u64) {
        self.fail(unique, Errno::EINTR);
    }

    /// The kernel tells of a signal once more.
    pub(super) fn tell_again(&self, unique: u64) {
        self.fail(unique, Errno::EAGAIN);
    }

    fn fail(&self, unique: u64, errno: Errno) {
        // Answered meanwhile, the kernel does not know it any more.
        let _ = self.send(unique, -(errno as i32), &[]);
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, u32>> {
        // Nothing panics while it is locked.
        let waiting = self.0.waiting.lock();
        waiting.unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel knows nothing any more of a node's metadata.
    pub(super) fn forget_metadata(&self, node: u64) {
        // A node that the kernel has forgotten is as good.
        let _ = self.send(0, wire::INVALIDATE_NODE, &[&wire::forget_metadata(node)]);
    }

    /// The kernel caches the first bytes of a node that it has opened.
    pub(super) fn store(&self, node: u64, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or_default();
        // What the kernel does not take, it asks for.
        let _ = self.send(0, wire::STORE, &[&wire::store(node, 0, length), bytes]);
    }

    /// An answer is one write.
    fn send(&self, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        let length = parts.iter().map(|part| part.len()).sum();
        let header = wire::header(unique, error, length);
        let mut slices = Vec::with_capacity(parts.len() + 1);
        slices.push(IoSlice::new(&header));
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        (&self.0.device).write_vectored(&slices).map(drop)
    }
}

/// Somebody waits for this. Dropped without an answer, it fails: nobody may wait for ever.
#[derive(Debug)]
pub(super) struct Reply {
    channel: Channel,
    unique: Option<u64>,
}

impl Reply {
    pub(super) fn send(mut self, answer: Result<Vec<u8>, Errno>) {
        match answer {
            Ok(bytes) => self.answer(0, &[&bytes]),
            Err(errno) => self.answer(-(errno as i32), &[]),
        }
    }

    pub(super) fn send_bytes(mut self, answer: Result<Vec<Bytes>, Errno>) {
        match answer {
            Ok(parts) => {
                let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
                self.answer(0, &parts);
            }
            Err(errno) => self.answer(-(errno as i32), &[]),
        }
    }

    /// The kernel waits for no answer to some requests.
    pub(super) fn not_wanted(mut self) {
        if let Some(unique) = self.unique.take() {
            self.channel.waiting().remove(&unique);
        }
    }

    fn answer(&mut self, error: i32, parts: &[&[u8]]) {
        if let Some(unique) = self.unique.take() {
            self.channel.waiting().remove(&unique);
            // Whoever asked may have been killed.
            if let Err(error) = self.channel.send(unique, error, parts) {
                tracing::debug!(%error, "an answer was not taken by the kernel");
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.answer(-(Errno::EIO as i32), &[]);
    }
}
