//! Handles the kernel's requests. Those that need the target become tasks on the runtime; all others are answered at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use interceptor::Errno;
use protocol::rpc::{self, Metadata};

use super::channel::Reply;
use super::handle::Handle;
use super::nodes::CACHE_TTL;
use super::wire::{self, Attributes, Operation, Request};
use super::{Shared, changes, errno_of, listing, read_ahead};

/// How long a request may take after the thread that waits for it was killed.
const KILLED_GRACE_PERIOD: Duration = Duration::from_secs(3);
/// How often to check whether a waiting thread that got a signal was killed: the kernel reports only the first signal.
const KILL_POLL_INTERVAL: Duration = Duration::from_millis(100);

type ReplyResult = Result<Vec<u8>, Errno>;

/// The file name of a node in the root directory.
pub(super) fn name_of(node: u64) -> String {
    format!("{node:x}")
}

fn node_of(name: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()
}

/// Serves requests until the file system no longer exists.
pub(super) fn serve(shared: &Arc<Shared>) {
    let mut buffer = vec![0; wire::REQUEST_BUFFER_BYTES];
    loop {
        match shared.channel.receive(&mut buffer) {
            Ok(Some(bytes)) => {
                if let Some(request) = Request::decode(bytes) {
                    dispatch(shared, request);
                }
            }
            Ok(None) => return,
            Err(error) => {
                let errno = errno_of(&error);
                tracing::warn!(%errno, "fuse device failed");
                return;
            }
        }
    }
}

fn dispatch(shared: &Arc<Shared>, request: Request<'_>) {
    let node = request.node;
    if let Operation::Interrupt { unique } = request.operation {
        return handle_interrupt(shared, request.unique, unique);
    }
    let reply = shared.channel.reply(request.unique, request.thread);
    match request.operation {
        Operation::Init {
            max_readahead,
            capabilities,
        } => reply.send(Ok(wire::init(max_readahead, capabilities))),
        Operation::Lookup { name } => reply.send(look_up(shared, node, name)),
        Operation::Forget(nodes) => {
            reply.discard();
            for (forgotten, lookups) in nodes {
                let forgotten = if forgotten == 0 { node } else { forgotten };
                shared.nodes.forget(forgotten, lookups);
            }
        }
        Operation::Open { flags, directory } => reply.send(open(shared, node, flags, directory)),
        Operation::Release { handle } => {
            shared.nodes.release(node, handle);
            reply.send(Ok(Vec::new()));
        }
        Operation::Read {
            handle,
            offset,
            size,
        } => read(shared, reply, node, handle, (offset, size)),
        Operation::ReadDir {
            handle,
            offset,
            size,
        } => match shared.nodes.handle(handle) {
            Ok(handle) => listing::read(shared, reply, node, handle, offset, size as usize),
            Err(errno) => reply.send(Err(errno)),
        },
        Operation::GetAttr { handle } => get_attr(shared, reply, node, handle),
        operation => changes::dispatch(shared, reply, node, operation),
    }
}

/// A thread that waits for a reply got a signal. File operations are not interrupted by signals, so the request
/// continues; but if the target is unreachable, a process that is killed must still be able to exit. `interrupt` is the
/// ID of the `INTERRUPT` request, `unique` the one of the request that it interrupts.
fn handle_interrupt(shared: &Arc<Shared>, interrupt: u64, unique: u64) {
    let channel = shared.channel.clone();
    let Some(thread) = channel.waiting_thread(unique) else {
        // The request was answered, or another thread has received it and is about to register it.
        return channel.requeue_interrupt(interrupt);
    };
    shared.calls.spawn(async move {
        while channel.waiting_thread(unique).is_some() {
            if is_killed(thread) {
                tokio::time::sleep(KILLED_GRACE_PERIOD).await;
                return channel.interrupt(unique);
            }
            tokio::time::sleep(KILL_POLL_INTERVAL).await;
        }
    });
}

