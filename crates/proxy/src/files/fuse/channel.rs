//! The connection to the kernel: `/dev/fuse`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use interceptor::Errno;
use parking_lot::Mutex;

use super::wire;

/// `/dev/fuse`, opened for one mount.
#[derive(Debug, Clone)]
pub(super) struct Channel(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    device: File,
    /// The threads that wait for a reply, by the ID of their request.
    pending: Mutex<HashMap<u64, u32>>,
}

impl Channel {
    pub(super) fn new(device: OwnedFd) -> Self {
        Self(Arc::new(Shared {
            device: File::from(device),
            pending: Mutex::default(),
        }))
    }

    /// The next request. `None` when the file system no longer exists.
    pub(super) fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
        loop {
            match (&self.0.device).read(buffer) {
                Ok(count) => return Ok(buffer.get(..count)),
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    // The request was cancelled meanwhile.
                    Some(Errno::EINTR | Errno::ENOENT | Errno::EAGAIN) => {}
                    Some(Errno::ENODEV) => return Ok(None),
                    _ => return Err(error),
                },
            }
        }
    }

    /// The reply to a request for which a thread waits.
    pub(super) fn reply(&self, unique: u64, thread: u32) -> Reply {
        self.0.pending.lock().insert(unique, thread);
        Reply {
            channel: self.clone(),
            unique: Some(unique),
        }
    }

    /// The thread that waits for the reply to a request. `None` after the reply, and before the request is registered.
    pub(super) fn waiting_thread(&self, unique: u64) -> Option<u32> {
        self.0.pending.lock().get(&unique).copied()
    }

    /// Fails a request with `EINTR`. The task that handles it may still be running.
    pub(super) fn interrupt(&self, unique: u64) {
        self.fail(unique, Errno::EINTR);
    }

    /// Makes the kernel send an `INTERRUPT` request again.
    pub(super) fn requeue_interrupt(&self, unique: u64) {
        self.fail(unique, Errno::EAGAIN);
    }

    fn fail(&self, unique: u64, errno: Errno) {
        // It fails if the request was answered meanwhile.
        let _ = self.send(unique, -(errno as i32), &[]);
    }

    /// Makes the kernel drop its cached metadata of a node.
    pub(super) fn invalidate_metadata(&self, node: u64) {
        // It fails if the kernel has forgotten the node, which is equivalent.
        let _ = self.send(
            0,
            wire::NOTIFY_INVALIDATE_INODE,
            &[&wire::invalidate_inode(node)],
        );
    }

    /// Puts the first bytes of a node into the page cache.
    pub(super) fn store(&self, node: u64, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or_default();
        // If it fails, the kernel requests the bytes when they are read.
        let _ = self.send(
            0,
            wire::NOTIFY_STORE,
            &[&wire::store(node, 0, length), bytes],
        );
    }

    /// Sends a message, which must be a single write.
    fn send(&self, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        let length = parts.iter().map(|part| part.len()).sum();
        let header = wire::header(unique, error, length);
        let mut slices = Vec::with_capacity(parts.len() + 1);
        slices.push(IoSlice::new(&header));
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        (&self.0.device).write_vectored(&slices).map(drop)
    }
}

/// The reply that a thread waits for. If it is dropped unsent, the request fails with `EIO`, so that no thread waits
/// forever.
#[derive(Debug)]
pub(super) struct Reply {
    channel: Channel,
    unique: Option<u64>,
}

impl Reply {
    pub(super) fn send(mut self, result: Result<Vec<u8>, Errno>) {
        match result {
            Ok(bytes) => self.finish(0, &[&bytes]),
            Err(errno) => self.finish(-(errno as i32), &[]),
        }
    }

    pub(super) fn send_bytes(mut self, result: Result<Vec<Bytes>, Errno>) {
        match result {
            Ok(parts) => {
                let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
                self.finish(0, &parts);
            }
            Err(errno) => self.finish(-(errno as i32), &[]),
        }
    }

    /// For a request that has no reply.
    pub(super) fn discard(mut self) {
        if let Some(unique) = self.unique.take() {
            self.channel.0.pending.lock().remove(&unique);
        }
    }

    fn finish(&mut self, error: i32, parts: &[&[u8]]) {
        if let Some(unique) = self.unique.take() {
            self.channel.0.pending.lock().remove(&unique);
            // It fails if the waiting process was killed.
            if let Err(error) = self.channel.send(unique, error, parts) {
                tracing::debug!(%error, "fuse reply not accepted");
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.finish(-(Errno::EIO as i32), &[]);
    }
}
