//! The kernel's requests: what is known is answered at once, the rest becomes a task that asks the target.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use interceptor::Errno;
use protocol::rpc::{self, Metadata};

use super::channel::Reply;
use super::handle::Handle;
use super::nodes::FRESH;
use super::wire::{self, Attributes, Operation, Request};
use super::{Shared, changing, errno_of, listing, reading};

/// How long an answer may take after whoever waits for it was killed.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often we look whether somebody who waits and got a signal was killed: the kernel tells of the first signal only.
const NEXT_LOOK: Duration = Duration::from_millis(100);

type Answer = Result<Vec<u8>, Errno>;

/// The name of a node in the root.
pub(super) fn name_of(node: u64) -> String {
    format!("{node:x}")
}

fn node_of(name: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()
}

/// Serves until the file system is gone.
pub(super) fn serve(shared: &Arc<Shared>) {
    let mut buffer = vec![0; wire::REQUEST_ROOM];
    loop {
        match shared.channel.receive(&mut buffer) {
            Ok(Some(bytes)) => {
                if let Some(request) = Request::read(bytes) {
                    dispatch(shared, request);
                }
            }
            Ok(None) => return,
            Err(error) => {
                let errno = errno_of(&error);
                tracing::warn!(%errno, "the target's files cannot be served any more");
                return;
            }
        }
    }
}

