//! Requests that change a file, and the less frequent queries. All of them are calls to the target.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use interceptor::Errno;
use protocol::rpc;

use super::channel::Reply;
use super::handle::Handle;
use super::wire::{self, AttrChanges, NewTime, Operation};
use super::{Shared, xattr};
use crate::files::calls::Client;

pub(super) type ReplyResult = Result<Vec<u8>, Errno>;

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
        Operation::SetAttr(changes) => {
            let any = || shared.nodes.any_handle(node, changes.size.is_some());
            let handle = changes.handle.map_or_else(any, by_number);
            let work = async move |shared: Arc<Shared>, handle: Arc<Handle>| {
                let result = set_attributes(&shared, &handle, &changes).await;
                shared.invalidate_node(node);
                // The mode or owner of a directory affects every path below it.
                shared.cache.invalidate();
                result?;
                shared.fetch_metadata(node, &handle).await
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
                    .call_empty(|mut files| async move { files.sync(request).await })
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
        operation => dispatch_queries(shared, reply, node, operation),
    }
}

/// Queries that change nothing, and extended attributes.
fn dispatch_queries(shared: &Arc<Shared>, reply: Reply, node: u64, operation: Operation<'_>) {
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
                let call = |mut files: Client| async move { files.seek(request).await };
                let response = shared.calls.call(call).await?;
                Ok(wire::offset(response.offset))
            };
            run(shared, reply, shared.nodes.handle(handle), work);
        }
        Operation::StatFs if node == wire::ROOT => {
            let empty = rpc::StatFilesystemResponse::default();
            reply.send(Ok(wire::stat_fs(&empty)));
        }
        Operation::StatFs => {
            let work = async move |shared: Arc<Shared>, handle: Arc<Handle>| {
                let request = rpc::StatFilesystemRequest {
                    file: Some(handle.file_ref()),
                };
                let call = |mut files: Client| async move { files.stat_filesystem(request).await };
                let response = shared.calls.call(call).await?;
                Ok(wire::stat_fs(&response))
            };
            let any = shared.nodes.any_handle(node, false);
            run(shared, reply, any, work);
        }
        operation => xattr::dispatch(shared, reply, node, &operation),
    }
}

/// Runs the work for a request as a task, which sends the reply.
pub(super) fn run<W, F>(
    shared: &Arc<Shared>,
    reply: Reply,
    handle: Result<Arc<Handle>, Errno>,
    work: W,
) where
    W: FnOnce(Arc<Shared>, Arc<Handle>) -> F,
    F: Future<Output = ReplyResult> + Send + 'static,
{
    match handle {
        Ok(handle) => {
            let result = work(Arc::clone(shared), handle);
            shared.calls.spawn(async move { reply.send(result.await) });
        }
        Err(errno) => reply.send(Err(errno)),
    }
}

async fn write(
    shared: &Shared,
    node: u64,
    handle: &Handle,
    offset: u64,
    data: Bytes,
) -> ReplyResult {
    let number = handle.remote.number;
    let (written, result) = shared.calls.write(number, offset, data).await;
    shared.invalidate_node(node);
    match result {
        // After a partial write its length is returned; the next write fails again.
        Err(errno) if written == 0 => Err(errno),
        _ => Ok(wire::count(u32::try_from(written).unwrap_or(u32::MAX))),
    }
}

pub(super) fn ensure_writable(handle: &Handle) -> Result<(), Errno> {
    if handle.remote.read_only {
        return Err(Errno::EROFS);
    }
    Ok(())
}

/// `fchmod`, `fchown`, `ftruncate` and `futimens`, in the order in which the kernel applies them.
async fn set_attributes(
    shared: &Shared,
    handle: &Handle,
    changes: &AttrChanges,
) -> Result<(), Errno> {
    ensure_writable(handle)?;
    let file_ref = || Some(handle.file_ref());
    if changes.user.is_some() || changes.group.is_some() {
        let request = rpc::SetOwnerRequest {
            file: file_ref(),
            uid: changes.user,
            gid: changes.group,
        };
        let set = shared.call_empty(|mut files| async move { files.set_owner(request).await });
        set.await?;
    }
    if let Some(mode) = changes.mode {
        let file_ref = file_ref();
        let request = rpc::SetModeRequest {
            file: file_ref,
            mode,
        };
        let set = shared.call_empty(|mut files| async move { files.set_mode(request).await });
        set.await?;
    }
    if let Some(size) = changes.size {
        let file_ref = file_ref();
        let request = rpc::TruncateRequest {
            file: file_ref,
            size,
        };
        let set = shared.call_empty(|mut files| async move { files.truncate(request).await });
        set.await?;
    }
    if changes.accessed.is_some() || changes.modified.is_some() {
        let request = rpc::SetTimesRequest {
            file: file_ref(),
            access_time: changes.accessed.map(new_time),
            modification_time: changes.modified.map(new_time),
        };
        let set = shared.call_empty(|mut files| async move { files.set_times(request).await });
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

/// `None` for a mode that the protocol does not support.
fn allocation(offset: u64, length: u64, mode: i32) -> Option<rpc::AllocateRequest> {
    let supported =
        libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
    (mode & !supported == 0).then_some(rpc::AllocateRequest {
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
) -> ReplyResult {
    let request = rpc::AllocateRequest {
        handle: handle.remote.number,
        ..request
    };
    let result = shared
        .call_empty(|mut files| async move { files.allocate(request).await })
        .await;
    shared.invalidate_node(node);
    result
}

impl Shared {
    /// Makes a call whose reply to the kernel has no content.
    pub(super) async fn call_empty<T, F>(&self, request: impl FnOnce(Client) -> F) -> ReplyResult
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        self.calls.call(request).await.map(|_| Vec::new())
    }

    /// Invalidates everything that is cached of a file, after a change.
    pub(super) fn invalidate_node(&self, node: u64) {
        if let Some(file_id) = self.nodes.invalidate(node) {
            self.cache.invalidate_file(file_id);
            self.recent.clear();
        }
    }
}
