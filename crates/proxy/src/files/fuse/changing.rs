//! Requests that change a file, and the rarer questions. All of them ask the target.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use interceptor::Errno;
use protocol::rpc;

use super::channel::Reply;
use super::handle::Handle;
use super::wire::{self, Change, NewTime, Operation};
use super::{Shared, attributes};
use crate::files::calls::Client;

pub(super) type Answer = Result<Vec<u8>, Errno>;

pub(super) fn dispatch(shared: &Arc<Shared>, reply: Reply, node: u64, operation: Operation<'_>) {
    let by_number = |handle: u64| shared.nodes.handle(handle);
    match operation {
        Operation::Write {
            handle,
            offset,
            data,
        } => {
            let data = Bytes::copy_from_slice(data);
            let write = async move |shared: Arc<Shared>, handle: Arc<Handle>| {
                write(&shared, node, &handle, offset, data).await
            };
            run(shared, reply, by_number(handle), write);
        }
        Operation::Change(change) => {
            let any = || shared.nodes.any_handle(node, change.size.is_some());
            let handle = change.handle.map_or_else(any, by_number);
            let work = async move |shared: Arc<Shared>, handle: Arc<Handle>| {
                let changed = apply(&shared, &handle, &change).await;
                shared.changed(node);
                // A directory's mode or owner decides about every name in it.
                shared.cache.forget();
                changed?;
                shared.ask_metadata(node, &handle).await
            };
            run(shared, reply, handle, work);
        }
        Operation::Sync { handle, data_only } => {
            let work = async move |shared: Arc<Shared>, handle: Arc<Handle>| {
                let request = rpc::SyncRequest {
                    handle: handle.remote.number,
                    data_only,
                };
                shared
                    .done(|mut files| async move { files.sync(request).await })
                    .await
            };
            run(shared, reply, by_number(handle), work);
        }
        Operation::Allocate {
            handle,
            offset,
            length,
            mode,
        } => match allocation(offset, length, mode) {
            Some(request) => {
                let work = async move |shared: Arc<Shared>, handle: Arc<Handle>| {
                    allocate(&shared, node, &handle, request).await
                };
                run(shared, reply, by_number(handle), work);
            }
            None => reply.send(Err(Errno::EOPNOTSUPP)),
        },
        operation => ask(shared, reply, node, operation),
    }
}

/// Questions that change nothing, and attributes.
fn ask(shared: &Arc<Shared>, reply: Reply, node: u64, operation: Operation<'_>) {
    match operation {
        Operation::Seek {
            handle,
            offset,
            whence,
        } => {
            let work = async move |shared: Arc<Shared>, handle: Arc<Handle>| {
                let request = rpc::SeekRequest {
                    handle: handle.remote.number,
                    offset,
                    hole: whence == libc::SEEK_HOLE,
                };
                let question = |mut files: Client| async move { files.seek(request).await };
                let found = shared.calls.answer(question).await?;
                Ok(wire::offset(found.offset))
            };
            run(shared, reply, shared.nodes.handle(handle), work);
        }
        Operation::FileSystem if node == wire::ROOT => {
            let nothing = rpc::StatFilesystemResponse::default();
            reply.send(Ok(wire::file_system(&nothing)));
        }
        Operation::FileSystem => {
            let work = async move |shared: Arc<Shared>, handle: Arc<Handle>| {
                let request = rpc::StatFilesystemRequest {
                    place: Some(handle.place()),
                };
                let question =
                    |mut files: Client| async move { files.stat_filesystem(request).await };
                let found = shared.calls.answer(question).await?;
                Ok(wire::file_system(&found))
            };
            let any = shared.nodes.any_handle(node, false);
            run(shared, reply, any, work);
        }
        operation => attributes::dispatch(shared, reply, node, &operation),
    }
}

