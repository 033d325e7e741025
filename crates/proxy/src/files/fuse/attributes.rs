//! Requests about extended attributes. All of them ask the target.

use std::sync::Arc;

use bytes::Bytes;
use interceptor::Errno;
use protocol::rpc;

use super::Shared;
use super::changing::{Answer, may_change, run};
use super::channel::Reply;
use super::handle::Handle;
use super::wire::{self, Operation};
use crate::files::calls::Client;

/// The kernel asks for it before it writes, to take it away. The target's kernel does that.
const CAPABILITIES: &[u8] = b"security.capability";

pub(super) fn dispatch(shared: &Arc<Shared>, reply: Reply, node: u64, operation: &Operation<'_>) {
    let any = shared.nodes.any_handle(node, false);
    match *operation {
        Operation::Attribute { name, .. } if name == CAPABILITIES => {
            reply.send(Err(Errno::ENODATA));
        }
        Operation::Attribute { name, size } => {
            let name = Bytes::copy_from_slice(name);
            let work = async move |shared: Arc<Shared>, handle: Arc<Handle>| {
                let place = Some(handle.place());
                let request = rpc::GetAttributeRequest { place, name };
                let question =
                    |mut files: Client| async move { files.get_attribute(request).await };
                sized(&shared.calls.answer(question).await?.value, size)
            };
            run(shared, reply, any, work);
        }
        Operation::Attributes { size } => {
            let work = async move |shared: Arc<Shared>, handle: Arc<Handle>| {
                let place = Some(handle.place());
                let request = rpc::ListAttributesRequest { place };
                let question =
                    |mut files: Client| async move { files.list_attributes(request).await };
                let names = shared.calls.answer(question).await?.names;
                sized(&crate::files::convert::zero_ended(&names), size)
            };
            run(shared, reply, any, work);
        }
        _ => change(shared, reply, node, operation),
    }
}

fn change(shared: &Arc<Shared>, reply: Reply, node: u64, operation: &Operation<'_>) {
    let any = shared.nodes.any_handle(node, false);
    match *operation {
        Operation::SetAttribute { name, value, flags } => {
            let (name, value) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value));
            let work = async move |shared: Arc<Shared>, handle: Arc<Handle>| {
                may_change(&handle)?;
                let request = rpc::SetAttributeRequest {
                    place: Some(handle.place()),
                    name,
                    value,
                    create: flags & libc::XATTR_CREATE != 0,
                    replace: flags & libc::XATTR_REPLACE != 0,
                };
                let done = shared
                    .done(|mut files| async move { files.set_attribute(request).await })
                    .await;
                shared.changed(node);
                done
            };
            run(shared, reply, any, work);
        }
        Operation::RemoveAttribute { name } => {
            let name = Bytes::copy_from_slice(name);
            let work = async move |shared: Arc<Shared>, handle: Arc<Handle>| {
                may_change(&handle)?;
                let place = Some(handle.place());
                let request = rpc::RemoveAttributeRequest { place, name };
                let done = shared
                    .done(|mut files| async move { files.remove_attribute(request).await })
                    .await;
                shared.changed(node);
                done
            };
            run(shared, reply, any, work);
        }
        // The kernel then does without.
        _ => reply.send(Err(Errno::ENOSYS)),
    }
}

/// A size of zero asks how much room is needed.
fn sized(bytes: &[u8], size: u32) -> Answer {
    let length = u32::try_from(bytes.len()).map_err(|_| Errno::E2BIG)?;
    match size {
        0 => Ok(wire::count(length)),
        size if size < length => Err(Errno::ERANGE),
        _ => Ok(bytes.to_vec()),
    }
}
