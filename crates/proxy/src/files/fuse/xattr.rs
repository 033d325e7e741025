//! Requests about extended attributes. All of them are calls to the target.

use std::sync::Arc;

use bytes::Bytes;
use interceptor::Errno;
use protocol::rpc;

use super::Shared;
use super::changes::{ReplyResult, ensure_writable, run};
use super::channel::Reply;
use super::handle::Handle;
use super::wire::{self, Operation};
use crate::files::calls::Client;

/// The kernel requests it before every write, in order to remove it. The target's kernel already does that.
const CAPABILITIES: &[u8] = b"security.capability";

pub(super) fn dispatch(shared: &Arc<Shared>, reply: Reply, node: u64, operation: &Operation<'_>) {
    let any = shared.nodes.any_handle(node, false);
    match *operation {
        Operation::GetXattr { name, .. } if name == CAPABILITIES => {
            reply.send(Err(Errno::ENODATA));
        }
        Operation::GetXattr { name, size } => {
            let name = Bytes::copy_from_slice(name);
            let work = async move |shared: Arc<Shared>, handle: Arc<Handle>| {
                let file_ref = Some(handle.file_ref());
                let request = rpc::GetAttributeRequest {
                    file: file_ref,
                    name,
                };
                let call = |mut files: Client| async move { files.get_attribute(request).await };
                xattr_reply(&shared.calls.call(call).await?.value, size)
            };
            run(shared, reply, any, work);
        }
        Operation::ListXattr { size } => {
            let work = async move |shared: Arc<Shared>, handle: Arc<Handle>| {
                let file_ref = Some(handle.file_ref());
                let request = rpc::ListAttributesRequest { file: file_ref };
                let call = |mut files: Client| async move { files.list_attributes(request).await };
                let names = shared.calls.call(call).await?.names;
                xattr_reply(&crate::files::convert::nul_terminated(&names), size)
            };
            run(shared, reply, any, work);
        }
        _ => change(shared, reply, node, operation),
    }
}

fn change(shared: &Arc<Shared>, reply: Reply, node: u64, operation: &Operation<'_>) {
    let any = shared.nodes.any_handle(node, false);
    match *operation {
        Operation::SetXattr { name, value, flags } => {
            let (name, value) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value));
            let work = async move |shared: Arc<Shared>, handle: Arc<Handle>| {
                ensure_writable(&handle)?;
                let request = rpc::SetAttributeRequest {
                    file: Some(handle.file_ref()),
                    name,
                    value,
                    create: flags & libc::XATTR_CREATE != 0,
                    replace: flags & libc::XATTR_REPLACE != 0,
                };
                let result = shared
                    .call_empty(|mut files| async move { files.set_attribute(request).await })
                    .await;
                shared.invalidate_node(node);
                result
            };
            run(shared, reply, any, work);
        }
        Operation::RemoveXattr { name } => {
            let name = Bytes::copy_from_slice(name);
            let work = async move |shared: Arc<Shared>, handle: Arc<Handle>| {
                ensure_writable(&handle)?;
                let file_ref = Some(handle.file_ref());
                let request = rpc::RemoveAttributeRequest {
                    file: file_ref,
                    name,
                };
                let result = shared
                    .call_empty(|mut files| async move { files.remove_attribute(request).await })
                    .await;
                shared.invalidate_node(node);
                result
            };
            run(shared, reply, any, work);
        }
        // The kernel treats ENOSYS as an operation that is not supported.
        _ => reply.send(Err(Errno::ENOSYS)),
    }
}

/// A size of zero requests the required size.
fn xattr_reply(bytes: &[u8], size: u32) -> ReplyResult {
    let length = u32::try_from(bytes.len()).map_err(|_| Errno::E2BIG)?;
    match size {
        0 => Ok(wire::count(length)),
        size if size < length => Err(Errno::ERANGE),
        _ => Ok(bytes.to_vec()),
    }
}