/// Starts what answers; nobody else waits for it.
pub(super) fn run<W, F>(
    shared: &Arc<Shared>,
    reply: Reply,
    handle: Result<Arc<Handle>, Errno>,
    work: W,
) where
    W: FnOnce(Arc<Shared>, Arc<Handle>) -> F,
    F: Future<Output = Answer> + Send + 'static,
{
    match handle {
        Ok(handle) => {
            let answer = work(Arc::clone(shared), handle);
            shared.calls.spawn(async move { reply.send(answer.await) });
        }
        Err(errno) => reply.send(Err(errno)),
    }
}

async fn write(shared: &Shared, node: u64, handle: &Handle, offset: u64, data: Bytes) -> Answer {
    let number = handle.remote.number;
    let (written, outcome) = shared.calls.write(number, offset, data).await;
    shared.changed(node);
    match outcome {
        // What was written before a failure is told first; the next write meets the failure again.
        Err(errno) if written == 0 => Err(errno),
        _ => Ok(wire::count(u32::try_from(written).unwrap_or(u32::MAX))),
    }
}

pub(super) fn may_change(handle: &Handle) -> Result<(), Errno> {
    if handle.remote.read_only {
        return Err(Errno::EROFS);
    }
    Ok(())
}

/// `fchmod`, `fchown`, `ftruncate` and `futimens`, in the order in which the kernel would do them.
async fn apply(shared: &Shared, handle: &Handle, change: &Change) -> Result<(), Errno> {
    may_change(handle)?;
    let place = || Some(handle.place());
    if change.user.is_some() || change.group.is_some() {
        let request = rpc::SetOwnerRequest {
            place: place(),
            uid: change.user,
            gid: change.group,
        };
        let set = shared.done(|mut files| async move { files.set_owner(request).await });
        set.await?;
    }
    if let Some(mode) = change.mode {
        let place = place();
        let request = rpc::SetModeRequest { place, mode };
        let set = shared.done(|mut files| async move { files.set_mode(request).await });
        set.await?;
    }
    if let Some(size) = change.size {
        let place = place();
        let request = rpc::TruncateRequest { place, size };
        let set = shared.done(|mut files| async move { files.truncate(request).await });
        set.await?;
    }
    if change.accessed.is_some() || change.modified.is_some() {
        let request = rpc::SetTimesRequest {
            place: place(),
            access_time: change.accessed.map(new_time),
            modification_time: change.modified.map(new_time),
        };
        let set = shared.done(|mut files| async move { files.set_times(request).await });
        set.await?;
    }
    Ok(())
}

fn new_time(time: NewTime) -> rpc::NewTime {
    match time {
        NewTime::Now => rpc::NewTime {
            now: true,
            time: None,
        },
        NewTime::To(seconds, nanoseconds) => rpc::NewTime {
            now: false,
            time: Some(rpc::Time {
                seconds,
                nanoseconds,
            }),
        },
    }
}

/// `None` for a mode that the protocol does not know.
fn allocation(offset: u64, length: u64, mode: i32) -> Option<rpc::AllocateRequest> {
    let known = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
    (mode & !known == 0).then_some(rpc::AllocateRequest {
        handle: 0,
        offset,
        length,
        keep_size: mode & libc::FALLOC_FL_KEEP_SIZE != 0,
        punch_hole: mode & libc::FALLOC_FL_PUNCH_HOLE != 0,
        zero_range: mode & libc::FALLOC_FL_ZERO_RANGE != 0,
    })
}

async fn allocate(
    shared: &Shared,
    node: u64,
    handle: &Handle,
    request: rpc::AllocateRequest,
) -> Answer {
    let request = rpc::AllocateRequest {
        handle: handle.remote.number,
        ..request
    };
    let done = shared
        .done(|mut files| async move { files.allocate(request).await })
        .await;
    shared.changed(node);
    done
}

impl Shared {
    /// Asks for something to be done; the answer has no content.
    pub(super) async fn done<T, F>(&self, question: impl FnOnce(Client) -> F) -> Answer
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        self.calls.answer(question).await.map(|_| Vec::new())
    }

    /// Nothing that is remembered of a file is good any more.
    pub(super) fn changed(&self, node: u64) {
        if let Some(identity) = self.nodes.changed(node) {
            self.cache.forget_file(identity);
            self.recent.forget();
        }
    }
}