fn dispatch(shared: &Arc<Shared>, request: Request<'_>) {
    let node = request.node;
    if let Operation::Interrupt { unique } = request.operation {
        return signalled(shared, request.unique, unique);
    }
    let reply = shared.channel.reply(request.unique, request.thread);
    match request.operation {
        Operation::Init {
            max_readahead,
            capabilities,
        } => reply.send(Ok(wire::init(max_readahead, capabilities))),
        Operation::Lookup { name } => reply.send(look_up(shared, node, name)),
        Operation::Forget(nodes) => {
            reply.not_wanted();
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
        Operation::List {
            handle,
            offset,
            size,
        } => match shared.nodes.handle(handle) {
            Ok(handle) => listing::answer(shared, reply, node, handle, offset, size as usize),
            Err(errno) => reply.send(Err(errno)),
        },
        Operation::Describe { handle } => describe(shared, reply, node, handle),
        operation => changing::dispatch(shared, reply, node, operation),
    }
}

/// Somebody who waits got a signal. Files are not interrupted by signals, so the answer is awaited; but if the target
/// cannot be reached, whoever is killed must be able to end.
fn signalled(shared: &Arc<Shared>, news: u64, unique: u64) {
    let channel = shared.channel.clone();
    let Some(thread) = channel.who_waits(unique) else {
        // Answered, or in the hands of another thread that is about to make it known.
        return channel.tell_again(news);
    };
    shared.calls.spawn(async move {
        while channel.who_waits(unique).is_some() {
            if is_killed(thread) {
                tokio::time::sleep(PATIENCE).await;
                return channel.give_up(unique);
            }
            tokio::time::sleep(NEXT_LOOK).await;
        }
    });
}

/// Whether a thread that is in the kernel ends when it comes back from there.
fn is_killed(thread: u32) -> bool {
    // A process's name may be any bytes.
    let status = std::fs::read(format!("/proc/{thread}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    // Who is not there cannot wait.
    status.is_empty() || has_deadly_signal(&status)
}

/// Whatever kills a process, the kernel gives each of its threads the one signal that nobody escapes; but if another
/// signal came before, it does so only when that one has been seen to.
fn has_deadly_signal(status: &str) -> bool {
    const HARMLESS: [i32; 8] = [
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
    let harmless = HARMLESS
        .iter()
        .fold(0, |set, signal| set | 1_u64 << (signal - 1));
    let survived = harmless | set("SigBlk:") | set("SigIgn:") | set("SigCgt:");
    (set("SigPnd:") | set("ShdPnd:")) & !survived != 0
}

fn look_up(shared: &Shared, parent: u64, name: &[u8]) -> Answer {
    // Names inside of the target's directories are never looked up here: the interceptor sees them before the kernel.
    let node = node_of(name).filter(|_| parent == wire::ROOT);
    let node = node.ok_or(Errno::ENOENT)?;
    let known = shared.nodes.look_up(node).ok_or(Errno::ENOENT)?;
    let attributes = shared.attributes(&known.metadata);
    Ok(wire::entry(node, known.valid, &attributes))
}

fn open(shared: &Shared, node: u64, flags: i32, directory: bool) -> Answer {
    let opening = shared.nodes.open(node, flags)?;
    let known = shared.nodes.known(node);
    let is_made_up =
        known.is_some_and(|known| known.metadata.size == 0 && opening.handle.remote.has_content);
    let mut answer = 0;
    // The kernel believes that a file ends where its size says, and that an append begins there. Where the target
    // knows better, each call goes there.
    if !directory && (opening.handle.appends() || is_made_up) {
        answer |= wire::DIRECT_IO;
    } else if opening.cache_is_good {
        answer |= wire::KEEP_CACHE;
    }
    Ok(wire::opened(opening.number, answer))
}

fn read(shared: &Arc<Shared>, reply: Reply, node: u64, handle: u64, range: (u64, u32)) {
    let handle = match shared.nodes.handle(handle) {
        Ok(handle) => handle,
        Err(errno) => return reply.send(Err(errno)),
    };
    if let Some(bytes) = handle.reading.at_hand(range.0, range.1) {
        return reply.send_bytes(Ok(vec![bytes]));
    }
    let size = shared
        .nodes
        .known(node)
        .map_or(0, |known| known.metadata.size);
    let shared = Arc::clone(shared);
    shared.calls.clone().spawn(async move {
        let parts: Result<Vec<Bytes>, Errno> =
            reading::read(&shared.calls, &handle, range, size).await;
        reply.send_bytes(parts);
    });
}

fn describe(shared: &Arc<Shared>, reply: Reply, node: u64, handle: Option<u64>) {
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
    let known = shared.nodes.known(node);
    let handle = handle.map_or_else(
        || shared.nodes.any_handle(node, false),
        |handle| shared.nodes.handle(handle),
    );
    match (known, handle) {
        (Some(known), _) if !known.valid.is_zero() => {
            let attributes = shared.attributes(&known.metadata);
            reply.send(Ok(wire::attributes(known.valid, &attributes)));
        }
        (_, Ok(handle)) => {
            let shared = Arc::clone(shared);
            shared.calls.clone().spawn(async move {
                reply.send(shared.ask_metadata(node, &handle).await);
            });
        }
        (Some(known), Err(_)) => {
            let attributes = shared.attributes(&known.metadata);
            reply.send(Ok(wire::attributes(Duration::ZERO, &attributes)));
        }
        (None, Err(errno)) => reply.send(Err(errno)),
    }
}

impl Shared {
    /// Asks the target, for an answer to `GETATTR` and `SETATTR`.
    pub(super) async fn ask_metadata(&self, node: u64, handle: &Handle) -> Answer {
        let asked = Instant::now();
        let metadata = self.calls.stat(handle.place()).await?;
        self.nodes.learn(node, &metadata, asked);
        let valid = FRESH.saturating_sub(asked.elapsed());
        Ok(wire::attributes(valid, &self.attributes(&metadata)))
    }

    pub(super) fn attributes<'m>(&self, metadata: &'m rpc::Metadata) -> Attributes<'m> {
        let (user, group) = self.only_owner.unwrap_or((metadata.uid, metadata.gid));
        Attributes {
            metadata,
            inode: self.inodes.number(super::inodes::identity(metadata)),
            user,
            group,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_signals_end_a_thread() {
        #[rustfmt::skip] // A table is read by its columns.
        let table = [
            ("none",                              0,         0,      0,      0,      0,      false),
            ("the one that nobody escapes",       0x100,     0,      0,      0,      0,      true),
            ("to the thread",                     0x200,     0,      0,      0,      0,      true),
            ("to the process",                    0,         0x4000, 0,      0,      0,      true),
            ("blocked",                           0,         0x4000, 0x4000, 0,      0,      false),
            ("ignored",                           0,         0x4000, 0,      0x4000, 0,      false),
            ("handled",                           0,         0x4000, 0,      0,      0x4000, false),
            ("handled, and another",              0x200,     0x4000, 0,      0,      0x200,  true),
            ("a child ended, a window changed",   0x800_0000, 0x1_0000, 0,   0,      0,      false),
        ];
        for (what, own, shared, blocked, ignored, handled, expected) in table {
            let status = format!(
                "SigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{handled:016x}\n"
            );
            assert_eq!(has_deadly_signal(&status), expected, "{what}");
        }
    }
}