/// Whether a thread that is blocked in the kernel exits when it returns to user space.
fn is_killed(thread: u32) -> bool {
    // The process name in this file may contain any bytes.
    let status = std::fs::read(format!("/proc/{thread}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    // A thread that does not exist cannot wait.
    status.is_empty() || has_fatal_signal(&status)
}

/// When a signal kills a process, the kernel sends SIGKILL to each of its threads. But if another signal was already
/// pending, it does so only after that one is delivered, so all fatal signals are checked.
fn has_fatal_signal(status: &str) -> bool {
    const NONFATAL: [i32; 8] = [
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGURG,
        libc::SIGWINCH,
        libc::SIGSTOP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
    ];
    let set = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
            .unwrap_or(0)
    };
    let nonfatal = NONFATAL
        .iter()
        .fold(0, |set, signal| set | 1_u64 << (signal - 1));
    let survived = nonfatal | set("SigBlk:") | set("SigIgn:") | set("SigCgt:");
    (set("SigPnd:") | set("ShdPnd:")) & !survived != 0
}

fn look_up(shared: &Shared, parent: u64, name: &[u8]) -> ReplyResult {
    // Names inside the target's directories are never looked up here: the interceptor handles these calls before the kernel.
    let node = node_of(name).filter(|_| parent == wire::ROOT);
    let node = node.ok_or(Errno::ENOENT)?;
    let cached = shared.nodes.look_up(node).ok_or(Errno::ENOENT)?;
    let attributes = shared.attributes(&cached.metadata);
    Ok(wire::entry(node, cached.valid, &attributes))
}

fn open(shared: &Shared, node: u64, flags: i32, directory: bool) -> ReplyResult {
    let opened = shared.nodes.open(node, flags)?;
    let cached = shared.nodes.cached(node);
    let has_unknown_size =
        cached.is_some_and(|cached| cached.metadata.size == 0 && opened.handle.remote.has_content);
    let mut open_flags = 0;
    // The kernel assumes that a file ends at its size, and that an append starts there. If only the target knows the real
    // end, each call is passed to it.
    if !directory && (opened.handle.appends() || has_unknown_size) {
        open_flags |= wire::DIRECT_IO;
    } else if opened.keeps_cache {
        open_flags |= wire::KEEP_CACHE;
    }
    Ok(wire::opened(opened.number, open_flags))
}

fn read(shared: &Arc<Shared>, reply: Reply, node: u64, handle: u64, range: (u64, u32)) {
    let handle = match shared.nodes.handle(handle) {
        Ok(handle) => handle,
        Err(errno) => return reply.send(Err(errno)),
    };
    if let Some(bytes) = handle.read_ahead.prefetched(range.0, range.1) {
        return reply.send_bytes(Ok(vec![bytes]));
    }
    let size = shared
        .nodes
        .cached(node)
        .map_or(0, |cached| cached.metadata.size);
    let shared = Arc::clone(shared);
    shared.calls.clone().spawn(async move {
        let chunks: Result<Vec<Bytes>, Errno> =
            read_ahead::read(&shared.calls, &handle, range, size).await;
        reply.send_bytes(chunks);
    });
}

fn get_attr(shared: &Arc<Shared>, reply: Reply, node: u64, handle: Option<u64>) {
    if node == wire::ROOT {
        let metadata = Metadata {
            mode: libc::S_IFDIR | 0o700,
            links: 2,
            ..Metadata::default()
        };
        let attributes = Attributes {
            metadata: &metadata,
            inode: wire::ROOT,
            user: 0,
            group: 0,
        };
        return reply.send(Ok(wire::attributes(Duration::from_secs(3600), &attributes)));
    }
    let cached = shared.nodes.cached(node);
    let handle = handle.map_or_else(
        || shared.nodes.any_handle(node, false),
        |handle| shared.nodes.handle(handle),
    );
    match (cached, handle) {
        (Some(cached), _) if !cached.valid.is_zero() => {
            let attributes = shared.attributes(&cached.metadata);
            reply.send(Ok(wire::attributes(cached.valid, &attributes)));
        }
        (_, Ok(handle)) => {
            let shared = Arc::clone(shared);
            shared.calls.clone().spawn(async move {
                reply.send(shared.fetch_metadata(node, &handle).await);
            });
        }
        (Some(cached), Err(_)) => {
            let attributes = shared.attributes(&cached.metadata);
            reply.send(Ok(wire::attributes(Duration::ZERO, &attributes)));
        }
        (None, Err(errno)) => reply.send(Err(errno)),
    }
}

impl Shared {
    /// Requests metadata from the target, for the reply to `GETATTR` and `SETATTR`.
    pub(super) async fn fetch_metadata(&self, node: u64, handle: &Handle) -> ReplyResult {
        let requested_at = Instant::now();
        let metadata = self.calls.stat(handle.file_ref()).await?;
        self.nodes.update_metadata(node, &metadata, requested_at);
        let valid = CACHE_TTL.saturating_sub(requested_at.elapsed());
        Ok(wire::attributes(valid, &self.attributes(&metadata)))
    }

    pub(super) fn attributes<'m>(&self, metadata: &'m rpc::Metadata) -> Attributes<'m> {
        let (user, group) = self.mapped_owner.unwrap_or((metadata.uid, metadata.gid));
        Attributes {
            metadata,
            inode: self.inodes.number(super::inodes::file_id(metadata)),
            user,
            group,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fatal_signals_are_detected() {
        #[rustfmt::skip] // A table is read by its columns.
        let table = [
            ("none",                              0,         0,      0,      0,      0,      false),
            ("SIGKILL",                           0x100,     0,      0,      0,      0,      true),
            ("to the thread",                     0x200,     0,      0,      0,      0,      true),
            ("to the process",                    0,         0x4000, 0,      0,      0,      true),
            ("blocked",                           0,         0x4000, 0x4000, 0,      0,      false),
            ("ignored",                           0,         0x4000, 0,      0x4000, 0,      false),
            ("handled",                           0,         0x4000, 0,      0,      0x4000, false),
            ("handled, and another",              0x200,     0x4000, 0,      0,      0x200,  true),
            ("a child ended, a window changed",   0x800_0000, 0x1_0000, 0,   0,      0,      false),
        ];
        for (case, own, shared, blocked, ignored, handled, expected) in table {
            let status = format!(
                "SigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{handled:016x}\n"
            );
            assert_eq!(has_fatal_signal(&status), expected, "{case}");
        }
    }
}
